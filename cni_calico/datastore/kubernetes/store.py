"""The Kubernetes datastore: Calico's records as custom resources, and as parts of Pods and Nodes.

Rule: one record per commit, with compare-and-swap by the API server. Documents have etcd's form here as everywhere
(model/kubernetes/ translates).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cni_calico.datastore.encoding import plan_commit
from cni_calico.datastore.interface import (
    WHOLE,
    CommitConflict,
    Committed,
    Document,
    Listing,
    Reading,
    Revision,
    RoundTrips,
    Versioned,
    Write,
)
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.borrowed import NodeRecords, PodRecords, ProfileRecords
from cni_calico.datastore.kubernetes.custom import CustomRecords, Later, conflict
from cni_calico.datastore.kubernetes.group import GroupChoice
from cni_calico.datastore.kubernetes.layout import (
    KUBERNETES_KINDS,
    NAMESPACE,
    Collection,
    is_custom,
    is_of_custom,
    pod_of_prefix,
    select_collections,
    unlabelled_affinities,
)
from cni_calico.datastore.kubernetes.login import Read, read_file
from cni_calico.datastore.kubernetes.pages import Pages
from cni_calico.datastore.kubernetes.revision import resource_version
from cni_calico.datastore.kubernetes.watch import KubernetesWatch
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, TryAgain
from cni_calico.model.access import KubernetesAccess
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import EverythingList, Key, ListKey, ResourceKey, ResourceList, etcd_path
from cni_calico.model.kubernetes.groups import CUSTOM, ApiGroup
from cni_calico.model.names import DEFAULT_PREFIX

_ATTEMPTS = 10
_CLUSTER = ResourceKey("ClusterInformation", "default")


def _ignore(key: Key, why: str) -> None:
    pass


class KubernetesStore:
    """A Datastore (see interface.py) in the API server that ``access`` names. Revisions are texts.

    ``read`` opens the files that ``access`` names; ``veth_prefix`` is the prefix of host interfaces' names;
    ``corrupt(key, why)`` is called for records left out of lists and watches.
    """

    kind = "kubernetes"
    max_commit = 1

    def __init__(
        self,
        access: KubernetesAccess,
        *,
        read: Read = read_file,
        veth_prefix: str = DEFAULT_PREFIX,
        corrupt: Callable[[Key, str], None] = _ignore,
    ) -> None:
        self.api = KubernetesAPI(access, read=read)
        self.corrupt = corrupt
        self._prefix = veth_prefix
        self.group = GroupChoice(self.api)
        self._later: Later | None = None
        self._pods = PodRecords(self.api, veth_prefix)
        self._nodes = NodeRecords(self.api)
        self._profiles = ProfileRecords(self.api)

    @property
    def identity(self) -> str:
        return f"kubernetes:{self.api.identity}"

    @property
    def round_trips(self) -> RoundTrips:
        return self.api.round_trips

    def close(self) -> None:
        self.api.close()

    def finish_by(self, later: Later) -> None:
        """Have ``later`` finish the deletion of handles that are marked as deleted, which count as gone already."""
        self._later = later

    def _records(self, group: ApiGroup) -> CustomRecords:
        return CustomRecords(self.api, group, self._later)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get(self, key: Key, deadline: Deadline) -> Versioned | None:
        if is_custom(key):
            found = self.group.carry_out(lambda group: self._records(group).read(key, deadline), deadline)
            if found is None and key == _CLUSTER:
                self.group.require_records(deadline)
            return found
        assert isinstance(key, ResourceKey)
        if key.kind == "WorkloadEndpoint":
            return self._pods.read(key, deadline)
        if key.kind == "Node":
            return self._nodes.read(key, deadline)
        if key.kind == NAMESPACE:
            return self._profiles.read_namespace(key, deadline)
        if key.kind in KUBERNETES_KINDS:
            return self._profiles.read_own(key, deadline)
        return self._profiles.read(key, deadline)

    def get_many(self, keys: Sequence[Key], deadline: Deadline) -> Sequence[Versioned | None]:
        return [self.get(key, deadline) for key in keys]

    def list(
        self, listing: ListKey, deadline: Deadline, *, revision: Revision | None = None, reading: Reading = WHOLE
    ) -> Listing:
        single = pod_of_prefix(listing) if isinstance(listing, ResourceList) and revision is None else None
        if single is not None:
            found = self._pods.read(single, deadline)
            return Listing([], "") if found is None else Listing([found], found.revision)

        def read(group: ApiGroup) -> Listing:
            parts, standing = [], []
            for collection in select_collections(group, listing, self._prefix):
                pages = Pages(self.api, self._records(group), collection, listing, reading, self.corrupt)
                standing.append(pages.read(resource_version(revision), deadline))
                parts.append(pages)
            return listing_of(parts, standing, reading)

        return self.group.carry_out(read, deadline) if is_of_custom(listing) else read(CUSTOM)

    def unlabelled_affinities(self, deadline: Deadline) -> Sequence[Versioned]:
        """Block affinities without the labels by which listings select: older versions wrote them without."""

        def read(group: ApiGroup) -> Sequence[Versioned]:
            collection = unlabelled_affinities(group)
            pages = Pages(self.api, self._records(group), collection, EverythingList(), WHOLE, self.corrupt)
            pages.read("", deadline)
            return pages.items

        return self.group.carry_out(read, deadline)

    def watch(self, listing: ListKey, revision: Revision, *, unread_from: int | None = None) -> KubernetesWatch:
        from cni_calico.datastore.kubernetes.watch import KubernetesWatch

        return KubernetesWatch(
            self.api, listing, self.collections_of(listing), revision, self.corrupt, unread_from=unread_from
        )

    def collections_of(self, listing: ListKey) -> Sequence[Collection]:
        """Where a listing's records are, for a watch: it begins where a list has ended, so the group is known."""
        return select_collections(self.group.known or CUSTOM, listing, self._prefix)

    def rehearse_create(self, key: Key, value: Document, deadline: Deadline) -> None:
        """Have the API server check a record that is kept as a custom resource. Raises DatastoreError."""
        self.group.carry_out(lambda group: self._records(group).rehearse_create(key, value, deadline), deadline)

    # -- writing ------------------------------------------------------------------------------------------------------

    def commit(self, writes: Sequence[Write], deadline: Deadline) -> Committed:
        plan_commit(writes, self.max_commit)
        [write] = writes
        if write.op == "put":
            return self._put(write, deadline)
        if write.op == "remove":
            return self._remove(write, deadline)
        if write.op == "expect":
            return self._expect(write, deadline)
        return self._apply(write, deadline)

    def commit_each(self, writes: Sequence[Write], deadline: Deadline) -> Sequence[Committed | CalicoError]:
        """A separate commit for each, several at a time: its result or its error."""
        from cni_calico.datastore.overlapped import run_each

        return run_each(writes, lambda write: self.commit((write,), deadline))

    def _apply(self, write: Write, deadline: Deadline) -> Committed:
        if write.op == "delete":
            return self._delete(write, deadline)
        assert write.value is not None
        if write.op == "create":
            stored = self._create(write.key, write.value, deadline)
        else:
            stored = self._update(write.key, write.value, write.revision, write.uid, deadline)
        return Committed(stored.revision, (stored,))

    def _create(self, key: Key, value: Document, deadline: Deadline) -> Versioned:
        if is_custom(key):
            return self.group.carry_out(lambda group: self._records(group).create(key, value, deadline), deadline)
        assert isinstance(key, ResourceKey)
        if key.kind == "WorkloadEndpoint":
            return self._pods.create(key, value, deadline)
        if key.kind == "Node":
            return self._nodes.create(key, value, deadline)
        raise self._profiles.refuse(key)

    def _update(self, key: Key, value: Document, revision: Revision | None, uid: str, deadline: Deadline) -> Versioned:
        if is_custom(key):
            return self.group.carry_out(
                lambda group: self._records(group).update(key, value, revision, uid, deadline), deadline
            )
        assert isinstance(key, ResourceKey)
        if key.kind == "WorkloadEndpoint":
            return self._pods.update(key, value, revision, uid, deadline)
        if key.kind == "Node":
            return self._nodes.update(key, value, revision, uid, deadline)
        raise self._profiles.refuse(key)

    def _delete(self, write: Write, deadline: Deadline) -> Committed:
        """The ``stored`` of the result has the pod without its endpoint; for other kinds it is empty."""
        key = write.key
        if is_custom(key):
            return Committed(
                self.group.carry_out(
                    lambda group: self._records(group).delete(key, write.revision, write.uid, write.was, deadline),
                    deadline,
                )
            )
        assert isinstance(key, ResourceKey)
        if key.kind == "WorkloadEndpoint":
            cleared = self._pods.delete(key, write.revision, write.uid, deadline)
            return Committed(write.revision or "") if cleared is None else Committed(cleared.revision, (cleared,))
        if key.kind == "Node":
            raise self._nodes.refuse(key)
        raise self._profiles.refuse(key)

    def _put(self, write: Write, deadline: Deadline) -> Committed:
        assert write.value is not None
        current = self.get(write.key, deadline)
        for _ in range(_ATTEMPTS):
            try:
                if current is None:
                    stored = self._create(write.key, write.value, deadline)
                else:
                    stored = self._update(write.key, write.value, current.revision, current.uid, deadline)
                return Committed(stored.revision, (stored,))
            except CommitConflict as e:
                current = e.failed[0].current
        raise TryAgain(f"cannot write {describe(write.key)}: it keeps changing")

    def _remove(self, write: Write, deadline: Deadline) -> Committed:
        current = self.get(write.key, deadline)
        for _ in range(_ATTEMPTS):
            if current is None:
                return Committed("")
            try:
                return self._apply(write.delete(current), deadline)
            except CommitConflict as e:
                current = e.failed[0].current
        raise TryAgain(f"cannot remove {describe(write.key)}: it keeps changing")

    def _expect(self, write: Write, deadline: Deadline) -> Committed:
        current = self.get(write.key, deadline)
        found = None if current is None else str(current.revision)
        if found != (None if write.revision is None else str(write.revision)):
            raise conflict(write.key, current)
        return Committed(found or "")


def _order(key: Key) -> str:
    if isinstance(key, ResourceKey) and key.kind in KUBERNETES_KINDS:
        return f"{key.namespace}/{key.name}"
    return etcd_path(key)


def listing_of(parts: Sequence[Pages], standing: Sequence[str], reading: Reading) -> Listing:
    """The records of several collections as one list; ``standing``: the resourceVersion of each."""
    items = [item for pages in parts for item in pages.items]
    if reading.ordered:
        items.sort(key=lambda item: _order(item.key))
    return Listing(items, _listing_revision(standing), [each for pages in parts for each in pages.unreadable])


def _listing_revision(standing: Sequence[str]) -> str:
    """The revision from which a watch misses nothing: the position in each collection, and the earliest of them for
    all.
    """
    known = [version for version in standing if version]
    earliest = min(known, key=lambda version: (len(version), version)) if known else ""
    if len(standing) == 1:
        return earliest
    return f"{earliest}@{','.join(version or earliest for version in standing)}"
