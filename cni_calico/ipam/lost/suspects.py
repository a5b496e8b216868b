"""Which subjects look lost, and since when, updated change by change.

Rule: nothing is listed: ``refresh`` gets the records that changed, and looks only at what depends on those. A suspicion
lasts only as long as nothing contradicts it; if it comes back, it starts again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from sys import intern
from typing import TypeVar

from cni_calico.ipam.lost import leaks
from cni_calico.ipam.lost.cached_state import CachedClusterState
from cni_calico.ipam.lost.leaks import (
    KINDS,
    BlockFacts,
    DepartedNode,
    Holding,
    IdleHandle,
    KeptHolding,
    LostBlock,
    LostEndpoint,
    LostNode,
    Subject,
    SurplusBlock,
)
from cni_calico.ipam.lost.surplus import is_spare, judge_surplus
from cni_calico.model import names
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, Key, ResourceKey
from cni_calico.model.resources import Network

KEPT_S = 300.0  # for what is kept, however short the grace period is: its owner may be between two pods
BOTH_GONE_S = 60.0  # how long node and pod must have been gone, whatever the grace period
_NOTHING = BlockFacts(None, ())
SeenKey = TypeVar("SeenKey")
SeenMember = TypeVar("SeenMember")
# what a subject depends on: ("node", name), ("kubernetes node", name), ("pod", namespace, name)
Anchor = tuple[str, ...]
Hanging = Holding | LostEndpoint | LostNode


class _Index:
    """The subjects that depend on each anchor. To save memory (three quarters, with one pod for each address) it has
    only the anchors' hashes, and a single subject is not put into a tuple. Two anchors with the same hash count as one:
    their subjects are then judged more often than necessary, but still correctly.
    """

    def __init__(self) -> None:
        self._on: dict[int, Hanging | tuple[Hanging, ...]] = {}

    def __contains__(self, anchor: Anchor) -> bool:
        return hash(anchor) in self._on

    def of(self, anchor: Anchor) -> tuple[Hanging, ...]:
        found = self._on.get(hash(anchor), ())
        return found if isinstance(found, tuple) else (found,)

    def add(self, anchor: Anchor, held: Hanging) -> None:
        known = self.of(anchor)
        if held not in known:
            self._on[hash(anchor)] = (*known, held) if known else held

    def discard(self, anchor: Anchor, held: Hanging) -> None:
        left = tuple(other for other in self.of(anchor) if other != held)
        self._on.pop(hash(anchor), None)
        if left:
            self._on[hash(anchor)] = left if len(left) > 1 else left[0]


@dataclass(slots=True)
class Suspicion:
    """``since``: when it was first seen, ``not_before``: when to check it again; on the janitor's clock."""

    reason: str
    since: float
    not_before: float = 0.0


class Suspects:
    """For one thread. ``clock_s``: Unix time, as records have it."""

    def __init__(self, state: CachedClusterState, clock_s: Callable[[], float] = time.time) -> None:
        self._clock_s = clock_s
        self.all: dict[Subject, Suspicion] = {}
        self._state = state
        self._blocks: dict[Network, BlockFacts] = {}
        self._on = _Index()
        self._nodes: dict[str, LostNode] = {}
        self._endpoints: dict[ResourceKey, LostEndpoint] = {}
        self._owned: dict[
            str, set[Network]
        ] = {}  # node -> the blocks that name it as their owner, or to which it has an affinity
        self._owners: dict[Network, set[str]] = {}
        self._used: dict[str, int] = {}  # folded handle -> the number of blocks in which it has addresses
        self._spelled: dict[str, str] = {}  # folded -> as in the record, if that is different
        self._idle: dict[str, IdleHandle] = {}
        self._gone: dict[str, float] = {}  # node -> since when it has been missing
        self._met: set[str] = set()  # nodes that were here and whose configuration has not been removed since

    def refresh(self, changed: Collection[Key], now: float) -> None:
        """Judge again what depends on the records that changed.

        Handles last: before its blocks have been looked at a handle seems to hold nothing, and the first time these
        would be tens of thousands of suspicions in a large cluster.
        """
        for key in changed:
            if not isinstance(key, HandleKey):
                self._look(key, now)
        for key in changed:
            if isinstance(key, HandleKey):
                self._look(key, now)

    def due(self, now: float, grace_s: float, calls_s: float = 0.0) -> list[Subject]:
        """The subjects that have been suspected for at least the grace period: nodes, endpoints, addresses, blocks,
        handles. ``calls_s``: how long a call may take; what one in progress may have written is suspected for longer.
        """
        found = [
            subject
            for subject, what in self.all.items()
            if now >= what.not_before
            and now - what.since >= self._grace_s(subject, grace_s, calls_s, now)
            and not self._is_spare(subject)
        ]
        order = list(KINDS)
        return sorted(found, key=lambda subject: (order.index(type(subject)), str(subject)))

    def _grace_s(self, subject: Subject, grace_s: float, calls_s: float, now: float) -> float:
        """The grace period of a subject: short for what belonged to a pod that is gone together with its node."""
        if self._may_be_in_progress(subject):
            grace_s = max(grace_s, calls_s)
        if isinstance(subject, KeptHolding):
            return max(grace_s, KEPT_S)
        if not isinstance(subject, LostEndpoint | Holding) or (isinstance(subject, Holding) and subject.tunnel):
            return grace_s
        gone_s = 0.0 if self._state.has_node(subject.node) else now - self._gone.get(subject.node, now)
        return min(grace_s, BOTH_GONE_S) if gone_s >= BOTH_GONE_S else grace_s

    def _may_be_in_progress(self, subject: Subject) -> bool:
        """Whether an ADD looks like that until it is done: its handle comes before the address, its address before the
        pod names the container.
        """
        if isinstance(subject, Holding):
            return bool(subject.pod) and self._state.has_pod(subject.namespace, subject.pod, subject.node)
        return isinstance(subject, IdleHandle)

    def _is_spare(self, subject: Subject) -> bool:
        facts = self._blocks.get(subject.cidr) if isinstance(subject, SurplusBlock) else None
        return facts is not None and is_spare(facts, self._clock_s())

    def blocks(self) -> dict[Network, BlockFacts]:
        """What the blocks hold; for any thread."""
        return dict(self._blocks)

    def counts(self) -> dict[str, int]:
        """Suspects by kind."""
        counts = dict.fromkeys(KINDS.values(), 0)
        for subject in self.all:
            counts[KINDS[type(subject)]] += 1
        return counts

    def put_off(self, subject: Subject, until: float) -> None:
        suspicion = self.all.get(subject)
        if suspicion is not None:
            suspicion.not_before = until

    def looked_after(self, departed: DepartedNode) -> None:
        """Forget the node: configuration that is made from now on is for a new node of the same name."""
        self.all.pop(departed, None)
        self._met.discard(departed.name)

    # -- one change ---------------------------------------------------------------------------------------------------

    def _look(self, key: Key, now: float) -> None:
        if isinstance(key, BlockKey):
            self._look_at_block(key.cidr, now)
        elif isinstance(key, HandleKey):
            self._look_at_handle(key.handle_id, now)
        elif isinstance(key, AffinityKey) and key.type == "host":
            self._claim(key.node, key.cidr, now)
            self._judge_block(LostBlock(key.node, key.cidr), now)
        elif isinstance(key, ResourceKey) and key.kind == "Node":
            self._look_at_node(key.name, now)
        elif isinstance(key, ResourceKey) and key.kind == "WorkloadEndpoint":
            self._look_at_endpoint(key, now)

    def _look_at_block(self, cidr: Network, now: float) -> None:
        before, after = self._blocks.pop(cidr, _NOTHING), self._state.block(cidr)
        if after is not None:
            self._blocks[cidr] = after
        had, has = set(before.holdings), set(after.holdings if after is not None else ())
        for held in had - has:
            self.all.pop(held, None)
            for anchor in self._anchors(held):
                self._forget(held, anchor)
        for held in has - had:
            if not held.foreign:
                for anchor in self._anchors(held):
                    self._on.add(anchor, held)
                self._judge_held(held, now)
        self._count(had, has, now)
        for facts in (before, after):
            if facts is not None and facts.node is not None:
                self._claim(facts.node, cidr, now)
        for node in tuple(self._owners.get(cidr, ())):
            self._judge_block(LostBlock(node, cidr), now)
        if before.node != (after or _NOTHING).node or bool(had) != bool(has):
            for name in {before.node, (after or _NOTHING).node} - {None}:
                self._judge_surplus(str(name), now)

    def _look_at_node(self, name: str, now: float) -> None:
        self._missed(name, now)
        if self._state.has_node(name):
            self._met.add(name)
        self._judge_departed(name, now)
        node, old = self._state.node(name), self._nodes.pop(name, None)
        if old is not None and old != node:
            self._forget(old, ("kubernetes node", old.kubernetes))
        if node is not None:
            self._nodes[name] = node
            self._on.add(("kubernetes node", node.kubernetes), node)
            self._judge_held(node, now)
        for anchor in (("node", name), ("kubernetes node", name)):
            for held in self._on.of(anchor):
                self._judge_held(held, now)
        for cidr in tuple(self._owned.get(name, ())):
            self._judge_block(LostBlock(name, cidr), now)
        self._judge_surplus(name, now)

    def _look_at_endpoint(self, key: ResourceKey, now: float) -> None:
        try:
            _, orchestrator, pod, _ = names.parse_endpoint_name(key.name)
        except ValueError:
            return
        if orchestrator != "k8s":
            return
        anchor = ("pod", key.namespace, pod)
        self._state.learn_pod(key.namespace, pod, key)
        endpoint, old = self._state.endpoint(key), self._endpoints.pop(key, None)
        if old is not None and old != endpoint:
            self._forget(old, anchor)
        if endpoint is not None:
            self._endpoints[key] = endpoint
            self._on.add(anchor, endpoint)
        for held in self._on.of(anchor):
            self._judge_held(held, now)

    def _look_at_handle(self, handle_id: str, now: float) -> None:
        revision, folded = self._state.handle(handle_id), intern(handle_id.casefold())
        if revision is None:
            self._spelled.pop(folded, None)
        elif folded != handle_id:
            self._spelled[folded] = handle_id
        idle = None if revision is None or folded in self._used else IdleHandle(handle_id, revision)
        old = self._idle.pop(folded, None)
        if old is not None and old != idle:
            self.all.pop(old, None)
        if idle is not None:
            self._idle[folded] = idle
            self._judge(idle, "it holds no address", now)

    # -- what is there ------------------------------------------------------------------------------------------------

    def _forget(self, held: Hanging, anchor: Anchor) -> None:
        self.all.pop(held, None)
        self._on.discard(anchor, held)

    def _anchors(self, held: Holding) -> tuple[Anchor, ...]:
        if isinstance(held, KeptHolding):
            return tuple(("pod", held.namespace, pod) for _, pod in held.owners)
        return (self._anchor(held),)

    def _anchor(self, held: Holding) -> Anchor:
        names_no_pod = held.bare and not (held.pod and self._state.knows_pods)
        return ("node", held.node) if held.tunnel or names_no_pod else ("pod", held.namespace, held.pod)

    def _count(self, before: set[Holding], after: set[Holding], now: float) -> None:
        """Track which handles have addresses anywhere."""
        had, has = ({intern(held.handle_id.casefold()) for held in holdings} for holdings in (before, after))
        for folded in had ^ has:
            self._used[folded] = self._used.get(folded, 0) + (1 if folded in has else -1)
            if not self._used[folded]:
                del self._used[folded]
            self._look_at_handle(self._spelled.get(folded, folded), now)

    def _claim(self, node: str, cidr: Network, now: float) -> None:
        """Remember that a block belongs to a node, by the block itself or by the node's affinity; forget it if neither
        says so.
        """
        facts = self._blocks.get(cidr)
        if (facts is not None and facts.node == node) or self._state.has_affinity(AffinityKey(node, cidr)):
            if cidr not in self._owned.get(node, ()):
                self._met.add(node)  # a node with a block has existed
                self._judge_departed(node, now)
            self._owned.setdefault(node, set()).add(cidr)
            self._owners.setdefault(cidr, set()).add(node)
            return
        self.all.pop(LostBlock(node, cidr), None)
        self.all.pop(SurplusBlock(node, cidr), None)
        _discard(self._owned, node, cidr)
        _discard(self._owners, cidr, node)

    def _missed(self, node: str, now: float) -> float:
        """Since when a node has been missing; what it leaves behind is suspected from then on, all at the same time."""
        if self._state.has_node(node):
            self._gone.pop(node, None)
            return now
        return self._gone.setdefault(node, now) if node in self._owned or ("node", node) in self._on else now

    # -- judgements ---------------------------------------------------------------------------------------------------

    def _judge_held(self, held: Hanging, now: float) -> None:
        if isinstance(held, LostNode):
            self._judge(held, leaks.judge_node(held, self._state), now)
        elif isinstance(held, LostEndpoint):
            self._judge(held, leaks.judge_endpoint(held, self._state), now)
        else:
            since = self._missed(held.node, now) if held.tunnel else now
            self._judge(held, leaks.judge_holding(held, self._state), since)

    def _judge_departed(self, node: str, now: float) -> None:
        if self._state.is_kubernetes and node in self._met:
            departed = DepartedNode(node)
            self._judge(departed, leaks.judge_departed(departed, self._state), now)

    def _judge_block(self, lost: LostBlock, now: float) -> None:
        if lost.cidr not in self._owned.get(lost.node, ()):
            return
        since = self._missed(lost.node, now)
        self._judge(lost, leaks.judge_block(lost, self._blocks.get(lost.cidr), self._state), since)

    def _judge_surplus(self, node: str, now: float) -> None:
        owned = {cidr: self._blocks[cidr] for cidr in self._owned.get(node, ()) if cidr in self._blocks}
        for cidr in owned:
            surplus = SurplusBlock(node, cidr)
            reason = judge_surplus(surplus, owned) if self._state.has_node(node) else ""
            self._judge(surplus, reason, now)

    def _judge(self, subject: Subject, reason: str, since: float) -> None:
        if not reason:
            self.all.pop(subject, None)
        elif subject not in self.all:
            self.all[subject] = Suspicion(reason, since)
        else:
            self.all[subject].reason = reason


def _discard(index: dict[SeenKey, set[SeenMember]], key: SeenKey, member: SeenMember) -> None:
    members = index.get(key)
    if members is not None:
        members.discard(member)
        if not members:
            del index[key]
