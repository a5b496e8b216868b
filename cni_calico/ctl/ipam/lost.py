"""What the janitor would release, and why; nothing is written.

Rule: everything is listed once and judged by these lists. Only the first hundred suspects are checked again one by one,
as the janitor does before it releases, because each check takes a request. Of the others, addresses without attributes
are only counted unless somebody asks for ``every`` one: who may have them is not in these lists. How long something
has been lost is unknown here, while the janitor waits for its grace period. If Kubernetes is not the datastore, its
pods are unknown here, and their addresses are not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.ipam.packed import Alike
from cni_calico.ctl.ipam.records import StoredItems
from cni_calico.ctl.session import Session
from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.datastore.interface import Datastore, Document, Revision, Versioned
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.group import GroupChoice
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.lost.cached_state import CachedClusterState, RecordCaches, decode
from cni_calico.ipam.lost.fresh_facts import Kubernetes
from cni_calico.ipam.lost.leaks import KINDS, Holding, Subject, judge
from cni_calico.ipam.lost.reclaim import Reclaimer
from cni_calico.ipam.lost.suspects import Suspects
from cni_calico.model.keys import Key

LostSubject = tuple[Subject, str]
SEE_ALL = "--show-problem-ips asks for each"
ASKED_AGAIN = 100
_NO_DOCUMENT: Document = {}


class _ReadRecords:
    """Of the items of one kind what is looked at, as they were read once."""

    def __init__(self, items: Iterable[Versioned], read: Callable[[Versioned], Any] = decode) -> None:
        self.entries: dict[Key, tuple[Revision, Any]] = {}
        for item in items:
            try:
                self.entries[item.key] = item.revision, read(item)
            except CorruptRecord:
                self.entries[item.key] = item.revision, None

    def get(self, key: Key) -> Versioned | None:
        found = self.entries.get(key)
        return None if found is None else Versioned(key, _NO_DOCUMENT, found[0])

    def record(self, key: Key) -> Any:
        found = self.entries.get(key)
        return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class LostThings:
    """What is lost and why, in the janitor's order; ``unasked``: how many addresses without attributes may be lost,
    too.
    """

    found: tuple[LostSubject, ...] = ()
    unasked: int = 0


def find_lost(session: Session, items: StoredItems, *, every: bool = False) -> LostThings:
    """Judged by ``read_items``. Raises DatastoreError."""
    kubernetes = _kubernetes(session)
    blocks, affinities, nodes = (_ReadRecords(items.of(kind)) for kind in ("block", "affinity", "Node"))
    handles = _ReadRecords(items.of("handle"), Alike(decode))
    # whose pods are unknown, of that one the endpoints say nothing
    endpoints = _ReadRecords(items.of("WorkloadEndpoint") if kubernetes is not None else ())
    listed = (blocks, affinities, handles, nodes, endpoints)
    own, pods = (None, endpoints) if kubernetes is not None else (endpoints, None)
    state = CachedClusterState(RecordCaches(blocks, affinities, handles, nodes, own, pods))
    suspects = Suspects(state)
    suspects.refresh([key for cache in listed for key in cache.entries], 0.0)
    due = suspects.due(0.0, 0.0)
    asker = Reclaimer(session.store, kubernetes, is_kubernetes=kubernetes is not None)
    bare = [subject for subject in due[ASKED_AGAIN:] if isinstance(subject, Holding) and subject.bare]
    asked = {*due[:ASKED_AGAIN], *(bare if every else ())}
    found = [
        (subject, asker.confirm(subject, session.deadline) if subject in asked else judge(subject, state, state.block))
        for subject in due
        if every or subject in asked or not (isinstance(subject, Holding) and subject.bare)
    ]
    lost = tuple((subject, reason) for subject, reason in found if reason)
    return LostThings(lost, 0 if every else len(bare))


def is_kubernetes(session: Session) -> bool:
    return session.store.kind == "kubernetes"


def api_of(session: Session) -> KubernetesAPI:
    """The API server, if the datastore is Kubernetes."""
    return kubernetes_store(session).api


def group_of(session: Session) -> GroupChoice:
    """The API group of the records, if the datastore is Kubernetes."""
    return kubernetes_store(session).group


def kubernetes_store(session: Session) -> KubernetesStore:
    """The datastore, if it is Kubernetes."""
    from cni_calico.datastore.kubernetes.store import KubernetesStore

    store = _innermost(session.store)
    assert isinstance(store, KubernetesStore)
    return store


def _innermost(store: Datastore) -> Datastore:
    while isinstance(store, ForwardingStore):
        store = store.store
    return store


def _kubernetes(session: Session) -> Kubernetes | None:
    if not is_kubernetes(session):
        return None
    from cni_calico.datastore.kubernetes.objects import KubernetesObjects

    return KubernetesObjects(api_of(session))


def render_lost(lost: LostThings) -> list[str]:
    lines = ["Scanning for what the janitor would release...", f"Found {len(lost.found)} things without an owner."]
    lines += [f"  {subject}: {reason}" for subject, reason in lost.found]
    if lost.unasked:
        lines.append(f"  and {lost.unasked} more addresses without attributes that may have no owner: {SEE_ALL}")
    return lines


def report_lost(lost: LostThings) -> list[dict[str, str]]:
    return [{"kind": KINDS[type(subject)], "subject": str(subject), "reason": reason} for subject, reason in lost.found]
