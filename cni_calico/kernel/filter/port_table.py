"""The published ports of Docker's containers, in nftables' tables ``ip`` and ``ip6 calico-published``; in chains of
legacy iptables where the kernel has no nf_tables.

Rule: a table is written as a whole, in one transaction, and only these are touched. Destinations are translated
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
from cni_calico.kernel.filter.legacy import programs
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
            apply_legacy(mine, version, deadline)
        elif mine or has_table(family, PORT_TABLE, deadline):
            apply_script(render_forwards(mine, version), deadline)
        elif not mine and not programs.missing_programs():
            apply_legacy((), version, deadline)


def apply_legacy(forwards: Collection[PortForward], version: int, deadline: Deadline) -> None:
    """Exactly these of one family, by legacy iptables. Raises KernelError."""
    if forwards and (missing := programs.missing_programs()):
        raise KernelError(f"cannot publish ports: nft does not work here, and for legacy iptables install {missing}")
    if script := render_legacy(forwards, version, programs.read_tables(version, deadline)):
        programs.restore(version, script, deadline)


def read_forwards(deadline: Deadline) -> Any:
    """What nftables has in force, to be compared with another reading; nothing where it cannot be read: nft may be
    installed, and the kernel have no nf_tables.
    """
    return [_read_table(family, deadline) for family in FAMILIES.values()]


def _read_table(family: str, deadline: Deadline) -> Any:
    try:
        return read_table(family, PORT_TABLE, deadline)
    except KernelError:
        return None


def render_forwards(forwards: Collection[PortForward], version: int) -> str:
    """PURE: the script that makes a family's table say so; without any it goes."""
    family = FAMILIES[version]
    lines = [f"table {family} {PORT_TABLE} {{}}", f"delete table {family} {PORT_TABLE}"]
    if forwards:
        lines += [f"table {family} {PORT_TABLE} {{", *_chains(forwards, family), "}"]
    return "\n".join([*lines, ""])


def _ordered(forwards: Collection[PortForward]) -> list[PortForward]:
    """Those of one address first, then those of every one."""
    return sorted(forwards, key=lambda each: (each.host is None, str(each.host), each.protocol, each.host_port))


def _chains(forwards: Collection[PortForward], family: str) -> Iterator[str]:
    yield "chain ports {"
    for each in _ordered(forwards):
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


# -- legacy iptables --------------------------------------------------------------------------------------------------

_LOCAL = "-m addrtype --dst-type LOCAL"
_LEGACY_JUMPS = {  # the chain, and from where it is called
    "nat": (
        (PORT_TABLE, (f"PREROUTING {_LOCAL}", f"OUTPUT {_LOCAL}")),
        (f"{PORT_TABLE}-post", ("POSTROUTING",)),
    ),
    "mangle": ((PORT_TABLE, ("PREROUTING",)),),
}


def render_legacy(forwards: Collection[PortForward], version: int, saved: str) -> str:
    """PURE: the script of iptables-restore that makes it so; "" if there is nothing to do. ``saved``: what
    iptables-save prints now.
    """
    tables, lines = saved_tables(saved), []
    for table, chains in _LEGACY_JUMPS.items():
        there = tables.get(table, [])
        rules = [
            text for chain, hooks in chains for text in _legacy_chain(table, chain, hooks, forwards, version, there)
        ]
        if rules:
            lines += [f"*{table}", *rules, "COMMIT"]
    return "\n".join([*lines, ""]) if lines else ""


def saved_tables(saved: str) -> dict[str, list[str]]:
    """PURE: the lines of iptables-save, by table."""
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in saved.splitlines():
        if line.startswith("*"):
            current = found.setdefault(line[1:].strip(), [])
        else:
            current.append(line)
    return found


def _legacy_chain(
    table: str, chain: str, hooks: Collection[str], forwards: Collection[PortForward], version: int, there: list[str]
) -> list[str]:
    jumps = [line.replace("-A", "-D", 1) for line in there if line.startswith("-A ") and line.endswith(f" -j {chain}")]
    wanted = list(_legacy_rules(table, chain, forwards, version))
    if wanted:
        added = [f"-I {hook} -j {chain}" for hook in hooks]
        return [f":{chain} - [0:0]", *(f"-A {chain} {rule}" for rule in wanted), *jumps, *added]
    is_there = any(line.startswith(f":{chain} ") for line in there)
    return [*jumps, f"-F {chain}", f"-X {chain}"] if is_there else []


def _legacy_rules(table: str, chain: str, forwards: Collection[PortForward], version: int) -> Iterator[str]:
    if table == "mangle":
        if forwards and version == 4:  # what route_localnet lets in at the containers' interfaces
            yield "! -i lo -d 127.0.0.0/8 -j DROP"
    elif chain == PORT_TABLE:
        for each in _ordered(forwards):
            where = f"-d {each.host} " if each.host is not None else ""
            target = f"{each.address}:{each.port}" if version == 4 else f"[{each.address}]:{each.port}"
            yield f"{where}-p {each.protocol} --dport {each.host_port} -j DNAT --to-destination {target}"
    else:
        if forwards and version == 4:
            yield "-s 127.0.0.0/8 -m conntrack --ctstate DNAT -j MASQUERADE"
        for address in sorted({each.address for each in forwards}, key=int):
            yield f"-s {address} -d {address} -j MASQUERADE"
