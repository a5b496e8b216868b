"""Encryption between nodes, as long as there is any: what comes before the plain routes, and what comes after them.

Rule: a node without it imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Pass


class _EncryptionWork(Protocol):
    """parts/wireguard.py"""

    def wants(self, changed: Collection[str]) -> bool: ...

    def begin(self, desired: Desired, deadline: Deadline, done: Pass, full: bool) -> None: ...

    def finish(self, desired: Desired, deadline: Deadline, done: Pass, full: bool) -> None: ...


class Encryption:
    """Devices, peers and what leads to them."""

    name = "encryption"

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self._log, self._now = log, now
        self.work: _EncryptionWork | None = None

    def wants(self, changed: Collection[str]) -> bool:
        return self.work is not None and self.work.wants(changed)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if self.work is None:
            if not desired.encryption:
                return
            from cni_calico.nodeagent.dataplane.parts.wireguard import Wireguard

            self.work = Wireguard(self._log, self._now)
        self.work.begin(desired, deadline, done, full)


class AfterRoutes:
    """What must not go before the plain routes have changed."""

    name = "encryption after the routes"

    def __init__(self, first: Encryption) -> None:
        self._first = first

    def wants(self, changed: Collection[str]) -> bool:
        return self._first.wants(changed)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if self._first.work is not None:
            self._first.work.finish(desired, deadline, done, full)
