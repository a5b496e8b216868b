"""The host's interfaces as far as policy depends on them: which exist, are up, and what their aliases say.

Rule: for the engine's thread; the interfaces are read once, and then known from the kernel's reports. If reports were
lost, all are read again. Only those that exist are kept: the names of interfaces are unlimited.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.filter_events import Happened, SeenLink
from cni_calico.nodeagent.policing.feed.addresses import HostAddresses
from cni_calico.policy.endpoints import PresentInterface

_READ_S = 5.0


class Interfaces:
    """``addresses``: of this host, which are watched only while they matter."""

    def __init__(self, watch_addresses: Callable[[], None] = lambda: None) -> None:
        self.addresses = HostAddresses(watch_addresses)
        self._known: dict[str, SeenLink] = {}
        self._names: dict[int, str] = {}
        self._changed: set[str] = set()
        self._unsure, self._has_read = True, False

    def notice(self, happened: Happened) -> None:
        if happened.links is None:
            self._unsure = True
        elif not self._unsure:
            for name, link in happened.links.items():
                self._put(name, link)

    def take_changed(self) -> Mapping[str, PresentInterface | None]:
        """The interfaces that have changed since the last call, None for those that are gone. Raises KernelError if
        they could never be read.
        """
        if self._unsure:
            self._read()
        changed, self._changed = self._changed, set()
        return {name: _present(self._known.get(name)) for name in changed}

    def _read(self) -> None:
        try:
            listed = read_interfaces(Deadline.after(_READ_S))
        except KernelError:
            if not self._has_read:
                raise
            return  # the last known interfaces count; they are read again in the next round
        found = {one.name: SeenLink(one.index, one.up, one.alias) for one in listed}
        for name in self._known.keys() - found.keys():
            self._put(name, None)
        for name, link in found.items():
            self._put(name, link)
        self._unsure, self._has_read = False, True

    def is_up(self, name: str) -> bool:
        link = self._known.get(name)
        return link is not None and link.up

    def _put(self, name: str, link: SeenLink | None) -> None:
        before = self._known.get(name)
        if link == before:
            return
        if before is not None:
            self._forget(name, before)
        if link is not None:
            earlier = self._names.get(link.index)
            if earlier is not None:  # it has been renamed
                self._forget(earlier, self._known[earlier])
            self._known[name], self._names[link.index] = link, name
        self._changed.add(name)

    def _forget(self, name: str, link: SeenLink) -> None:
        del self._known[name], self._names[link.index]
        self._changed.add(name)


def _present(link: SeenLink | None) -> PresentInterface | None:
    return None if link is None else PresentInterface(link.up, link.alias)
