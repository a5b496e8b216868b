"""How this host translates connections to its own ports: the rules of the plugin ``portmap``, and of whoever else uses
the table nat.

Rule: only looks, and reads no table that reading would create.
"""

from __future__ import annotations

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.iptables import VARIANTS, find_iptables, in_use
from cni_calico.kernel.filter.nft import read_table
from cni_calico.kernel.filter.programs import run_program
from cni_calico.netfilter.nat import NatTable, parse_iptables, parse_nft

_PORTMAP = "cni_hostport"
_FAMILIES = {4: "ip", 6: "ip6"}
_LEGACY_TABLES = {4: "/proc/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}


def read_nat(version: int, deadline: Deadline) -> list[NatTable]:
    """The tables of a family. Raises KernelError, DeadlineExceeded."""
    found = []
    for variant in VARIANTS:
        if in_use(version, variant) and (variant != "legacy" or _has_legacy_nat(version)):
            argv = [find_iptables(version, variant, "-save"), "-t", "nat"]
            text = run_program(argv, b"", deadline).decode(errors="replace")
            found.append(parse_iptables(text, f"iptables ({variant}), table nat"))
    items = read_table(_FAMILIES[version], _PORTMAP, deadline)
    if items is not None:
        found.append(parse_nft(items, f"nftables, table {_PORTMAP}", ("prerouting", "output")))
    return found


def _has_legacy_nat(version: int) -> bool:
    try:
        with open(_LEGACY_TABLES[version]) as file:
            return "nat" in file.read().split()
    except OSError:
        return False
