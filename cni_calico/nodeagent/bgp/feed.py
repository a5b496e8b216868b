"""The BGP records, in the versions that this node last could read, and the Secrets and services that they name.

Rule: a record that cannot be read never counts as absent: its last readable version counts, and one that this process
has never read is ``unread``. It follows the records from its start until ``stop``.
"""

from __future__ import annotations

from collections.abc import Callable

from cni_calico.datastore.kubernetes.login import own_namespace
from cni_calico.datastore.last_good import LastGoodCaches
from cni_calico.datastore.remembered import decoding
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_affinity, decode_resource, describe
from cni_calico.model.keys import AffinityKey, AffinityList, Key, ResourceKey, ResourceList
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.records import BgpRecords, parse_records
from cni_calico.nodeagent.bgp.config.services import Service
from cni_calico.nodeagent.bgp.config.snapshot import LocalBlock, select_blocks
from cni_calico.nodeagent.bgp.kubernetes import AnnouncedServices, Secrets
from cni_calico.nodeagent.context.agent import Context

CONFIGURATION, PEER, FILTER = "BGPConfiguration", "BGPPeer", "BGPFilter"


class BgpFeed:
    """``changed`` is called from other threads; everything else is for one thread."""

    def __init__(self, context: Context, node: str, changed: Callable[[], None]) -> None:
        self._node = node
        self._kept = LastGoodCaches(context.followed, changed)
        self._resources = {
            kind: self._kept.follow(ResourceList(kind), decoding(decode_resource))
            for kind in (CONFIGURATION, PEER, FILTER)
        }
        self._affinities = self._kept.follow(AffinityList(node), decoding(decode_affinity))
        self.secrets = Secrets(context.kubernetes_store, context.settings.namespace or own_namespace())
        self._services = AnnouncedServices(context.followed_kubernetes, changed)

    @property
    def synced(self) -> bool:
        return self._kept.synced

    def wait_synced(self, deadline: Deadline) -> None:
        for cache in self._kept.all:
            cache.wait_synced(deadline)

    def stop(self) -> None:
        self._kept.stop()
        self._services.stop()

    def read(self) -> tuple[BgpRecords, tuple[LocalBlock, ...]]:
        """The records, and this node's blocks. Raises CorruptRecord if the node's configuration was never readable:
        without it a node would make a mesh without a password or with the wrong AS, which is worse than no BGP.
        """
        resources = [self._kept.records(cache).values() for cache in self._resources.values()]
        affinities = self._kept.records(self._affinities).items()
        for key in self.unread(CONFIGURATION):
            raise CorruptRecord(f"cannot read BGPConfiguration {key.name}: the configuration in force stays as it is")
        configurations, peers, filters = resources
        unread = [key.name for key in self.unread(FILTER)]
        blocks = select_blocks(((k, v) for k, v in affinities if isinstance(k, AffinityKey)), self._node)
        return parse_records(self._node, configurations, peers, filters, unread), blocks

    def services(self, deadline: Deadline, *, wanted: bool) -> tuple[tuple[Service, ...], list[BgpProblem]]:
        """The services, which are followed only while they are wanted."""
        if wanted:
            return self._services.read(deadline)
        self._services.stop()
        return (), []

    def unread(self, *kinds: str) -> list[ResourceKey]:
        """The records of these kinds that were never readable; other nodes' settings do not concern us."""
        found = [key for kind in kinds for key in self._kept.unread(self._resources[kind])]
        return sorted(
            (key for key in found if isinstance(key, ResourceKey) and self._concerns_us(key)),
            key=lambda key: (key.kind, key.name),
        )

    def _concerns_us(self, key: ResourceKey) -> bool:
        return key.kind != CONFIGURATION or key.name in ("default", f"node.{self._node}")

    def all_unread(self) -> list[Key]:
        return [*self.unread(*self._resources), *sorted(self._kept.unread(self._affinities), key=describe)]

    def problems(self) -> tuple[str, ...]:
        """A message for each record that cannot be read."""
        return self._kept.problems()
