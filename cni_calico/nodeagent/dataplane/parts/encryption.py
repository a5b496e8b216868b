"""Encryption between nodes, as long as there is any.

Rule: a node without it imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cni_calico.deadline import Deadline
from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Part, Pass


class Encryption:
    name = "encryption"

    def __init__(self, log: Log, now: Callable[[], float]) -> None:
        self._log, self._now = log, now
        self._work: Part | None = None

    def wants(self, changed: Collection[str]) -> bool:
        return self._work is not None and self._work.wants(changed)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if self._work is None:
            if not desired.encryption:
                return
            from cni_calico.nodeagent.dataplane.parts.wireguard import Wireguard

            self._work = Wireguard(self._log, self._now)
        self._work.apply(desired, felix, deadline, done, full)
