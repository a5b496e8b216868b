"""Routing rules, as RoutingRule values: read, added, removed.

Rule: a rule that the value cannot say is somebody else's and is not seen here. Removing one that is absent is success.
"""

from __future__ import annotations

from errno import EAFNOSUPPORT, EEXIST, ENOENT, EOPNOTSUPP

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.rules import add_rule, decode_rule, delete_rule, list_rules
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.netlink.wire import Request
from cni_calico.model.host import RoutingRule


def read_rules(family: int, deadline: Deadline) -> list[RoutingRule]:
    """Of IPv4 (4) or IPv6 (6); none on a kernel without IPv6. Raises KernelError."""
    with Rtnl() as rtnl:
        try:
            payloads = rtnl.dump(list_rules(family), deadline)
        except KernelError as e:
            if e.errno not in (EAFNOSUPPORT, EOPNOTSUPP):
                raise
            return []
    return [rule for rule in map(decode_rule, payloads) if rule is not None]


def ensure_rule(rule: RoutingRule, deadline: Deadline) -> None:
    """Raises KernelError."""
    _carry_out(add_rule(rule), EEXIST, deadline)


def remove_rule(rule: RoutingRule, deadline: Deadline) -> None:
    """Raises KernelError."""
    _carry_out(delete_rule(rule), ENOENT, deadline)


def _carry_out(request: Request, tolerated: int, deadline: Deadline) -> None:
    with Rtnl() as rtnl:
        error = rtnl.submit((request,), deadline)[0].error
    if error is not None and error.errno != tolerated:
        raise error
