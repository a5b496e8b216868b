"""A part that waits until policies are in force, or until it is decided that none will be.

Rule: what upstream's agent left is removed only once our own rules exist: with two enforcers policy is only stricter,
but with none a secured cluster would be open. The same holds for its table ``calico``, which masquerading takes over,
while upstream's chains are in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cni_calico.deadline import Deadline
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.passes import Part, Pass


class AfterPolicies:
    """``may`` is called at every pass until it returns True once."""

    def __init__(self, part: Part, may: Callable[[], bool]) -> None:
        self._part = part
        self._may = may
        self._open = False

    @property
    def name(self) -> str:
        return self._part.name

    def wants(self, changed: Collection[str]) -> bool:
        return self._part.wants(changed)

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if not self._open and not self._may():
            done.pending += 1
            return
        full, self._open = full or not self._open, True
        self._part.apply(desired, felix, deadline, done, full)
