"""Docker's network driver and IPAM driver ``calico`` and ``calico-ipam``, over two sockets (``calico-docker``)."""
