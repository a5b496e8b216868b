"""The workloads of this node that BGPPeers are for: their labels, and the addresses at which they find the host.

Rule: without such a BGPPeer nothing is followed and nothing is read. A workload's interface has the peering address
while the workload is a peer; what an earlier run gave to an interface is known by being the peering address.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.last_good import LastGoodCaches
from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.link_addresses import LinkAddress, apply_link_addresses
from cni_calico.model.documents.codec import decode_resource
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import Address
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.peers import Peer
from cni_calico.nodeagent.bgp.config.workloads import LocalWorkload, describe_workload
from cni_calico.nodeagent.view.present import select_present
from cni_calico.nodeagent.view.snapshot import Snapshot

_LOOKS = 15  # for an interface that does not come; others' changes bring the next look
ProfileLabels = Mapping[str, str]


def _labels(item: Versioned) -> ProfileLabels:
    given = decode_resource(item.key, item.value).spec.get("labelsToApply")
    return {str(key): str(value) for key, value in given.items()} if isinstance(given, Mapping) else {}


class LocalWorkloads:
    """``changed`` is called from other threads; everything else is for one thread."""

    def __init__(self, store: Callable[[], Datastore], changed: Callable[[], None]) -> None:
        self._store, self._changed = store, changed
        self._kept: LastGoodCaches | None = None
        self._profiles: Cache[ProfileLabels] | None = None
        self._given: set[LinkAddress] = set()
        self._leaving: set[LinkAddress] = set()
        self._missing, self._looks = 0, 0  # endpoints without their interface, and how often that was seen
        self.waits = False  # for the interface of a workload that is being added, or the end of a session

    def stop(self) -> None:
        if self._kept is not None:
            self._kept.stop()
        self._kept = self._profiles = None

    def read(
        self, snapshot: Snapshot, interfaces: Iterable[HostInterface], *, wanted: bool, deadline: Deadline
    ) -> tuple[LocalWorkload, ...]:
        """The workloads that have their interface. Raises DatastoreError, DeadlineExceeded."""
        self.waits = False
        if not wanted:
            self.stop()
            return ()
        if self._kept is None or self._profiles is None:
            self._kept = LastGoodCaches(self._store(), self._changed)
            self._profiles = self._kept.follow(ResourceList("Profile"), _labels)
        self._profiles.wait_synced(deadline)
        known = self._kept.records(self._profiles).items()
        profiles = {key.name: labels for key, labels in known if isinstance(key, ResourceKey)}
        present = select_present(snapshot.endpoints, interfaces)
        missing = len(snapshot.endpoints) - len(present)
        self._missing, self._looks = missing, self._looks + 1 if missing == self._missing else 0
        self.waits = bool(missing) and self._looks < _LOOKS
        return tuple(describe_workload(name, endpoint, profiles) for name, endpoint in sorted(present.items()))

    def keep_addresses(
        self,
        peers: Iterable[Peer],
        peering: Iterable[Address],
        read_interfaces: Callable[[Deadline], Iterable[HostInterface]],
        prefixes: tuple[str, ...],
        deadline: Deadline,
    ) -> list[BgpProblem]:
        """Give the peers' interfaces their peering address, and take it away from others, of which BIRD has taken leave
        by the second time; returns what failed. Call it when BIRD knows its peers.
        """
        wanted = {(peer.at[0], peer.at[1]): peer for peer in peers if peer.at is not None}
        known = set(peering)
        if not wanted and not self._given and not known:
            return []
        there = {
            (interface.name, address.ip)
            for interface in read_interfaces(deadline)
            if interface.name.startswith(prefixes)
            for address in interface.addresses
        }
        stale = {one for one in there if one not in wanted and (one in self._given or one[1] in known)}
        add = [one for one in wanted if one not in there]
        left, self._leaving = stale & self._leaving, stale
        self.waits = self.waits or bool(stale - left)
        try:
            failed = apply_link_addresses(add, sorted(left, key=str), deadline)
        except KernelError as e:
            return [BgpProblem("BGPConfiguration default", f"workloads do not find this host: {e}")]
        self._given = set(wanted) | (stale - left)
        return [BgpProblem(wanted[one].origin if one in wanted else one[0], str(error)) for one, error in failed]
