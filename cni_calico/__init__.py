"""Calico's CNI plugin, IPAM and node agent in Python."""

__version__ = "0.1.0"
