"""Limits of bandwidth between two passes of the data plane.

Rule: a changed limit waits for nobody else's: not for the rest after passes that have worked for long, and not for
limits of pods that have just been made, which come in pieces. It takes as long on a full node as on an empty one: the
interfaces are those of the last pass, and only a changed one is looked at. What changed limits use of the processor has
a rest of its own, so that who changes his all the time takes no more than a tenth of one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.log import Log
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import Key
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.bandwidth import with_changed
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.pass_schedule import GATHER_S, PassRest
from cni_calico.nodeagent.dataplane.passes import Pass
from cni_calico.nodeagent.view.present import select_present

DesiredNow = tuple[Desired, FelixSettings]
PART = "bandwidth"
LOOK_S = 60.0
_STOP_S = 0.1  # so often it asks whether it is to end


class Applies(Protocol):
    """What carries out a desired state."""

    def apply(
        self, desired: Desired, felix: FelixSettings, deadline: Deadline, *, full: bool, only: str = ""
    ) -> Pass: ...


class ChangedLimits:
    """For one thread. ``changed`` is set by others when some record may be another one; ``records`` are this node's
    endpoints as they are now.
    """

    def __init__(
        self,
        changed: threading.Event,
        records: Callable[[], Mapping[Key, WorkloadEndpoint]],
        parts: Applies,
        log: Log,
    ) -> None:
        self._changed = changed
        self._records, self._parts, self._log = records, parts, log
        self._endpoints: Sequence[WorkloadEndpoint] = ()  # as they were when limits were looked at last
        self._interfaces: Sequence[HostInterface] = ()
        self._taken: DesiredNow | None = None  # None: the next pass brings all
        self._left = False
        self._rest, self._next = PassRest(GATHER_S), 0.0

    def passed(
        self,
        endpoints: Sequence[WorkloadEndpoint] = (),
        interfaces: Sequence[HostInterface] = (),
        taken: DesiredNow | None = None,
        left: int = 0,
    ) -> None:
        """A pass has ended that looked at these endpoints and interfaces, carried out ``taken`` (None: it could not),
        and left so many limits.
        """
        self._endpoints, self._interfaces, self._taken, self._left = endpoints, interfaces, taken, bool(left)

    def rest(self, pause_s: float, stopping: threading.Event) -> bool:
        """Wait until the next pass may begin. Returns whether there must be one, because a limit could not be set."""
        until, had = time.monotonic() + pause_s, self._taken is not None
        while not stopping.is_set():
            now = time.monotonic()
            if self.bring_changed():
                continue
            if self._left:
                self._bring()
            elif now >= until:
                break
            elif self._taken is None:
                stopping.wait(until - now)
            elif now < self._next:
                stopping.wait(min(until, self._next) - now)
            else:
                self._changed.wait(min(until - now, _STOP_S))
        return had and self._taken is None

    def bring_changed(self) -> bool:
        """Set limits that are others than at the last look; returns whether there were any."""
        if self._taken is None or not self._changed.is_set() or time.monotonic() < self._next:
            return False
        self._changed.clear()
        endpoints = with_limits_of(self._endpoints, self._records())
        if endpoints is self._endpoints:
            return False
        used = time.thread_time()
        desired, felix = self._taken
        pairs = zip(endpoints, self._endpoints, strict=True)
        names = {one.interface_name for one, former in pairs if one is not former}
        interfaces = [interface for interface in self._interfaces if interface.name in names]
        present = select_present([one for one in endpoints if one.interface_name in names], interfaces)
        bandwidth = with_changed(desired.bandwidth, present, interfaces)
        self._endpoints, self._taken = endpoints, (replace(desired, bandwidth=bandwidth), felix)
        self._bring()
        now = time.monotonic()
        pause_s = self._rest.pause_s(now, time.thread_time() - used)
        self._next = now if pause_s <= GATHER_S else now + pause_s
        return True

    def _bring(self) -> None:
        """A piece of what has been taken."""
        assert self._taken is not None
        done = self._parts.apply(*self._taken, Deadline.after(LOOK_S), full=False, only=PART)
        for text in done.changed:
            self._log.info(text)
        self._left = bool(done.limits_left)
        if done.failed:
            self._taken, self._left = None, False


def with_limits_of(
    endpoints: Sequence[WorkloadEndpoint], records: Mapping[Key, WorkloadEndpoint]
) -> Sequence[WorkloadEndpoint]:
    """These endpoints with the limits that their records have; the same sequence if they have them already."""
    if not any(one.qos_controls for one in (*endpoints, *records.values())):
        return endpoints
    now = {_name(one): one for one in records.values()}
    newer = {i: now[_name(one)].qos_controls for i, one in enumerate(endpoints) if _name(one) in now}
    changed = {i: limits for i, limits in newer.items() if limits != endpoints[i].qos_controls}
    if not changed:
        return endpoints
    return tuple(replace(one, qos_controls=changed[i]) if i in changed else one for i, one in enumerate(endpoints))


def _name(endpoint: WorkloadEndpoint) -> tuple[str, str]:
    return endpoint.metadata.namespace, endpoint.metadata.name
