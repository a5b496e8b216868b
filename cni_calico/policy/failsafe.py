"""PURE: failsafe ports, which stay open at host endpoints whatever the policies say.

Rule: the defaults are upstream's; they keep a node manageable (SSH, DHCP, DNS) and its cluster alive (BGP, etcd, the
relay, the API server).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_network

from cni_calico.model.resources import Network
from cni_calico.policy.explain import Packet
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.rules import PROTOCOLS
from cni_calico.policy.wanted import Direction

_PORT_MAX = 65535
_TCP, _UDP = 6, 17
_FORMAT = "PROTOCOL:PORT or PROTOCOL:NETWORK:PORT, such as tcp:22 or udp:192.0.2.0/24:123"


@dataclass(frozen=True, slots=True)
class FailsafePort:
    """``net``: only for connections with these addresses; None: with all."""

    protocol: int
    port: int
    net: Network | None = None


INBOUND = (
    FailsafePort(_TCP, 22),
    FailsafePort(_UDP, 68),
    *(FailsafePort(_TCP, port) for port in (179, 2379, 2380, 5473, 6443, 6666, 6667)),
)
OUTBOUND = (
    FailsafePort(_UDP, 53),
    FailsafePort(_UDP, 67),
    *(FailsafePort(_TCP, port) for port in (179, 2379, 2380, 5473, 6443, 6666, 6667)),
)


def parse_failsafe_ports(text: str) -> tuple[FailsafePort, ...]:
    """A comma-separated list; "none" is the empty one. Raises ValueError."""
    if text.strip().lower() == "none":
        return ()
    return tuple(_parse_port(item.strip()) for item in text.split(",") if item.strip())


def _parse_port(text: str) -> FailsafePort:
    before, _, number = text.rpartition(":")
    if not (number.isascii() and number.isdecimal() and len(number) <= 5 and int(number) <= _PORT_MAX):
        raise ValueError(f"expected {_FORMAT}; {text!r} has no port at its end")
    protocol, _, net = before.partition(":")
    if protocol.lower() not in PROTOCOLS and before:  # the network may come first
        net, _, protocol = before.rpartition(":")
    value = PROTOCOLS.get(protocol.lower() or "tcp")
    if value not in WITH_PORTS:
        raise ValueError(f"expected {_FORMAT}, with protocol tcp, udp or sctp, not {text!r}")
    try:
        network = ip_network(net.strip("[]"), strict=False) if net else None
    except ValueError as e:
        raise ValueError(f"expected {_FORMAT}; {net!r} is no network") from e
    return FailsafePort(value, int(number), network)


def is_failsafe(ports: Iterable[FailsafePort], direction: Direction, packet: Packet) -> bool:
    """Whether a connection's first packet to (ingress) or from (egress) a host is let through before all policies."""
    other = packet.source if direction == "ingress" else packet.destination
    return any(
        (port.protocol, port.port) == (packet.protocol, packet.destination_port)
        and (port.net is None or other in port.net)
        for port in ports
    )
