"""Calico's CNI plugin, IPAM and node agent in Python."""

__version__ = "0.1.0"
BUILD = ""  # in a bundle "+" and the build's id, which distinguishes builds of one version; written by build/freeze.py
UPSTREAM_VERSION = "v3.32.1"  # the version of Calico whose data and behaviour this is compatible with
