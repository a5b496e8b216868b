"""PURE: what our tables should hold, kept up to date change by change.

Rule: after any sequence of changes the tables equal those that the resulting ``Wanted`` gives in one step; the cost of
a change depends only on what it touches.

A policy that cannot be rendered, or that the kernel refused (``give_up``), is replaced by a chain that drops, listed in
``problems``, and tried again when its record changes; what else the kernel refused is in ``refused``. Features that
policies do not need and the kernel does not support (``lack``) are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cni_calico.model.resources import Network
from cni_calico.nodeagent.policing.tables import stages, standing
from cni_calico.nodeagent.policing.tables.classes import ClassChains
from cni_calico.nodeagent.policing.tables.endpoints import Able, EndpointRules
from cni_calico.nodeagent.policing.tables.hosts.interfaces import InterfaceAddresses
from cni_calico.nodeagent.policing.tables.hosts.rules import HostRules
from cni_calico.nodeagent.policing.tables.marking import PacketMarking
from cni_calico.nodeagent.policing.tables.numbers import MAPS
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.refused import RefusedParts
from cni_calico.nodeagent.policing.tables.sets import FilterSets
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import ARP, FILTER, GoalTables
from cni_calico.nodeagent.policing.tables.tunnels import NODES, TUNNEL_CHAINS, Tunnels, change_of_nodes, render_tunnels
from cni_calico.nodeagent.policing.tables.written_ahead import PolicyChains
from cni_calico.policy.mesh import MESH
from cni_calico.policy.wanted import (
    Members,
    PolicyId,
    WantedChanges,
    WantedClass,
    WantedPolicy,
)

_STAGES = ""  # the base chains' name where lists are counted by the chain that uses them


class Goal:
    """Everything that is wanted. ``tables.of`` is what should be in the kernel."""

    def __init__(self, settings: FilterSettings) -> None:
        self.settings = settings
        self.tables = GoalTables()
        self.refused = RefusedParts()
        self.sets = FilterSets(self.tables)
        self.endpoints = EndpointRules(self.tables, settings)
        self.class_chains = ClassChains(
            self.tables, lambda: self.settings, lambda name, ingress: self.refused.classes.get((name, ingress), "")
        )
        self.hosts = HostRules(
            self.tables, lambda family: self.sets.has_networks(family, NODES), self.class_chains.may_pass
        )
        self.chains = PolicyChains(
            self.tables, self.sets, lambda: self.settings, self._why_denied, lambda one: one in self.hosts.dropping
        )
        self.policies: dict[PolicyId, WantedPolicy] = {}
        self.lacking: dict[OptionalFeature, str] = {}
        self.marking = PacketMarking(self.tables, self.sets, lambda: OptionalFeature.DSCP not in self.lacking)
        self._incomplete: tuple[frozenset[str], str] = (frozenset(), "")
        self._stages: dict[int, tuple[stages.Needed | None, tuple[str, ...]]] = {}
        for table in FILTER.values():
            for spec in stages.MAPS:
                self.tables.put_set(table, spec)
        self.tables.put_set(ARP, stages.OWN_ADDRESSES)
        self.tables.put_chain(ARP, stages.render_arp())
        self._tunnels = Tunnels()
        self.sets.make(NODES, Members())
        self._put_maps()
        self._render_stages()
        self._render_loopback()

    @property
    def problems(self) -> Mapping[PolicyId, str]:
        """The policies that deny, and why."""
        return self.chains.problems

    @property
    def classes(self) -> Mapping[str, WantedClass]:
        return self.class_chains.all

    def _families(self) -> tuple[int, ...]:
        return (4, 6) if self.settings.ipv6 else (4,)

    # -- changes ------------------------------------------------------------------------------------------------------

    def update(self, changes: WantedChanges) -> None:
        """Apply a change; what it touches is noted in ``tables``."""
        for name, members in changes.sets_made.items():
            self.sets.make(name, members)
        flipped = {name for name, change in changes.sets_changed.items() if self.sets.change(name, change)}
        again = set(changes.policies)
        if flipped:
            again |= {
                policy.id
                for policy in self.policies.values()
                if any(not flipped.isdisjoint(rule.set_ids()) for rule in policy.rules())
                and not self.chains.is_large(policy)
            }
        passed = self._update_policies(changes.policies, again)
        for wanted in filter(None, changes.classes.values()):
            self.class_chains.put(wanted)
        for class_id in [class_id for class_id, wanted in changes.classes.items() if wanted is None]:
            self._drop_class(class_id)  # what it shares with new ones has stayed
        if passed:
            self.class_chains.render_asking(passed)
        self.hosts.update(changes.hosts, changes.host_classes)
        if changes.hosts or changes.host_classes or (passed and self.hosts.all):
            self.render_hosts()
        if changes.endpoints:
            self.endpoints.update(changes.endpoints)
            self._render_stages()
            self._render_forwarding()
        self.marking.update({**changes.endpoints, **changes.hosts})
        if changes.endpoints or changes.hosts or MESH in changes.sets_made or MESH in flipped:
            self.marking.render(self.settings)
        for name in changes.sets_removed:
            self.refused.sets.pop(name, None)
            self.sets.remove(name)
        self.class_chains.forget_groups()

    def configure(self, settings: FilterSettings) -> None:
        """Use other parameters: everything is rendered again; sets and their members stay."""
        if settings == self.settings:
            return
        self.settings = settings
        self._put_maps()
        self.hosts.select(settings)
        for policy in self.policies.values():
            self._render_policy(policy)
        self.class_chains.render_all()
        self.endpoints.configure(settings)
        self._stages = {family: (None, names) for family, (_, names) in self._stages.items()}
        self._render_stages()
        self._render_loopback()
        self._render_tunnels()
        self.marking.render(settings)
        self.render_hosts()

    def use_interfaces(self, there: InterfaceAddresses) -> None:
        """Use other interfaces, or other addresses of them."""
        self.hosts.use_interfaces(there)
        self.render_hosts()

    def use_tunnels(self, tunnels: Tunnels) -> None:
        """Use other tunnels of this node, or other nodes."""
        if tunnels != self._tunnels:
            change = change_of_nodes(self._tunnels, tunnels)
            self._tunnels = tunnels
            self.sets.change(NODES, change)
            self._render_tunnels()
            self.render_hosts()

    def use_pools(self, pools: frozenset[Network]) -> None:
        """Use other IP pools: these are all there are."""
        self.marking.use_pools(pools)
        self.marking.render(self.settings)

    def give_up(self, policy: PolicyId, why: str) -> bool:
        """The kernel refuses its rules: deny instead, until the record changes. Returns whether that is new."""
        if policy in self.refused.policies:
            return False
        self.refused.policies[policy] = why
        if policy in self.policies:
            self._render_policy(self.policies[policy])
        return True

    def give_up_set(self, name: str, why: str) -> None:
        """The kernel refuses a set: every policy that names it denies."""
        self.refused.sets[name] = why
        for policy in self.policies.values():
            if any(name in rule.set_ids() for rule in policy.rules()):
                self._render_policy(policy)

    def wait_for(self, sets: frozenset[str], why: str) -> None:
        """The members of these sets are not known yet: policies that could allow too much without them deny."""
        before, self._incomplete = self._incomplete, (sets, why) if sets else (sets, "")
        if before != self._incomplete:
            for policy in self.policies.values():
                if self._waits(policy) or (before[1] and before[1] == self.problems.get(policy.id)):
                    self._render_policy(policy)

    def _waits(self, policy: WantedPolicy) -> str:
        sets, why = self._incomplete
        return why if sets and any(rule.may_open(sets) for rule in policy.rules()) else ""

    def assume_passing(self, policies: Mapping[bool, Collection[PolicyId]]) -> None:
        """Tiers check the mark after these policies (by whether ingress), until they are put again: others' rules stand
        in their place (kept.py).
        """
        new = self.class_chains.assume_passing(policies)
        if new:
            self.class_chains.render_asking(new)
        if new and self.hosts.all:
            self.render_hosts()

    def deny_class(self, class_id: str, ingress: bool, why: str) -> bool:
        """The kernel refuses its chain: drop in that direction. Returns whether that is new."""
        if (class_id, ingress) in self.refused.classes or class_id not in self.classes:
            return False
        self.refused.classes[class_id, ingress] = why
        self.class_chains.render(self.classes[class_id])
        return True

    def deny_interface(self, interface: str, why: str) -> bool:
        """The kernel refuses its entries: drop what it sends and gets. Returns whether that is new."""
        if interface in self.endpoints.denied:
            return False
        self.refused.interfaces[interface] = why
        self.endpoints.denied.add(interface)
        self.endpoints.configure(self.settings)
        self._render_forwarding()
        return True

    def deny_host_chain(self, name: str, why: str) -> bool:
        """The kernel refuses a chain of host endpoints: only failsafe ports. Returns whether that is new."""
        if name in self.refused.host_chains or not self.hosts.describe(name):
            return False
        self.refused.host_chains[name] = why
        self.render_hosts()
        return True

    def left_out(self) -> list[str]:
        """What is not in force as it should be, besides ``problems`` and ``lacking``."""
        found = [text for name, text in self.refused.texts() if not name or name in self.endpoints.denied]
        for (class_id, ingress), why in self.refused.classes.items():
            names = sorted(e.shown for e in self.endpoints.all.values() if e.class_id == class_id)
            direction = "to" if ingress else "from"
            found.append(f"everything {direction} {', '.join(names[:5])} ({len(names)} workloads) is denied: {why}")
        for name, why in self.refused.host_chains.items():
            found.append(f"{self.hosts.describe(name)} is denied: {why}")
        return found + self.marking.unclear(self.hosts.all.values()) + self.hosts.forwarding.describe()

    def lack(self, feature: OptionalFeature, why: str) -> None:
        """The kernel refuses what this feature needs: do without it."""
        self.lacking[feature] = why
        self.endpoints.checks_sources &= feature is not OptionalFeature.SOURCES
        if feature is OptionalFeature.LIMITS:
            self.lacking.pop(OptionalFeature.CONNECTIONS, None)  # they are part of that feature
        self._use_lacking()

    def forgive(self) -> None:
        """Want everything again that the kernel refused before: it may support more now, or have more memory."""
        refused, self.refused = self.refused, RefusedParts()
        if self.lacking:
            self.lacking.clear()
            self._use_lacking()
        if self.hosts.denied or refused.host_chains:
            self.hosts.denied.clear()
            self.render_hosts()
        if refused.interfaces:
            self.endpoints.denied.clear()
            self.endpoints.configure(self.settings)
            self._render_forwarding()
        for class_id in {class_id for class_id, _ in refused.classes} & self.classes.keys():
            self.class_chains.render(self.classes[class_id])
        again = {policy: self.policies[policy] for policy in self.problems if policy in self.policies}
        if again:
            self.update(WantedChanges(policies=dict(again)))

    def _use_lacking(self) -> None:
        self.endpoints.limit_to(
            Able(
                sources=OptionalFeature.SOURCES not in self.lacking,
                limits=OptionalFeature.LIMITS not in self.lacking,
                connections=OptionalFeature.CONNECTIONS not in self.lacking,
            )
        )
        self._render_stages()
        self._render_loopback()
        self._render_tunnels()
        self.marking.render(self.settings)

    # -- policies -----------------------------------------------------------------------------------------------------

    def _update_policies(self, changed: Mapping[PolicyId, WantedPolicy | None], again: set[PolicyId]) -> set[PolicyId]:
        """Render them; returns the policies after which tiers now have to check the mark, or no longer have to."""
        passed = set()
        for policy_id in again:
            before = self.policies.get(policy_id)
            after = changed.get(policy_id, before)
            if policy_id in changed:
                self.refused.policies.pop(policy_id, None)
            if after is None:
                self.policies.pop(policy_id, None)
                self.class_chains.note_passing(policy_id, None)
                self.chains.drop(policy_id)
                continue
            self.policies[policy_id] = after
            self._render_policy(after)
            if self.class_chains.note_passing(policy_id, after):
                passed.add(policy_id)
        return passed

    def _render_policy(self, policy: WantedPolicy) -> None:
        self.chains.render(policy)

    def _why_denied(self, policy: WantedPolicy) -> str:
        return self.refused.policies.get(policy.id, "") or self._refused_set(policy) or self._waits(policy)

    def _refused_set(self, policy: WantedPolicy) -> str:
        names = (name for rule in policy.rules() for name in rule.set_ids()) if self.refused.sets else ()
        found = next((name for name in names if name in self.refused.sets), "")
        return f"the kernel refuses a set of its rules ({found}): {self.refused.sets[found]}" if found else ""

    # -- classes and stages -------------------------------------------------------------------------------------------

    def _drop_class(self, class_id: str) -> None:
        for ingress in (True, False):
            self.refused.classes.pop((class_id, ingress), None)
        self.class_chains.remove(class_id)

    def render_hosts(self) -> None:
        """Again, after something that they depend on has changed."""
        before = self.hosts.dropping
        self.hosts.select(self.settings)
        for policy in before ^ self.hosts.dropping:
            if policy in self.policies:
                self._render_policy(self.policies[policy])
        for name in [name for name in self.refused.host_chains if not self.hosts.describe(name)]:
            del self.refused.host_chains[name]
        self.hosts.render(self.settings, self._tunnels, self.refused.host_chains.keys())
        self._render_forwarding()

    def _render_forwarding(self) -> None:
        self.hosts.forwarding.render(self.settings, self.endpoints, self.hosts.view)

    def _put_maps(self) -> None:
        """What rules look up for the recorder."""
        recording = self.settings.recording
        wanted = recording is not None and recording.allowed and not recording.by_iptables
        for table in FILTER.values():
            for spec, verdicts in MAPS.items():
                if wanted:
                    self.tables.put_map(table, spec, verdicts)
                else:
                    self.tables.drop_set(table, spec.name)

    def _render_stages(self) -> None:
        for family, table in FILTER.items():
            needed = self.endpoints.needed(table)
            before, old_names = self._stages.get(family, (None, ()))
            if needed == before:
                continue
            chains, lists = stages.render_stages(family, self.settings, needed)
            self.tables.use_lists(table, _STAGES, lists)
            for chain in chains:
                self.tables.put_chain(table, chain)
            names = tuple(chain.name for chain in chains)
            for name in old_names:
                if name not in names:
                    self.tables.drop_chain(table, name)
            self._stages[family] = needed, names

    def _render_loopback(self) -> None:
        if self.endpoints.checks_sources:
            self.tables.drop_chain(FILTER[4], standing.LOOPBACK_IN)
        else:
            self.tables.put_chain(FILTER[4], standing.render_loopback(self.settings))

    def _render_tunnels(self) -> None:
        for family, table in FILTER.items():
            chains = []
            if family in self._families():
                chains = render_tunnels(
                    family,
                    self._tunnels,
                    self.settings,
                    has_networks=self.sets.has_networks(family, NODES),
                    can_notrack=OptionalFeature.NOTRACK not in self.lacking,
                )
            for chain in chains:
                self.tables.put_chain(table, chain)
            for name in set(TUNNEL_CHAINS) - {chain.name for chain in chains}:
                self.tables.drop_chain(table, name)
