"""The counters of rules. Rule: only what a rule with a comment has counted is told; nothing is reset."""

from __future__ import annotations

from errno import ENOENT

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.nf_tables.objects import GETRULE, RULE_CHAIN, RULE_EXPRESSIONS, TABLE_NAME, decode_rule
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.kernel.netlink.wire import list_elements
from cni_calico.netfilter.tables import TableId

_NAME, _DATA, _PACKETS = 1, 2, 2  # of an expression, of a counter


def read_counters(netlink: Nfnetlink, table: TableId, chain: str, deadline: Deadline) -> dict[str, int]:
    """The packets that the rules of a chain have counted, by the rules' comments; nothing if there is no such chain.
    Raises KernelError, DeadlineExceeded.
    """
    body = general(table.family) + wire.text(TABLE_NAME, table.name) + wire.text(RULE_CHAIN, chain)
    try:
        replies = netlink.dump(GETRULE, body, f"read the counters of {chain}", deadline)
    except KernelError as e:
        if e.errno == ENOENT:
            return {}
        raise
    found: dict[str, int] = {}
    for payload in replies:
        a = wire.attributes(payload, GENERAL_BYTES)
        if wire.name(a.get(TABLE_NAME)) != table.name or wire.name(a.get(RULE_CHAIN)) != chain:
            continue  # a kernel that does not choose
        for element in list_elements(a.get(RULE_EXPRESSIONS, b"")):
            expression = wire.attributes(element)
            if wire.name(expression.get(_NAME)) == "counter":
                counted = wire.attributes(expression.get(_DATA, b"")).get(_PACKETS, b"")
                comment = decode_rule(a).comment
                found[comment] = found.get(comment, 0) + int.from_bytes(counted, "big")
    return found
