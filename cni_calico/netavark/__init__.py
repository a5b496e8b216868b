"""The plugin for podman 5 and later, whose networks are made by netavark: translates netavark's calls into CNI
calls.
"""
