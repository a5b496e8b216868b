"""PURE: this node's host endpoints in our tables, kept up to date.

Rule: there are few of them, so after each change all their chains are rendered again, and only what differs is touched.
Without a host endpoint none of this is in the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.tables import NftSet
from cni_calico.nodeagent.policing.tables.hosts.interfaces import HostInterfaces, InterfaceAddresses, select_interfaces
from cni_calico.nodeagent.policing.tables.hosts.ipvs import ServiceForwarding
from cni_calico.nodeagent.policing.tables.hosts.stages import HOST_STAGES, HostView, Passes, RenderedHosts, render_hosts
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER, GoalTables
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.policy.wanted import PolicyId, WantedHost, WantedHostClass

K = TypeVar("K")
V = TypeVar("V")


class HostRules:
    """``interfaces``: which interface has which host endpoint. ``dropping``: policies whose egress is needed in a form
    that drops. ``denied``: policies that the kernel refuses in any form; what reaches them is dropped. ``view``: what
    the stages were made of last. ``forwarding``: the same stages, and workloads', for what ip_vs forwards.
    """

    def __init__(self, tables: GoalTables, has_networks: Callable[[int], bool], passes: Passes) -> None:
        self.all: dict[ResourceKey, WantedHost] = {}
        self.classes: dict[str, WantedHostClass] = {}
        self.interfaces = HostInterfaces()
        self.dropping: frozenset[PolicyId] = frozenset()
        self.denied: set[PolicyId] = set()
        self.view = HostView()
        self.forwarding = ServiceForwarding(tables)
        self._tables = tables
        self._has_networks = has_networks
        self._passes = passes
        self._there: InterfaceAddresses = {}
        self._chains: dict[int, frozenset[str]] = {}
        self._maps: dict[int, dict[str, NftSet]] = {}

    def update(
        self, hosts: Mapping[ResourceKey, WantedHost | None], classes: Mapping[str, WantedHostClass | None]
    ) -> None:
        """Only takes note: ``render`` changes the tables."""
        _overlay(self.all, hosts)
        _overlay(self.classes, classes)

    def use_interfaces(self, there: InterfaceAddresses) -> None:
        """Only takes note, too."""
        self._there = there

    def select(self, settings: FilterSettings) -> None:
        """Decide again which interfaces they have, and which policies they need in a form that drops."""
        self.interfaces = select_interfaces(self.all.values(), self._there, settings.excluded)
        found: set[PolicyId] = set()
        if settings.reject:
            for wanted in self.classes.values():
                found.update(policy for tier in wanted.egress for policy in tier.policies)
                found.update(wanted.profiles)
        self.dropping = frozenset(found)

    def describe(self, chain: str) -> str:
        """What the chain of a class decides about, in words; "" if there is no such chain or it is not used."""
        for stage in HOST_STAGES:
            class_id = chain.removeprefix(f"{stage.name}-")
            if stage.chain_of(class_id) == chain and class_id in self.classes:
                used = (*self.interfaces.by_name.values(), *filter(None, (self.interfaces.everywhere,)))
                names = sorted({key.name for key in used if self.all[key].class_id == class_id})
                return f"{stage.what} at HostEndpoint {', '.join(names)}" if names else ""
        return ""

    def render(self, settings: FilterSettings, tunnels: Tunnels, refused: Collection[str] = ()) -> None:
        """Make the tables hold what is wanted. ``refused``: chains that the kernel does not take as they should be."""
        by_name, everywhere = self.interfaces.by_name, self.interfaces.everywhere
        view = self.view = HostView(
            self.classes,
            {name: self.all[key].class_id for name, key in by_name.items()},
            "" if everywhere is None else self.all[everywhere].class_id,
            self.interfaces.excluded,
            tunnels,
            frozenset(self.denied),
            frozenset(refused),
        )
        for family in FILTER:
            done = RenderedHosts()
            if family == 4 or settings.ipv6:
                has_networks = self._has_networks(family)
                done = render_hosts(family, view, settings, self._passes, has_networks=has_networks)
            self._put(family, done)

    def _put(self, family: int, done: RenderedHosts) -> None:
        table, maps = FILTER[family], self._maps.setdefault(family, {})
        for chain in done.chains:
            self._tables.put_chain(table, chain)
        for spec, leads in done.leads.items():
            if spec.name not in maps:
                self._tables.put_set(table, spec)
                maps[spec.name] = spec
            held = self._tables.interfaces_of(table, spec)
            for name in (*(held - leads.keys()), *leads):
                self._tables.lead(table, spec, name, leads.get(name, ""))
        for name in maps.keys() - {spec.name for spec in done.leads}:
            self._tables.drop_set(table, name)
            del maps[name]
        names = frozenset(chain.name for chain in done.chains)
        for name in self._chains.get(family, frozenset()) - names:
            self._tables.drop_chain(table, name)
        self._chains[family] = names


def _overlay(onto: dict[K, V], changes: Mapping[K, V | None]) -> None:
    for key, value in changes.items():
        if value is None:
            onto.pop(key, None)
        else:
            onto[key] = value
