"""The plugin for podman 5 and later, whose networks are made by netavark: the same CNI calls, in netavark's words."""
