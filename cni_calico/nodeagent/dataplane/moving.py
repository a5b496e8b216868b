"""Which workloads' routes are held back or elevated because a virtual machine moves. Without one nothing is loaded.

Rule: a label of a pod on this node says whether there is anything to follow, and its name whether IPAM may say that its
machine is elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cni_calico.model.host import HostRoute
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.endpoints import NOBODY, Moves, desired_endpoint_routes
from cni_calico.nodeagent.view.snapshot import Snapshot

if TYPE_CHECKING:
    from cni_calico.nodeagent.migration.keeper import MigrationKeeper

JOB = "kubevirt.io/migrationJobUID"
LAUNCHER = "virt-launcher-"  # what the names of machines' pods begin with


@dataclass(slots=True)
class Moving:
    """For the data plane's thread; ``wake`` asks for its next pass."""

    context: Context
    wake: Callable[[], None]
    _keeper: MigrationKeeper | None = None
    _felix: FelixSettings | None = None

    def moves(self, snapshot: Snapshot, felix: FelixSettings) -> Moves:
        self._felix = felix
        away = _select_away(snapshot)
        if self._keeper is None:
            store = self.context.kubernetes_store
            if store is None or not any(JOB in endpoint.metadata.labels for endpoint in snapshot.endpoints):
                return Moves(away=away) if away else NOBODY
            from cni_calico.nodeagent.migration.keeper import MigrationKeeper

            self._keeper = MigrationKeeper(self.context, store, self.wake, self._elevated_routes)
        states = self._keeper.use(snapshot, felix.migration_convergence_s)
        withheld = frozenset(name for name, state in states.items() if state == "target")
        return Moves(withheld, frozenset(states) - withheld, away)

    def _elevated_routes(self, endpoint: WorkloadEndpoint) -> set[HostRoute]:
        assert self._felix is not None
        name = endpoint.interface_name
        if self._felix.route_sync_disabled:
            return set()
        return desired_endpoint_routes({name: replace(endpoint)}, self._felix, Moves(elevated=frozenset((name,))))


def _select_away(snapshot: Snapshot) -> frozenset[Address]:
    """PURE: the addresses of this node's workloads that another node's pod has now."""
    if not any(endpoint.pod.startswith(LAUNCHER) for endpoint in snapshot.endpoints):
        return frozenset()
    return frozenset(address for block in snapshot.blocks for address in block.away)
