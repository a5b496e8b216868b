"""Calico's CNI plugin, IPAM and node agent in Python."""

__version__ = "0.1.0"
BUILD = ""  # in a bundle "+" and its id: two builds of one version differ in it; build/freeze.py writes it here
UPSTREAM_VERSION = "v3.32.1"  # the version of Calico whose data and behaviour this is compatible with
