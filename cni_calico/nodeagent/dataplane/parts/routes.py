"""Routes: to this node's workloads, through tunnels to other nodes, and the blackholes of our own blocks.

Rule: if something about a workload's route looks wrong, it must look wrong for ``GRACE_S`` before it is changed. The
CNI plugin adds a workload's route before its record, and our copy of the records may be slightly old: removing the
route at once would cut a pod off.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from errno import ENODEV

from cni_calico.deadline import Deadline
from cni_calico.kernel import host_routes
from cni_calico.model.host import HostRoute
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.delta import Changes, plan_routes, select_conflicts
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.endpoints import is_workload_interface
from cni_calico.nodeagent.dataplane.passes import Pass, described

GRACE_S = 10.0


class Routes:
    name = "routes"

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._grace = Grace(GRACE_S, {})

    def wants(self, changed: Collection[str]) -> bool:
        return False  # every pass reads them

    def apply(self, desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass, full: bool) -> None:
        if not desired.routes_enabled:
            done.unrouted = frozenset()
            return
        actual = host_routes.read_host_routes(deadline, names=desired.links)
        planned = plan_routes(desired.routes, actual, felix)
        conflicts = select_conflicts(planned.add, desired.routes, actual, felix)
        done.failed += [f"cannot add route {route}: the host has {there}" for route, there in conflicts.items()]
        planned = Changes(tuple(route for route in planned.add if route not in conflicts), planned.remove)
        if desired.additive:
            gone = tuple(route for route in planned.remove if is_workload_interface(route.device, felix))
            planned = Changes(planned.add, gone)
        held = {(route.dst, route.metric): route.device for route in actual}
        removed = set(planned.remove)

        def delicate(route: HostRoute) -> bool:
            if not is_workload_interface(route.device, felix):
                return False
            if route in removed:
                return True
            # it is another workload's now: one of the two records is out of date
            holder = held.get((route.dst, route.metric), "")
            return holder != route.device and is_workload_interface(holder, felix)

        ripe = self._grace.ripe(planned, delicate, self._now())
        done.pending += len(planned.add) + len(planned.remove) - len(ripe.add) - len(ripe.remove)
        failed = _change(ripe, desired, felix, deadline, done) if ripe else set()
        done.unrouted = frozenset(route.dst for route in {*failed, *conflicts})


def _change(
    ripe: Changes[HostRoute], desired: Desired, felix: FelixSettings, deadline: Deadline, done: Pass
) -> set[HostRoute]:
    """Those that failed."""
    failures = host_routes.apply_host_routes(ripe.add, ripe.remove, deadline)
    missing = [route for route, error in failures if error.errno == ENODEV]
    # an interface that was there a moment ago, or a pod's, is no failure: its notification brings the next pass
    there = set((desired.links or {}).values()).difference(desired.devices) if missing else set()
    vanished = {r for r in missing if r.device in there or is_workload_interface(r.device, felix)}
    done.failed += [str(error) for route, error in failures if route not in vanished]
    failed = {route for route, _ in failures}
    done.changed += described("route", "added", [route for route in ripe.add if route not in failed])
    done.changed += described("route", "removed", [route for route in ripe.remove if route not in failed])
    return failed


@dataclass(slots=True)
class Grace:
    """Holds changes back until they have been wanted for ``seconds`` without interruption."""

    seconds: float
    since: dict[tuple[str, HostRoute], float]

    def ripe(
        self, changes: Changes[HostRoute], delicate: Callable[[HostRoute], bool], now: float
    ) -> Changes[HostRoute]:
        """The changes that are not ``delicate``, or are no longer new; the rest is remembered for the next time."""
        seen: dict[tuple[str, HostRoute], float] = {}

        def is_ripe(kind: str, route: HostRoute) -> bool:
            if not delicate(route):
                return True
            first = seen[kind, route] = self.since.get((kind, route), now)
            return now - first >= self.seconds

        add = tuple(route for route in changes.add if is_ripe("add", route))
        remove = tuple(route for route in changes.remove if is_ripe("remove", route))
        self.since = seen
        return Changes(add, remove)
