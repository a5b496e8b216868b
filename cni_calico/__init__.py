"""Calico's CNI plugin, IPAM and node agent in Python."""

__version__ = "0.1.0"
UPSTREAM_VERSION = "v3.32.1"  # the version of Calico whose data and behaviour this is compatible with
