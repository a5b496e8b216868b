"""PURE: single endpoints in our tables: the entries that lead packets to their class, limits, spoofing, own addresses.

Rule: an endpoint is a few elements of maps, and has its own chains only for limits and allowed sources. In each change
all removals come before all additions, so that an interface that moves to another endpoint keeps what that endpoint
wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from ipaddress import ip_network

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Network
from cni_calico.netfilter.rules import DROP, jump
from cni_calico.netfilter.tables import NftChain, NftSet, TableId, interface_key
from cni_calico.nodeagent.policing.tables import stages
from cni_calico.nodeagent.policing.tables.naming import class_chain, interface_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import ARP, FILTER, GoalTables
from cni_calico.policy.wanted import UNLIMITED, PacketLimits, WantedEndpoint

_SPOOF, _LIMIT_FROM, _LIMIT_TO = "spoof", "limit-from", "limit-to"
SPOOF_CHAINS, LIMIT_CHAINS = (f"{_SPOOF}-",), (f"{_LIMIT_FROM}-", f"{_LIMIT_TO}-")  # prefixes of their names
_OWN_CHAINS = ((stages.LIMITED_FROM, _LIMIT_FROM), (stages.LIMITED_TO, _LIMIT_TO), (stages.MAY_SPOOF, _SPOOF))


@dataclass(frozen=True, slots=True)
class Able:
    """What this kernel supports for individual endpoints."""

    sources: bool = True
    limits: bool = True
    connections: bool = True

    def limited(self, limits: PacketLimits) -> PacketLimits:
        if not self.limits:
            return UNLIMITED
        return limits if self.connections else replace(limits, max_connections=None)


class EndpointRules:
    """The endpoints in ``tables``."""

    def __init__(self, tables: GoalTables, settings: FilterSettings) -> None:
        self.all: dict[ResourceKey, WantedEndpoint] = {}
        self._tables = tables
        self._settings = settings
        self._able = Able()
        self.checks_sources = True  # no attempt has failed: while the next one is made, nothing may open
        self._containers: dict[tuple[str, ...], set[ResourceKey]] = {}
        self.denied: set[str] = set()  # interfaces whose packets are dropped, because their entries were refused

    def update(self, changes: Mapping[ResourceKey, WantedEndpoint | None]) -> None:
        touched: set[ResourceKey] = set()  # other interfaces of the same containers
        for key, after in changes.items():
            before = self.all.pop(key, None)
            if before is not None:
                touched |= self._leave(key, before)
                self.denied.discard(before.interface)
                self._own_addresses(before, present=False)
                if after is None or after.interface != before.interface:
                    self._clear(before.interface)
        for key, after in changes.items():
            if after is not None:
                self.all[key] = after
                touched |= self._join(key, after)
        for key in (key for key, after in changes.items() if after is not None):
            self._put(self.all[key])
        for key in touched - changes.keys():
            self._put(self.all[key])

    def _leave(self, key: ResourceKey, endpoint: WantedEndpoint) -> set[ResourceKey]:
        """Returns the endpoints of the same container."""
        container = _container_of(endpoint)
        mates = self._containers.get(container, set())
        mates.discard(key)
        if not mates:
            self._containers.pop(container, None)
        return set(mates)

    def _join(self, key: ResourceKey, endpoint: WantedEndpoint) -> set[ResourceKey]:
        container = _container_of(endpoint)
        if not container:
            return set()
        mates = self._containers.setdefault(container, set())
        mates.add(key)
        return mates - {key}

    def _addresses_elsewhere(self, endpoint: WantedEndpoint) -> tuple[Network, ...]:
        """What its container has at its other interfaces: it may send from any address by any of them."""
        mates = self._containers.get(_container_of(endpoint), set())
        if len(mates) < 2:
            return ()
        own = set(endpoint.addresses)
        return tuple(
            ip_network(address)
            for key in sorted(mates, key=str)
            for address in self.all[key].addresses
            if address not in own
        )

    def configure(self, settings: FilterSettings) -> None:
        self._settings = settings
        for endpoint in self.all.values():
            self._put(endpoint)

    def limit_to(self, able: Able) -> None:
        """Note that the kernel's abilities have turned out to be different."""
        self._able = able
        self.configure(self._settings)

    def needed(self, table: TableId) -> stages.Needed:
        verdicts = self._tables.of[table].verdicts
        limited = bool(verdicts[stages.LIMITED_FROM.name] or verdicts[stages.LIMITED_TO.name])
        spoofing = bool(verdicts[stages.MAY_SPOOF.name])
        return stages.Needed(limits=limited, spoofing=spoofing, check_sources=self._able.sources)

    def _put(self, endpoint: WantedEndpoint) -> None:
        name = endpoint.interface
        for family, table in FILTER.items():
            if family == 6 and not self._settings.ipv6:
                self._clear_in(table, name)
                continue
            for spec, ingress in ((stages.FROM, False), (stages.TO, True)):
                to_class = DROP if name in self.denied else jump(class_chain(endpoint.class_id, ingress))
                self._tables.enter(table, spec, name, to_class)
            may_spoof = endpoint.spoofing if self._settings.spoofing else ()
            may_spoof = (*may_spoof, *self._addresses_elsewhere(endpoint)) if self._able.sources else ()
            chains = (
                stages.render_limits(_LIMIT_FROM, name, self._able.limited(endpoint.egress_limits), self._settings),
                stages.render_limits(_LIMIT_TO, name, self._able.limited(endpoint.ingress_limits), self._settings),
                stages.render_may_spoof(name, may_spoof, family, self._settings),
            )
            for (spec, beginning), chain in zip(_OWN_CHAINS, chains, strict=True):
                self._lead(table, spec, name, interface_chain(beginning, name), chain)
        self._own_addresses(endpoint, present=True)

    def _lead(self, table: TableId, spec: NftSet, interface: str, name: str, chain: NftChain | None) -> None:
        """Lead packets of the interface to ``chain``; a chain without rules counts as none."""
        if chain is None or not chain.rules:
            self._tables.drop_chain(table, name)
            self._tables.lead(table, spec, interface, "")
        else:
            self._tables.put_chain(table, chain)
            self._tables.lead(table, spec, interface, name)

    def _clear(self, interface: str) -> None:
        for table in FILTER.values():
            self._clear_in(table, interface)

    def _clear_in(self, table: TableId, interface: str) -> None:
        for spec in (stages.FROM, stages.TO):
            self._tables.lead(table, spec, interface, "")
        for spec, beginning in _OWN_CHAINS:
            self._lead(table, spec, interface, interface_chain(beginning, interface), None)

    def _own_addresses(self, endpoint: WantedEndpoint, *, present: bool) -> None:
        key = interface_key(endpoint.interface)
        mine = {key + address for address in endpoint.addresses if len(address) == 4}
        none: set[bytes] = set()
        added, removed = (mine, none) if present else (none, mine)
        self._tables.change_elements(ARP, stages.OWN_ADDRESSES.name, added, removed)


def _container_of(endpoint: WantedEndpoint) -> tuple[str, ...]:
    """The same for all interfaces of one container; () if it is not known. A pod's annotation may claim any container:
    so the workload has to be the same, too.
    """
    if not endpoint.container:
        return ()
    return endpoint.orchestrator, endpoint.workload, endpoint.container
