"""Which interface of this node has which address, as far as host endpoints depend on it.

Rule: the interfaces are read only while this node has a host endpoint, and again only when the kernel reports a change
of one that is not a workload's. Until they have been read once, nothing may be put into force.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.model.resources import Address
from cni_calico.nodeagent.policing.tables.goal import Goal

_READ_S = 5.0


class HostAddresses:
    """For the engine's thread; it reads the interfaces of that thread's network namespace. ``watch`` is called to ask
    the kernel for notifications about addresses. ``owners``: the interfaces of this host's addresses.
    """

    def __init__(self, watch: Callable[[], None]) -> None:
        self.owners: dict[Address, str] = {}
        self._watch = watch
        self._unsure = True
        self._has_read = False

    def notice(self, happened: Happened, prefixes: tuple[str, ...]) -> None:
        """Note what the kernel reported. ``prefixes``: with what the names of workloads' interfaces begin."""
        links = happened.links
        ours = links is None or any(not name.startswith(prefixes) for name in links)
        self._unsure = self._unsure or ours or happened.addresses

    def read_again(self, goal: Goal) -> None:
        """Read the interfaces again if they may have changed. Raises KernelError if they could never be read."""
        if not goal.hosts.all or not self._unsure:
            return
        self._watch()
        try:
            links = read_interfaces(Deadline.after(_READ_S))
        except KernelError:
            if not self._has_read:
                raise
            return  # the last known interfaces count; they are read again in the next round
        self._unsure, self._has_read = False, True
        self.owners = {one.ip: link.name for link in links for one in link.addresses}
        goal.use_interfaces({link.name: frozenset(one.ip.packed for one in link.addresses) for link in links})
