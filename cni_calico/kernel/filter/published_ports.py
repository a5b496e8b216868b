"""How this host translates connections to its own ports: the rules of the plugin ``portmap``, and of whoever else uses
iptables' table nat.

Rule: only looks, and reads no table that reading would create. What may translate and is not read is named.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.iptables import VARIANTS, find_iptables, in_use
from cni_calico.kernel.filter.nft import read_table
from cni_calico.kernel.filter.programs import find_program, run_program
from cni_calico.netfilter.nat import NatTable, hooked_tables, parse_iptables, parse_nft

_OURS = ("cni_hostport", "calico-published")  # of portmap; of Docker's networks
_FAMILIES = {4: "ip", 6: "ip6"}
_LEGACY_TABLES = {4: "/proc/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}
_NOT_ALL = "# Table `nat' "  # how iptables-nft-save begins a line about what it cannot print: others have made it


@dataclass(frozen=True, slots=True)
class SeenNat:
    """``unread``: what else may translate, in words."""

    tables: tuple[NatTable, ...]
    unread: tuple[str, ...]


def read_nat(version: int, deadline: Deadline) -> SeenNat:
    """The tables of a family. Raises KernelError, DeadlineExceeded."""
    found, unread, family = [], [], _FAMILIES[version]
    read = {(family, name) for name in _OURS}
    for variant in VARIANTS:
        if variant == "legacy" and not _has_legacy_nat(version):
            continue
        by = f"iptables ({variant}), table nat"
        if in_use(version, variant):
            argv = [find_iptables(version, variant, "-save"), "-t", "nat"]
            text = run_program(argv, b"", deadline).decode(errors="replace")
            found.append(parse_iptables(text, by))
            if variant == "nft" and not any(line.startswith(_NOT_ALL) for line in text.splitlines()):
                read.add((family, "nat"))
        elif variant == "legacy":
            unread.append(by)
    for name in _OURS:
        items = read_table(family, name, deadline)
        if items is not None:
            found.append(parse_nft(items, f"nftables, table {name}", ("prerouting", "output")))
    return SeenNat(tuple(found), (*unread, *_unread_tables(family, read, deadline)))


def _unread_tables(family: str, read: set[tuple[str, str]], deadline: Deadline) -> list[str]:
    """The tables of nftables that translate destinations and are not among those ``read``."""
    program = find_program("nft")
    if not program:
        return ["nftables (nft is not installed)"]
    listed = json.loads(run_program([program, "-j", "list", "chains"], b"", deadline))["nftables"]
    return [f"nftables, table {of} {name}" for of, name in hooked_tables(listed, family) if (of, name) not in read]


def _has_legacy_nat(version: int) -> bool:
    try:
        with open(_LEGACY_TABLES[version]) as file:
            return "nat" in file.read().split()
    except OSError:
        return False
