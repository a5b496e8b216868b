"""What rules that report their decisions have counted.

Rule: a rule is known by its handle, which nobody else ever has; what is read while others change rules may lack some of
them, and a count is at most what the rule has counted when the reading is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from errno import ENOENT
from typing import NamedTuple

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.nf_tables.objects import GETRULE, RULE_EXPRESSIONS, RULE_HANDLE, TABLE_NAME
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.tables import TableId

_NAME, _DATA = 1, 2  # of an expression
_PACKETS, _GROUP, _PREFIX = 2, 1, 2  # of a counter, of a log expression
_LOG = wire.text(_NAME, "log")


class ReportingRule(NamedTuple):
    """``group``: to which it reports; ``number``: that it reports."""

    handle: int
    group: int
    number: int
    packets: int


def read_reporting(netlink: Nfnetlink, table: TableId, deadline: Deadline) -> Iterator[list[ReportingRule]]:
    """The rules of a table that count and report, part by part; nothing of a table that is not there. Do not use the
    socket for anything else before the end. Raises KernelError, DeadlineExceeded.
    """
    body = general(table.family) + wire.text(TABLE_NAME, table.name)
    try:
        for part in netlink.dump_in_parts(GETRULE, body, f"read the counters of table {table}", deadline):
            yield [rule for payload in part if _LOG in payload and (rule := _read(payload, table)) is not None]
    except KernelError as e:
        if e.errno != ENOENT:
            raise


def _read(payload: bytes, table: TableId) -> ReportingRule | None:
    a = wire.attributes(payload, GENERAL_BYTES)
    if wire.name(a.get(TABLE_NAME)) != table.name:
        return None  # a kernel that does not choose
    found: dict[str, dict[int, bytes]] = {}
    for element in list_elements(a.get(RULE_EXPRESSIONS, b"")):
        expression = wire.attributes(element)
        name = wire.name(expression.get(_NAME))
        if name in ("counter", "log"):
            found[name] = wire.attributes(expression.get(_DATA, b""))
    group = int.from_bytes(found.get("log", {}).get(_GROUP, b""), "big")
    if len(found) < 2 or not group:
        return None
    try:
        number = int(wire.name(found["log"].get(_PREFIX)), 16)
    except ValueError:
        return None
    handle, packets = (int.from_bytes(data, "big") for data in (a.get(RULE_HANDLE, b""), found["counter"][_PACKETS]))
    return ReportingRule(handle, group, number, packets)
