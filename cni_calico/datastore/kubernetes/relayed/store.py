"""The Kubernetes datastore as an agent follows it: records that all nodes read come from a relay, all others from the
API server.

Rule: only lists and watches of whole collections are relayed. This node's own records, single records and writes go to
the API server, so that no decision depends on a relay's knowledge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cni_calico.datastore.interface import WHOLE, Listing, Reading, Revision
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.layout import Collection, is_of_custom
from cni_calico.datastore.kubernetes.login import read_file
from cni_calico.datastore.kubernetes.pages import Pages
from cni_calico.datastore.kubernetes.relayed.link import RelayLink
from cni_calico.datastore.kubernetes.relayed.served import HOLDERS_QUERY, SERVED, affinity_query, order_of_version
from cni_calico.datastore.kubernetes.relayed.stream import RelayedStream
from cni_calico.datastore.kubernetes.relayed.targets import RelayTargets
from cni_calico.datastore.kubernetes.store import KubernetesStore, listing_of
from cni_calico.datastore.kubernetes.watch import KubernetesWatch
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable, DeadlineExceeded
from cni_calico.model.access import KubernetesAccess, RelayAccess
from cni_calico.model.keys import BlockList, ListKey, ResourceList
from cni_calico.model.names import DEFAULT_PREFIX

PAUSE_S = 0.3
CHOICE_S = 10.0


class RelayedStore(KubernetesStore):
    """``tell(why)`` is called when no relay answers, and with "" when one does."""

    def __init__(
        self,
        access: KubernetesAccess,
        relay: RelayAccess,
        tell: Callable[[str], None],
        *,
        veth_prefix: str = DEFAULT_PREFIX,
        direct_after_s: float | None = None,
        probe_s: float | None = None,
    ) -> None:
        super().__init__(access, read=read_file, veth_prefix=veth_prefix)
        self._node_count = 100  # until the number of nodes is known
        self._seen: dict[str, int] = {}
        times = {"direct_after_s": direct_after_s, "probe_s": probe_s}
        given = {name: seconds for name, seconds in times.items() if seconds is not None}
        self.link = RelayLink(RelayTargets(relay, self.api), tell, lambda: self._node_count, **given)
        self.lists = 0  # through a relay

    def close(self) -> None:
        self.link.stop()
        super().close()

    def relays(self, listing: ListKey) -> bool:
        """Whether a relay serves the listing."""
        if isinstance(listing, ResourceList) and (listing.namespace or listing.name_prefix):
            return False
        if is_of_custom(listing):
            self.group.choose(Deadline.after(CHOICE_S))  # of a group that is not this cluster's a relay knows nothing
        return all(each.path in SERVED and not each.query for each in self.collections_of(listing))

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        if revision is not None or not self.relays(listing):
            return super().list(listing, deadline, revision=revision, reading=reading)
        again = any(self._seen.get(collection.url()) for collection in self._collections(listing))
        while True:
            shown = ""
            try:
                target = self.link.list_target(deadline)
                if target is None:
                    break
                shown, api = target
                try:
                    found = self._list_at(api, listing, deadline, reading)
                finally:
                    api.close()
                self.link.worked()
                return found
            except (DatastoreUnavailable, DatastoreDenied, DeadlineExceeded) as e:
                self.link.failed(shown, e)
                if again:
                    break  # what this process has already seen takes precedence
                if deadline.remaining_s() <= PAUSE_S:
                    raise
                time.sleep(PAUSE_S)
        if isinstance(listing, BlockList) and listing.owner:
            return Listing([], "0")  # without a relay the list of all blocks has the whole blocks
        return super().list(listing, deadline, reading=reading)

    def _list_at(self, api: KubernetesAPI, listing: ListKey, deadline: Deadline, reading: Reading) -> Listing:
        """Raises DatastoreError, DeadlineExceeded."""
        parts: list[Pages] = []
        standing: list[str] = []
        for collection in self._collections(listing):
            pages = Pages(api, None, collection, listing, reading, self.corrupt)
            standing.append(pages.read_cached(str(self._seen.get(collection.url(), 0)), deadline))
            self._note(collection, standing[-1])
            parts.append(pages)
        self.lists += 1
        found = listing_of(parts, standing, reading)
        if isinstance(listing, ResourceList) and listing.kind == "Node":
            self._node_count = len(found.items)
        return found

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> KubernetesWatch:
        if not self.relays(listing):
            return super().watch(listing, revision, unread_from=unread_from)
        has_direct = not (isinstance(listing, BlockList) and listing.owner)

        def follow(collection: Collection, position: str) -> RelayedStream:
            return RelayedStream(
                self.link,
                self.api,
                collection,
                position,
                has_direct=has_direct,
                reached=lambda reached: self._note(collection, reached),
                unread_from=unread_from,
            )

        return KubernetesWatch(self.api, listing, self._collections(listing), revision, self.corrupt, follow=follow)

    def _note(self, collection: Collection, version: str) -> None:
        """Remember that this process has seen the collection at this resourceVersion: later lists must not be older."""
        url = collection.url()
        self._seen[url] = max(self._seen.get(url, 0), order_of_version(version))

    def _collections(self, listing: ListKey) -> Sequence[Collection]:
        found = self.collections_of(listing)
        if isinstance(listing, BlockList) and listing.owner:
            return [replace(each, query=affinity_query(listing.owner)) for each in found]
        if isinstance(listing, BlockList) and listing.holders:
            return [replace(each, query=HOLDERS_QUERY) for each in found]
        return found
