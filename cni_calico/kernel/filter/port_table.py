"""The published ports of Docker's containers, in nftables' tables ``ip`` and ``ip6 calico-published``.

Rule: a table is written as a whole, in one transaction, and only these two are touched. Destinations are translated
where Docker's bridges do it, so policies before translation see the host's port, and others the container's. The source
stays what it is, but for 127.0.0.0/8 and a container that calls itself, which would otherwise answer past us.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.nft import apply_script, has_table, read_table, usable

PORT_TABLE = "calico-published"
FAMILIES = {4: "ip", 6: "ip6"}


@dataclass(frozen=True, slots=True, order=True)
class PortForward:
    """``protocol``: tcp, udp or sctp. ``host``: the host's address, None for each of them."""

    protocol: str
    host_port: int
    address: IPv4Address | IPv6Address
    port: int
    host: IPv4Address | IPv6Address | None = None


def apply_forwards(forwards: Collection[PortForward], deadline: Deadline) -> None:
    """Exactly these. Raises KernelError."""
    for version, family in FAMILIES.items():
        mine = [forward for forward in forwards if forward.address.version == version]
        if mine and not usable(deadline):
            raise KernelError("cannot publish ports: nft is not installed, or this kernel has no nf_tables")
        if mine or has_table(family, PORT_TABLE, deadline):
            apply_script(render_forwards(mine, version), deadline)


def read_forwards(deadline: Deadline) -> Any:
    """What is in force, to be compared with another reading. Raises KernelError."""
    return [read_table(family, PORT_TABLE, deadline) for family in FAMILIES.values()]


def render_forwards(forwards: Collection[PortForward], version: int) -> str:
    """PURE: the script that makes a family's table say so; without any it goes."""
    family = FAMILIES[version]
    lines = [f"table {family} {PORT_TABLE} {{}}", f"delete table {family} {PORT_TABLE}"]
    if forwards:
        lines += [f"table {family} {PORT_TABLE} {{", *_chains(forwards, family), "}"]
    return "\n".join([*lines, ""])


def _chains(forwards: Collection[PortForward], family: str) -> Iterator[str]:
    yield "chain ports {"
    # those of one address first, then those of every one
    for each in sorted(forwards, key=lambda each: (each.host is None, str(each.host), each.protocol, each.host_port)):
        where = f"{family} daddr {each.host} " if each.host is not None else ""
        target = f"{each.address}:{each.port}" if family == "ip" else f"[{each.address}]:{each.port}"
        yield f"{where}{each.protocol} dport {each.host_port} dnat to {target}"
    yield "}"
    for hook in ("prerouting", "output"):
        yield f"chain {hook} {{ type nat hook {hook} priority -100; fib daddr type local jump ports; }}"
    yield "chain postrouting { type nat hook postrouting priority 100;"
    if family == "ip":
        yield "ip saddr 127.0.0.0/8 ct status dnat masquerade"
    for address in sorted({each.address for each in forwards}, key=int):
        yield f"{family} saddr {address} {family} daddr {address} masquerade"
    yield "}"
    if family == "ip":  # what route_localnet lets in at the containers' interfaces
        yield 'chain loopback { type filter hook prerouting priority -150; iifname != "lo" ip daddr 127.0.0.0/8 drop; }'
