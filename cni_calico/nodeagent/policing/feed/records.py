"""The input of the policy graph: caches of the datastore, whose changes wait here for the engine's thread.

Rule: a record is decoded once, in its cache's thread (a large policy when it is its turn), reduced to what the graph
needs (a policy's rules, the labels and addresses of other nodes' pods), handed over, and not kept here. A record that
cannot be read is handed over as refused, never as removed, so its last good version stays in force. Until every listing
has been read once, what can be taken is incomplete (``synced``).

With Kubernetes as the datastore the pods of other nodes are followed only once a rule asks for their addresses, and the
endpoints of services, and nodes, only once a rule names them (``need``): otherwise a node would receive every pod of
the cluster.
This node's own pods come only from the listing of its own pods, because the other listing may be behind. Addresses
that only a pod's annotation names wait in ``Confirmation``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from cni_calico.datastore.cache import Cache, error_of, stop_caches
from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.kubernetes.layout import ENDPOINT_SLICE, KUBERNETES_CLUSTER_POLICY, KUBERNETES_POLICY
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.remembered import Kept, Listeners
from cni_calico.datastore.unreadable import listen
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import Key, ListKey, ResourceKey, ResourceList, endpoints_of_node
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.policing.feed.changes import (
    FedChange,
    FedRecord,
    PutAside,
    Refusal,
    Undecoded,
    Unread,
)
from cni_calico.nodeagent.policing.feed.confirmation import Confirmation
from cni_calico.nodeagent.policing.feed.decoding import Fed, PolicyJudge, RecordDecoder
from cni_calico.nodeagent.policing.feed.pending import PendingChanges
from cni_calico.nodeagent.policing.feed.rereading import AskingAgain, Rereading
from cni_calico.nodeagent.policing.feed.weights import UNREAD_FROM
from cni_calico.policy.confirmed import HeldInBlock
from cni_calico.policy.decode import KINDS as DECODED_KINDS
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.kubernetes import DEFAULT_ALLOW
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.records import POLICY_KINDS, Labelled
from cni_calico.policy.sets import NODE
from cni_calico.policy.steps import Steps, finish

KINDS = (*(kind for kind in DECODED_KINDS if kind != "WorkloadEndpoint"), "BGPConfiguration")
_DEFAULT_ALLOW = ResourceKey("Profile", DEFAULT_ALLOW.metadata.name)
_ENDPOINTS, _SLICES, _NODES = ResourceList("WorkloadEndpoint"), ResourceList(ENDPOINT_SLICE), ResourceList(NODE)
_COUNTED = (ResourceList("NetworkPolicy"), ResourceList("GlobalNetworkPolicy"))
_CONVERTED = (KUBERNETES_POLICY, KUBERNETES_CLUSTER_POLICY)


class RecordFeed:
    """The caches' threads call ``wake`` whenever there is something to take.

    ``kubernetes`` is the store of Kubernetes' own objects, None outside of Kubernetes; it may be ``store`` itself,
    which then also has Kubernetes' policies. ``judge(kind, spec)``: how many bytes a policy needs, about, and
    whether its document may stay in memory until then; ``keeps_text(size)``: whether a text that is not read yet may.
    ``watch_after``: as for Cache.
    """

    def __init__(
        self,
        store: Datastore,
        node: str,
        wake: Callable[[], None],
        kubernetes: KubernetesStore | None = None,
        judge: PolicyJudge = lambda kind, spec: (0, True),
        keeps_text: Callable[[int], bool] = lambda size: True,
        watch_after: threading.Event | None = None,
    ) -> None:
        self._wake, self._store, self._kubernetes = wake, store, kubernetes
        self._decoder, self._pending = RecordDecoder(node, judge, keeps_text), PendingChanges()
        self._left_out: dict[ResourceKey, tuple[str, ...]] = {}
        self._rereading = Rereading(store, self._bring)
        self._asking = AskingAgain(store, self._pending.left_out, self._receive_again)
        self._confirmation = Confirmation(self._put, lambda key, why: self._put(key, Refusal(why)))
        listen(store, self._note)
        own = kubernetes is not None and kubernetes is store
        kinds = (*KINDS, *(_CONVERTED if own else ()))
        listings = [*map(ResourceList, kinds), endpoints_of_node(node) if own else _ENDPOINTS]
        self._caches = [self._follow(store, listing, watch_after=watch_after) for listing in listings]
        self._followed = OtherNeeds(endpoints=not own)  # besides
        self._blocks: list[Cache[HeldInBlock]] = []
        self._own_prefix = endpoints_of_node(node).name_prefix
        self._pending.put_unless_known(_DEFAULT_ALLOW, DEFAULT_ALLOW)  # it exists on every datastore

    def need(self, needs: OtherNeeds) -> bool:
        """Follow what rules need, from now on; returns whether everything has been read."""
        before, self._followed = self._followed, self._followed.with_these(needs)
        if needs.endpoints and not before.endpoints:
            self._caches.append(self._follow(self._store, _ENDPOINTS, leaves_out=self._is_own))
            self._blocks.append(self._confirmation.follow(self._store, self._wake))
        if needs.services and not before.services and self._kubernetes is not None:
            self._caches.append(self._follow(self._kubernetes, _SLICES))
        if needs.nodes and not before.nodes:
            self._caches.append(self._follow(self._store, _NODES))
        return self.synced

    @property
    def follows_all(self) -> bool:
        """Whether the endpoints of all nodes are followed."""
        return self._followed.endpoints

    @property
    def left_out(self) -> tuple[str, ...]:
        """Rules of Kubernetes' policies that could not be converted, and addresses that count later than they could."""
        found = list(self._left_out.items())
        texts = sorted(f"{key.kind} {key.namespace}/{key.name}: {text}" for key, texts in found for text in texts)
        return (*texts, *self._confirmation.troubles)

    def _is_own(self, key: Key) -> bool:
        """Whether an endpoint is this node's; the node's name may be a prefix of other nodes' names: n1, n1-a."""
        assert isinstance(key, ResourceKey)
        own = self._own_prefix
        return key.name.startswith(own) and not key.name.startswith(f"{own}-")

    def _follow(
        self,
        store: Datastore,
        listing: ListKey,
        *,
        leaves_out: Callable[[Key], bool] = lambda key: False,
        watch_after: threading.Event | None = None,
    ) -> Cache[Fed]:
        """``leaves_out``: keys that another cache reports."""

        def hand_over(key: Key, fed: Fed) -> None:
            if not leaves_out(key):
                self._hand_over(key, fed)

        def gone(key: Key) -> None:
            if key not in self._pending.absent and not leaves_out(key):
                self._drop(key)

        is_policies = isinstance(listing, ResourceList) and listing.kind in POLICY_KINDS
        return Cache(
            store,
            Kept(listing, self._decoder.decode, keep_documents=False, unread_from=UNREAD_FROM if is_policies else None),
            Listeners(lambda _: self._wake(), self._refuse, hand_over, gone, on_read=self._wake),
            cached=True,
            watch_after=watch_after,
        )

    def read_again(self, key: ResourceKey) -> None:
        """Bring a policy that was Unread."""
        self._pending.ask_again(key)
        self._rereading.ask(key)

    def _bring(self, key: ResourceKey, found: Versioned) -> None:
        """What its listing has reported meanwhile is newer. Raises CorruptRecord."""
        fed = self._decoder.decode(found, again=True)
        if self._pending.put_again(key, fed.record):
            if fed.left_out:
                self._left_out[key] = fed.left_out
            self._wake()

    def read(self, key: ResourceKey, change: FedChange) -> FedChange:
        """The change, after reading what was put aside. For the engine's thread."""
        if isinstance(change, Refusal):
            if not any(isinstance(one, PutAside) for one in change.first):
                return change
            first = [self.read(key, one) for one in change.first]
            return replace(change, first=tuple(one for one in first if not isinstance(one, Refusal)))
        if not isinstance(change, PutAside):
            return change
        try:
            fed = self._decoder.decode(change.item, again=True)
        except CorruptRecord as e:
            return Refusal(str(e))
        except Exception as e:  # a tenant's text must not end the engine's round
            return Refusal(f"cannot be understood: {type(e).__name__}: {e}")
        if fed.left_out:
            self._left_out[key] = fed.left_out
        return fed.record

    def decoded(self, key: ResourceKey, change: FedChange) -> FedRecord:
        """The record, of a change that may not be decoded yet, but has been read. For the engine's thread."""
        if isinstance(change, Refusal | PutAside | Undecoded | Unread):
            return finish(self.decoding(key, change))
        return change

    def decoding(self, key: ResourceKey, change: FedChange) -> Steps[FedRecord]:
        """As ``decoded``, a rule of a large policy at each step."""
        if isinstance(change, Refusal):
            first: list[FedRecord] = []
            for one in change.first:
                first.append((yield from self.decoding(key, one)))
            return replace(change, first=tuple(one for one in first if not isinstance(one, Refusal)))
        assert not isinstance(change, PutAside)  # Turns has read it
        if not isinstance(change, Undecoded):
            return change.stand_in if isinstance(change, Unread) else change
        try:
            fed = yield from self._decoder.decoding(change.item)
        except CorruptRecord as e:
            return Refusal(str(e))
        if fed.left_out:
            self._left_out[key] = fed.left_out
        assert not isinstance(fed.record, PutAside | Undecoded | Unread)
        return fed.record

    def _hand_over(self, key: Key, fed: Fed) -> None:
        assert isinstance(key, ResourceKey)
        self._left_out.pop(key, None)
        record = fed.record
        if key.kind != "WorkloadEndpoint":
            self._put(key, record)
        elif isinstance(record, Refusal):
            self._confirmation.refuse(key, record.why)
        else:
            assert record is None or isinstance(record, WorkloadEndpoint | Labelled)
            self._confirmation.put(key, record, fed.claim)
        if fed.left_out:
            self._left_out[key] = fed.left_out

    def _put(self, key: Key, record: FedChange) -> None:
        assert isinstance(key, ResourceKey)
        self._pending.put(key, record)
        if record is None:
            self._left_out.pop(key, None)

    def _drop(self, key: Key) -> None:
        assert isinstance(key, ResourceKey)
        if key.kind == "WorkloadEndpoint":
            self._confirmation.put(key, None)
        else:
            self._put(key, _absent(key))

    def _refuse(self, key: Key, why: str) -> None:
        if isinstance(key, ResourceKey):
            if key.kind == "WorkloadEndpoint":
                self._confirmation.refuse(key, why)
            else:
                self._put(key, Refusal(why))
            self._wake()

    def _note(self, key: Key, why: str) -> None:
        """The store left a record out. Nothing reports its removal, so it is read again from time to time."""
        if not isinstance(key, ResourceKey) or key.kind not in (*KINDS, *_CONVERTED, "WorkloadEndpoint", NODE):
            return
        self._pending.leave_out(key)
        self._asking.begin()
        self._refuse(key, why)

    def _receive_again(self, key: ResourceKey, found: Versioned | None) -> None:
        """What is stored now of a record that the store left out. Raises CorruptRecord."""
        if found is None:
            self._drop(key)
        else:
            self._hand_over(key, self._decoder.decode(found))
        self._wake()

    @property
    def synced(self) -> bool:
        """Whether every listing has been read once."""
        return self._confirmation.decided and all(cache.synced for cache in self._caches)

    def count_policies(self) -> int:
        """Without those that are Kubernetes' own. For any thread."""
        return sum(cache.count for cache in self._caches if cache.listing in _COUNTED)

    @property
    def unread_kinds(self) -> frozenset[str]:
        listings = [cache.listing for cache in self._caches if not cache.synced]
        return frozenset(listing.kind for listing in listings if isinstance(listing, ResourceList))

    @property
    def unread(self) -> str:
        """What has not been read yet, and why; "" if everything has."""
        kinds, why = sorted(self.unread_kinds), self.error
        return f"{', '.join(kinds)} not read yet{f': {why}' if why else ''}" if kinds else ""

    @property
    def error(self) -> str:
        """Why the data is not kept up to date; "" if it is."""
        return error_of(self._caches)

    def take(self) -> tuple[dict[ResourceKey, FedChange], float]:
        """What has changed since the last call, and since when (time.monotonic) the first change has waited."""
        taken = self._pending.take()
        self._decoder.forget_shared()
        return taken

    def stop(self) -> None:
        self._asking.stop()
        self._rereading.stop()
        stop_caches((*self._caches, *self._blocks))


def _absent(key: Key) -> GraphRecord | None:
    """The value that counts while a record is not stored."""
    return DEFAULT_ALLOW if key == _DEFAULT_ALLOW else None
