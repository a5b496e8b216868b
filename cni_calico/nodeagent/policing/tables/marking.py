"""PURE: the DSCP of packets that leave the cluster, and that of a mesh's connections, in our tables.

Rule: nobody's policy depends on this; everything of it has a name that begins with "dscp", by which a kernel that lacks
it does without. Without a workload, host endpoint or mesh that asks for it none of this is there.

    postrouting -149  dscp    from an address of a workload, or of a host endpoint, that asks for it, to outside of all
                              pools and not to this host itself: its DSCP, before sources are translated
                              new TCP from a pod of the mesh to one on this node: the mesh's
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Network
from cni_calico.netfilter.rules import (
    RETURN,
    AddressInSet,
    AtInterface,
    ConnectionIs,
    IsProtocol,
    NftRule,
    RuleTest,
    SetDscp,
)
from cni_calico.netfilter.tables import BaseHook, NftChain
from cni_calico.nodeagent.policing.tables.matches import NETWORKS
from cni_calico.nodeagent.policing.tables.sets import FilterSets
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import to_workload
from cni_calico.nodeagent.policing.tables.touched import FILTER, GoalTables
from cni_calico.policy.cover import minimal_cover
from cni_calico.policy.mesh import MESH
from cni_calico.policy.wanted import Members, Packed, SetChange, WantedEndpoint, WantedHost

CHAIN = "dscp"  # and what the names of its sets begin with
_POOLS, _SOURCES = f"{CHAIN}-pools", f"{CHAIN}-of-"
_HOOK = BaseHook("postrouting", -149)  # behind host endpoints' at -150, before sources are translated
_TCP = 6
Marked = WantedEndpoint | WantedHost


@dataclass(slots=True)
class _MarkedSources:
    """The addresses whose packets get one DSCP: how many ask for it for each."""

    asked: Counter[Packed] = field(default_factory=Counter)
    made: frozenset[Packed] = frozenset()


class PacketMarking:
    """What marks packets, in ``tables``. After ``update``, ``use_pools`` or a change of the mesh: ``render``."""

    def __init__(self, tables: GoalTables, sets: FilterSets, able: Callable[[], bool]) -> None:
        """``able``: whether the kernel can do it."""
        self._tables, self._sets, self._able = tables, sets, able
        self._of: dict[ResourceKey, tuple[int, tuple[Packed, ...]]] = {}
        self._sources: dict[int, _MarkedSources] = {}
        self._pools = self._made_pools = Members()

    def update(self, changes: Mapping[ResourceKey, Marked | None]) -> None:
        """Only takes note."""
        for key, wanted in changes.items():
            if (before := self._of.pop(key, None)) is not None:
                self._sources[before[0]].asked.subtract(before[1])
            if wanted is not None and wanted.dscp is not None:
                addresses = wanted.addresses if isinstance(wanted, WantedEndpoint) else wanted.expected
                if addresses:
                    self._of[key] = wanted.dscp, addresses
                    self._sources.setdefault(wanted.dscp, _MarkedSources()).asked.update(addresses)

    def use_pools(self, pools: Iterable[Network]) -> None:
        """Only takes note, too. ``pools``: all that there are."""
        known = tuple(pools)
        nets = ((net.network_address.packed, net.prefixlen) for net in known if net.num_addresses > 1)
        single = frozenset(net.network_address.packed for net in known if net.num_addresses == 1)
        self._pools = Members(single, minimal_cover(nets))

    def render(self, settings: FilterSettings) -> None:
        """Make the tables hold what is wanted."""
        self._put_sources()
        self._put_pools(wanted=bool(self._sources))
        for family, table in FILTER.items():
            rules = tuple(self._rules(family, settings)) if self._able() and (family == 4 or settings.ipv6) else ()
            if rules:
                self._tables.put_chain(table, NftChain(CHAIN, rules, _HOOK))
            else:
                self._tables.drop_chain(table, CHAIN)

    def unclear(self, hosts: Iterable[WantedHost]) -> list[str]:
        """What marks nothing although it was to, and why."""
        found = [(f"HostEndpoint {one.key.name}", one) for one in hosts]
        said = [
            f"the packets of {name} get no DSCP: the annotation says {one.not_dscp}"
            for name, one in found
            if one.not_dscp
        ]
        said += [
            f"the packets of {name} get no DSCP: it has no expectedIPs"
            for name, one in found
            if one.dscp is not None and not one.expected
        ]
        return sorted(said)

    def _put_sources(self) -> None:
        for dscp, sources in list(self._sources.items()):
            sources.asked = +sources.asked
            name, wanted = f"{_SOURCES}{dscp}", frozenset(sources.asked)
            if not wanted:
                del self._sources[dscp]
                if sources.made:
                    self._sets.remove(name)
            elif not sources.made:
                self._sets.make(name, Members(wanted))
            elif wanted != sources.made:
                self._sets.change(name, SetChange(Members(wanted - sources.made), Members(sources.made - wanted)))
            sources.made = wanted

    def _put_pools(self, *, wanted: bool) -> None:
        there = self._sets.has(_POOLS)
        if there and not wanted:
            self._sets.remove(_POOLS)
        elif wanted and not there:
            self._sets.make(_POOLS, self._pools)
        elif wanted:
            old, new = self._made_pools, self._pools
            added = Members(new.addresses - old.addresses, new.nets - old.nets)
            removed = Members(old.addresses - new.addresses, old.nets - new.nets)
            self._sets.change(_POOLS, SetChange(added, removed))
        self._made_pools = self._pools

    def _rules(self, family: int, settings: FilterSettings) -> Iterator[NftRule]:
        if self._sources:
            # what goes to this host's own addresses comes here only as the host sends it, and goes out so
            yield NftRule((AtInterface(True, "lo"),), (RETURN,))
        outside = tuple(AddressInSet(False, name, negated=True) for name in self._names(family, _POOLS))
        for dscp in sorted(self._sources):
            yield NftRule((AddressInSet(True, f"{_SOURCES}{dscp}"), *outside), (SetDscp(dscp),))
        if settings.mesh_dscp is not None and self._sets.has(MESH):
            for prefix in settings.prefixes:
                for sides in self._in_mesh(family):
                    new = (IsProtocol(_TCP), to_workload(prefix), ConnectionIs(("new",)))
                    yield NftRule((*new, *sides), (SetDscp(settings.mesh_dscp),))

    def _in_mesh(self, family: int) -> Iterator[tuple[RuleTest, ...]]:
        names = self._names(family, MESH)
        for source in names:
            for destination in names:
                yield AddressInSet(True, source), AddressInSet(False, destination)

    def _names(self, family: int, name: str) -> tuple[str, ...]:
        return (name, name + NETWORKS) if self._sets.has_networks(family, name) else (name,)
