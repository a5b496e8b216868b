"""What tests need of a kernel that not every kernel has, and how to ask for it.

Rule: the question is a use of the feature, in a network namespace of its own; a module that is there is loaded by it. A
test names its needs with the marker ``kernel``; where one is missing it is skipped, and tests/kernels runs it.
"""

from __future__ import annotations

import functools
import os
import socket
import subprocess
from collections.abc import Callable

MACHINE = "CNI_CALICO_MACHINE"  # set in the machines of tests/kernels: tests may take modules from the kernel there
USER_MODE = "CNI_CALICO_USER_MODE"  # set in the user-mode kernel (netns/policing/test_user_mode_kernel.py)


def _shell(command: str) -> Callable[[], bool]:
    argv = ["unshare", "-n", "sh", "-ec", command]
    return lambda: subprocess.run(argv, capture_output=True, timeout=60).returncode == 0


def _has_socket(kind: int, protocol: int) -> bool:
    try:
        socket.socket(socket.AF_INET, kind, protocol).close()
    except OSError:
        return False
    return True


_VETH = "ip link add one type veth peer name two"
FEATURES: dict[str, Callable[[], bool]] = {
    "ipip": _shell("ip link add one type ipip local 192.0.2.1 remote 192.0.2.2"),
    "vxlan": _shell("ip link add one type vxlan id 7 dstport 4789"),
    "wireguard": _shell("ip link add one type wireguard"),
    "sctp": lambda: _has_socket(socket.SOCK_STREAM, socket.IPPROTO_SCTP),
    "udplite": lambda: _has_socket(socket.SOCK_DGRAM, socket.IPPROTO_UDPLITE),
    "netem": _shell(f"{_VETH}; tc qdisc add dev one root netem loss 2% delay 50ms"),
    "flowtables": _shell(
        f"{_VETH}; nft 'add table ip t; add flowtable ip t f {{ hook ingress priority 0; devices = {{ one }}; }}; "
        "add chain ip t c { type filter hook forward priority 0; }; add rule ip t c meta l4proto tcp flow add @f'"
    ),
    "queue": _shell("nft 'add table ip t; add chain ip t c; add rule ip t c queue num 7'"),
    "ipvs": _shell("ipvsadm -A -t 192.0.2.1:80"),
    "nf_tables": _shell("nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }'"),
    "iptables": _shell("iptables-legacy -N c"),
    "ipsets": _shell("ipset create s hash:net"),
    "machine": lambda: MACHINE in os.environ,
    "user-mode": lambda: USER_MODE in os.environ,
}


@functools.cache
def has(feature: str) -> bool:
    """Raises KeyError for a name that is not in the table."""
    try:
        return FEATURES[feature]()
    except (OSError, subprocess.TimeoutExpired):
        return False
