"""PURE: requests about routing rules, encoded by hand, and their answers decoded.

Rule: as in kernel/netlink/links.py. Layout: linux/fib_rules.h.
"""

from __future__ import annotations

from ipaddress import ip_network
from struct import Struct

from cni_calico import faults
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.addresses import AF_INET, AF_INET6
from cni_calico.kernel.netlink.wire import NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request, attribute, u32
from cni_calico.model.host import RoutingRule

RULE_ADD = faults.declare("netlink.rule-add")
RULE_DEL = faults.declare("netlink.rule-del")
RTM_NEWRULE, RTM_DELRULE, RTM_GETRULE = 32, 33, 34
_SRC, _PRIORITY, _FWMARK, _TABLE, _FWMASK = 2, 6, 10, 15, 16
_DST, _IIFNAME, _OIFNAME = 1, 3, 17
_TO_TABLE, _INVERT = 1, 2
_HEADER = Struct("=BBBBBBBBI")  # family, dst and src length, tos, table, two reserved, action, flags


def _rule(rule: RoutingRule) -> bytes:
    family = AF_INET if rule.family == 4 else AF_INET6
    table = rule.table if rule.table < 256 else 0
    length = 0 if rule.source is None else rule.source.prefixlen
    body = _HEADER.pack(family, 0, length, 0, table, 0, 0, _TO_TABLE, _INVERT * rule.invert)
    body += u32(_PRIORITY, rule.priority) + u32(_TABLE, rule.table)
    if rule.mask:
        body += u32(_FWMARK, rule.mark) + u32(_FWMASK, rule.mask)
    return body if rule.source is None else body + attribute(_SRC, rule.source.network_address.packed)


def add_rule(rule: RoutingRule) -> Request:
    return Request(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL, _rule(rule), f"add routing rule {rule}", RULE_ADD)


def delete_rule(rule: RoutingRule) -> Request:
    return Request(RTM_DELRULE, 0, _rule(rule), f"remove routing rule {rule}", RULE_DEL)


def list_rules(version: int) -> Request:
    body = _HEADER.pack(AF_INET if version == 4 else AF_INET6, 0, 0, 0, 0, 0, 0, 0, 0)
    return Request(RTM_GETRULE, NLM_F_DUMP, body, "list routing rules")


def decode_rule(payload: bytes) -> RoutingRule | None:
    """None for a rule that a RoutingRule cannot say. Raises KernelError."""
    if len(payload) < _HEADER.size:
        raise wire.malformed("a routing rule", f"{len(payload)} bytes")
    family, dst, length, tos, table, _, _, action, flags = _HEADER.unpack_from(payload)
    found = wire.attributes(payload, _HEADER.size)
    if family not in (AF_INET, AF_INET6) or dst or tos or action != _TO_TABLE or flags & ~_INVERT:
        return None
    if found.keys() & {_DST, _IIFNAME, _OIFNAME}:
        return None
    source = None
    if length:
        packed = found.get(_SRC, b"")
        if len(packed) != (4 if family == AF_INET else 16) or length > len(packed) * 8:
            raise wire.malformed("a routing rule", f"a source of {len(packed)} bytes")
        source = ip_network((packed, length), strict=False)
    return RoutingRule(
        family=4 if family == AF_INET else 6,
        priority=wire.number(found.get(_PRIORITY)),
        table=wire.number(found.get(_TABLE), table),
        mark=wire.number(found.get(_FWMARK)),
        mask=wire.number(found.get(_FWMASK), 0),
        invert=bool(flags & _INVERT),
        source=source,
    )
