"""Changes interfaces that were made by others.

Rule: an interface is identified by its index, so that another one that has taken its name is not changed; an interface
that is gone is no failure.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, LinkGone
from cni_calico.kernel.netlink.links import set_link
from cni_calico.kernel.netlink.socket import Rtnl


def set_aliases(aliases: Mapping[tuple[int, str], str], deadline: Deadline) -> list[CalicoError]:
    """Give the interfaces (index, name) these aliases; returns the failures. Raises KernelError, DeadlineExceeded."""
    if not aliases:
        return []
    requests = [set_link(index, name, alias=alias) for (index, name), alias in aliases.items()]
    with Rtnl() as rtnl:
        outcomes = rtnl.submit(requests, deadline)
    return [each.error for each in outcomes if each.error is not None and not isinstance(each.error, LinkGone)]
