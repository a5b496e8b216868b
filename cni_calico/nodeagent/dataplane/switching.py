"""PURE: a pool that changes from IPIP to VXLAN, or back, while pods talk to one another.

Rule: the new way stands on every node before one of them goes over to it, and the old one stays open for those that
are slower. A node tells the others that its end of the new tunnel stands by the tunnel's address in its Node, which is
allocated after the device is up. It goes over once its own end stands and every other node that may have addresses of
the pool has told so, or ``PATIENCE_S`` after its own end stood: a node that is down tells nothing. Its old device and
the routes through it stay for ``REST_S`` more. An agent that starts uses pools as they are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from cni_calico.model.host import PROTO_CALICO, HostRoute
from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import (
    IPIP,
    VXLAN,
    TunnelEnd,
    encapsulation_of,
    endpoint_of,
    wants_ipip,
    wants_vxlan,
)
from cni_calico.nodeagent.dataplane.needs import select_peers
from cni_calico.nodeagent.view.snapshot import Snapshot

PATIENCE_S, REST_S = 10.0, 30.0
_KINDS = ("ipip", "vxlan")


@dataclass(frozen=True, slots=True)
class Ways:
    """``pools``: as they are used now. ``coming`` and ``leaving``: the same pools as they will be, and as they were,
    whose tunnels have to be there, too. ``overdue``: names of those that wait longer than they should.
    """

    pools: tuple[IPPool, ...]
    coming: tuple[IPPool, ...] = ()
    leaving: tuple[IPPool, ...] = ()
    overdue: frozenset[str] = frozenset()

    @property
    def pending(self) -> int:
        return len(self.coming) + len(self.leaving)


@dataclass(slots=True)
class Switching:
    """What is remembered from pass to pass, by the pool's name. ``coming``: since when a pool waits, and since when
    this node's own end stands (None: not yet).
    """

    used: dict[str, IPPool] = field(default_factory=dict)
    coming: dict[str, tuple[IPPool, float, float | None]] = field(default_factory=dict)
    leaving: dict[str, tuple[IPPool, float]] = field(default_factory=dict)

    @property
    def others(self) -> tuple[IPPool, ...]:
        """Pools as they are used, or were, where that is not as they are written."""
        coming = tuple(self.used[name] for name in self.coming)
        return (*coming, *(pool for pool, _ in self.leaving.values()))

    def select(self, snapshot: Snapshot, felix: FelixSettings, backend: str, up: Collection[str], now: float) -> Ways:
        """``up``: the names of the interfaces that are up, before this pass."""
        pools = tuple(self._step(snapshot, pool, felix, backend, up, now) for pool in snapshot.pools)
        self.used = {pool.metadata.name: pool for pool in pools}
        self.coming = {name: entry for name, entry in self.coming.items() if name in self.used}
        self.leaving = {
            name: (pool, until) for name, (pool, until) in self.leaving.items() if now < until and name in self.used
        }
        return Ways(
            pools,
            tuple(pool for pool, _, _ in self.coming.values()),
            tuple(pool for pool, _ in self.leaving.values()),
            frozenset(name for name, (_, since, _) in self.coming.items() if now - since >= PATIENCE_S),
        )

    def _step(
        self, snapshot: Snapshot, pool: IPPool, felix: FelixSettings, backend: str, up: Collection[str], now: float
    ) -> IPPool:
        """The pool as it is to be used now."""
        name = pool.metadata.name
        before = self.used.get(name)
        waiting = self.coming.pop(name, None)
        if before is None or not _changes_way(before, pool) or not _is_wanted(pool, felix, backend):
            if waiting is not None and encapsulation_of(waiting[0])[0] != encapsulation_of(pool)[0]:
                self.leaving[name] = (waiting[0], now + REST_S)  # others may use it already
            return pool
        _, since, stood = waiting or (pool, now, None)
        if stood is None and _stands(snapshot, pool, up):
            stood = now
        waits = stood is None or (now - stood < PATIENCE_S and not _all_stand(snapshot, pool))
        if waits:
            self.coming[name] = (pool, since, stood)
            return replace(pool, ipip_mode=before.ipip_mode, vxlan_mode=before.vxlan_mode)
        self.leaving[name] = (before, now + REST_S)
        return pool


def _changes_way(before: IPPool, pool: IPPool) -> bool:
    kinds = encapsulation_of(before)[0], encapsulation_of(pool)[0]
    return before.cidr == pool.cidr and kinds[0] != kinds[1] and set(kinds) <= set(_KINDS)


def _is_wanted(pool: IPPool, felix: FelixSettings, backend: str) -> bool:
    """Whether there will be a device for it at all."""
    if backend == "none":
        return False
    kind = encapsulation_of(pool)[0]
    return wants_ipip((pool,), felix) if kind == "ipip" else wants_vxlan(pool.cidr.version, (pool,), felix)


def _address(pool: IPPool, end: TunnelEnd | None) -> object:
    if end is None:
        return None
    return end.ipip if encapsulation_of(pool)[0] == "ipip" else end.vtep


def _stands(snapshot: Snapshot, pool: IPPool, up: Collection[str]) -> bool:
    """Whether the viewing node's own end does."""
    family = pool.cidr.version
    device = IPIP if encapsulation_of(pool)[0] == "ipip" else VXLAN[family]
    own = None if snapshot.own is None else endpoint_of(snapshot.own, family)
    # an IPIP device needs no address to carry others' packets, and not every pool gives it one
    return device in up and (device == IPIP or _address(pool, own) is not None)


def _all_stand(snapshot: Snapshot, pool: IPPool) -> bool:
    """Whether all ends do, as far as their nodes tell."""
    mode = encapsulation_of(pool)[1]
    nodes = (snapshot.nodes[name] for name in (snapshot.node, *select_peers(snapshot, pool, mode)))
    return all(_address(pool, endpoint_of(node, pool.cidr.version)) is not None for node in nodes)


def select_staying(
    before: Iterable[HostRoute], desired: Collection[HostRoute], actual: Sequence[HostRoute]
) -> frozenset[HostRoute]:
    """Of the routes that were wanted before, those that are there and for which BIRD has made none yet."""
    others = {route.dst for route in actual if route.protocol != PROTO_CALICO}
    others |= {route.dst for route in desired}
    there = {(route.dst, route.device, route.via) for route in actual if route.protocol == PROTO_CALICO}
    return frozenset(
        route for route in before if route.dst not in others and (route.dst, route.device, route.via) in there
    )
