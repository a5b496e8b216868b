"""Who has a port, as messages name him."""

import os
import socket

from cni_calico.kernel.port_holders import udp_holder


def test_who_has_a_port():
    for family, here in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family, socket.SOCK_DGRAM) as one:
            one.bind((here, 0))
            port = one.getsockname()[1]
            assert udp_holder(port).endswith(f"(process {os.getpid()})")
        assert udp_holder(port) == ""
