"""Single addresses that an interface of the host has beside others: added, removed.

Rule: an interface that is gone has none; a failure of one does not stop the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from errno import EADDRNOTAVAIL, ENODEV

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.netlink.addresses import add_address, delete_address
from cni_calico.kernel.netlink.links import decode_listed, list_links
from cni_calico.kernel.netlink.routes import SCOPE_LINK, SCOPE_UNIVERSE
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.model.resources import Address

LinkAddress = tuple[str, Address]


def apply_link_addresses(
    add: Sequence[LinkAddress], remove: Sequence[LinkAddress], deadline: Deadline
) -> list[tuple[LinkAddress, KernelError]]:
    """/32 or /128, in IPv4 of scope link; returns what failed. Raises KernelError if nothing can be done."""
    if not add and not remove:
        return []
    failures = []
    with Rtnl() as rtnl:
        indexes = {link.name: link.ifindex for link in map(decode_listed, rtnl.dump(list_links(), deadline))}
        for asked, is_new in ((remove, False), (add, True)):
            ready = [one for one in asked if one[0] in indexes]
            requests = [
                add_address(indexes[name], name, address, scope=SCOPE_LINK if address.version == 4 else SCOPE_UNIVERSE)
                if is_new
                else delete_address(indexes[name], name, address)
                for name, address in ready
            ]
            for one, outcome in zip(ready, rtnl.submit(requests, deadline) if requests else (), strict=False):
                if outcome.error is not None and outcome.error.errno not in (EADDRNOTAVAIL, ENODEV):
                    failures.append((one, outcome.error))
    return failures
