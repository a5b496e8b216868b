"""Which networks the rules of this host's kube-proxy take for pods: it masquerades what comes to a service from
elsewhere.

Rule: only looks, and no longer than needed: every service has the same test, so a few chains are enough. Programs are
run for legacy tables alone, and only if the kernel has them. Known are kube-proxy's modes nftables, iptables (by nft's
compatibility layer and legacy) and ipvs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Network, IPv6Network, ip_network
from itertools import islice

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.iptables import find_iptables, in_use
from cni_calico.kernel.filter.nf_tables.attributes import decode_expression
from cni_calico.kernel.filter.nf_tables.expressions import Bitwise, Compare, PayloadLoad, PrintedRule
from cni_calico.kernel.filter.nf_tables.reader import PieceReader
from cni_calico.kernel.filter.programs import run_program
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.rules import jump
from cni_calico.netfilter.tables import TableId

_TABLES = (
    ("kube-proxy", ("service-",), "mark-for-masquerade"),
    ("nat", ("KUBE-SVC-", "KUBE-SERVICES"), "KUBE-MARK-MASQ"),
)
_FAMILIES = ((4, "ip", 12, 4), (6, "ip6", 8, 16))  # version, family, offset and bytes of the source in a packet
_CHAINS = 24  # those of some services have no test: they have no endpoint
_TABLES_FILE = {4: "/proc/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}
_LEGACY = re.compile(r"^-A KUBE-(?:SVC-\S+|SERVICES) ! -s (\S+) .*-j KUBE-MARK-MASQ$", re.M)


def read_service_sources(deadline: Deadline) -> tuple[IPv4Network | IPv6Network, ...]:
    """The networks, in the network namespace of the calling thread; none where there is no such kube-proxy, or where it
    tells pods by other means. Raises KernelError, DeadlineExceeded.
    """
    found: dict[IPv4Network | IPv6Network, None] = {}
    for version, family, offset, size in _FAMILIES:
        for table, chains, mark in _TABLES:
            for rule in _rules(TableId(family, table), chains, deadline):
                network = parse_source(rule, mark, offset, size)
                if network is not None:
                    found[network] = None
                    break
        for text in islice(_LEGACY.findall(_read_legacy(version, deadline)), 1):
            found[ip_network(text, strict=False)] = None
    return tuple(found)


def _rules(table: TableId, beginnings: tuple[str, ...], deadline: Deadline) -> Iterator[PrintedRule]:
    """Of the table's first chains whose names begin so."""
    reader = PieceReader()
    try:
        try:
            parts = reader.chains(table, deadline)
            names = (chain.name for part in parts for chain in part if chain.name.startswith(beginnings))
            few = list(islice(names, _CHAINS))
        except KernelError:  # no such table, or no nf_tables
            return
        for name in few:
            reader.reset()
            for part in reader.rules(table, name, deadline):
                yield from part
    finally:
        reader.close()


def parse_source(rule: PrintedRule, mark: str, offset: int, size: int) -> IPv4Network | IPv6Network | None:
    """PURE: N of a rule "from outside N, mark for masquerading"; None for any other rule."""
    expressions = tuple(map(decode_expression, list_elements(rule.expressions)))
    if jump(mark) not in expressions:
        return None
    load: PayloadLoad | None = None
    mask: bytes | None = None
    for expression in expressions:
        if isinstance(expression, PayloadLoad):
            is_source = expression.base == "network" and expression.offset == offset and expression.length <= size
            load, mask = (expression if is_source else None), None
        elif load is not None and isinstance(expression, Bitwise):
            mask = expression.mask
        elif load is not None and isinstance(expression, Compare):
            if expression.op == "neq":
                return _network(expression.data, mask, size)
            load = None
    return None


def _network(data: bytes, mask: bytes | None, size: int) -> IPv4Network | IPv6Network | None:
    """Whole bytes are compared where the prefix ends between two."""
    bits = 8 * len(data) if mask is None else sum(byte.bit_count() for byte in mask)
    try:
        found: IPv4Network | IPv6Network = ip_network((data.ljust(size, b"\0"), bits), strict=False)
    except ValueError:
        return None
    return found


def _read_legacy(version: int, deadline: Deadline) -> str:
    """The table nat of legacy iptables, "" if the kernel does not have it."""
    if not in_use(version, "legacy") or "nat" not in _words(_TABLES_FILE[version]):
        return ""
    return run_program([find_iptables(version, "legacy", "-save"), "-t", "nat"], b"", deadline).decode(errors="replace")


def _words(path: str) -> Iterable[str]:
    try:
        with open(path) as file:
            return file.read().split()
    except OSError:
        return ()
