"""Whatever comes into force, and whenever a reader looks: it has the engine's state, and nothing is named too early."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.sync import known as known_module
from cni_calico.nodeagent.sync import messages as messages_module
from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.sync.felix_pb2 import ToDataplane
from cni_calico.nodeagent.sync.known import KnownPolicies
from cni_calico.nodeagent.sync.subscription import Subscription
from cni_calico.policy.wanted import (
    Members,
    PolicyId,
    SetChange,
    Wanted,
    WantedChanges,
    WantedClass,
    WantedEndpoint,
    WantedPolicy,
    WantedRule,
    WantedSide,
    WantedTier,
)

SETS = ("s-a", "s-b", "p-c")
PODS = ("web", "db")


class Reader:
    """What a program does with the messages; it refuses what names something that it does not have."""

    def __init__(self) -> None:
        self.sets: dict[str, set[str]] = {}
        self.policies: dict[tuple[str, ...], Any] = {}
        self.endpoint: Any = None
        self.in_sync = self.ended = False
        self.namespaces: dict[str, dict[str, str]] = {}
        self.accounts: dict[tuple[str, str], dict[str, str]] = {}

    def read(self, messages: list[bytes]) -> None:
        for data in messages:
            assert not self.ended
            message = ToDataplane.FromString(data)
            kind = message.WhichOneof("payload")
            getattr(self, kind)(getattr(message, kind))

    def ipset_update(self, update: Any) -> None:
        assert len(update.members) == len(set(update.members))
        assert update.type == (update.IP_AND_PORT if update.id.startswith("p-") else update.NET)
        self.sets[update.id] = set(update.members)

    def ipset_delta_update(self, update: Any) -> None:
        members = self.sets[update.id]
        assert members >= set(update.removed_members) and members.isdisjoint(update.added_members)
        members -= set(update.removed_members)
        members |= set(update.added_members)

    def ipset_remove(self, removal: Any) -> None:
        assert all(removal.id not in named(policy) for policy in self.policies.values())
        del self.sets[removal.id]

    def active_policy_update(self, update: Any) -> None:
        assert named(update.policy) <= self.sets.keys()
        self.policies[id_of(update.id)] = update.policy

    def active_policy_remove(self, removal: Any) -> None:
        assert id_of(removal.id) not in self.named_policies()
        del self.policies[id_of(removal.id)]

    def active_profile_update(self, update: Any) -> None:
        assert named(update.profile) <= self.sets.keys()
        self.policies["Profile", update.id.name] = update.profile

    def active_profile_remove(self, removal: Any) -> None:
        assert ("Profile", removal.id.name) not in self.named_policies()
        del self.policies["Profile", removal.id.name]

    def workload_endpoint_update(self, update: Any) -> None:
        self.endpoint = update.endpoint
        assert self.named_policies() <= self.policies.keys()

    def workload_endpoint_remove(self, removal: Any) -> None:
        assert self.endpoint is not None and removal.id.endpoint_id == "eth0"
        self.endpoint, self.ended = None, True

    def namespace_update(self, update: Any) -> None:
        self.namespaces[update.id.name] = dict(update.labels)

    def namespace_remove(self, removal: Any) -> None:
        self.namespaces.pop(removal.id.name, None)

    def service_account_update(self, update: Any) -> None:
        self.accounts[update.id.namespace, update.id.name] = dict(update.labels)

    def service_account_remove(self, removal: Any) -> None:
        self.accounts.pop((removal.id.namespace, removal.id.name), None)

    def in_sync_now(self) -> None:
        assert self.endpoint is not None and not self.in_sync
        self.in_sync = True

    def named_policies(self) -> set[tuple[str, ...]]:
        tiers = self.endpoint.tiers
        found = {id_of(one) for tier in tiers for one in (*tier.ingress_policies, *tier.egress_policies)}
        return found | {("Profile", name) for name in self.endpoint.profile_ids}


def read(reader: Reader, messages: list[bytes]) -> None:
    for data in messages:
        if ToDataplane.FromString(data).WhichOneof("payload") == "in_sync":
            reader.in_sync_now()
        else:
            reader.read([data])


def id_of(policy: Any) -> tuple[str, ...]:
    return policy.kind, policy.namespace, policy.name


def named(policy: Any) -> set[str]:
    rules = [*policy.inbound_rules, *policy.outbound_rules]
    return {
        name
        for rule in rules
        for listed in (
            rule.src_ip_set_ids,
            rule.dst_ip_set_ids,
            rule.not_src_ip_set_ids,
            rule.not_dst_ip_set_ids,
            rule.src_named_port_ip_set_ids,
            rule.dst_named_port_ip_set_ids,
            rule.dst_ip_port_set_ids,
        )
        for name in listed
    }


# -- what may be wanted -----------------------------------------------------------------------------------------------

addresses = st.sampled_from([ip_address(text).packed for text in ("10.0.0.1", "10.0.0.2", "fd00::1")])
nets = st.sampled_from([(ip_address(text).packed, length) for text, length in (("10.1.0.0", 16), ("fd00:1::", 64))])
ports = st.tuples(addresses, st.sampled_from([6, 17]), st.sampled_from([80, 443]))


@st.composite
def members(draw: Any, name: str) -> Members:
    if name.startswith("p-"):
        return Members(ports=draw(st.frozensets(ports, max_size=3)))
    return Members(draw(st.frozensets(addresses, max_size=3)), draw(st.frozensets(nets, max_size=2)))


@st.composite
def rules(draw: Any) -> WantedRule:
    plain = draw(st.lists(st.sampled_from(["s-a", "s-b"]), unique=True, max_size=2))
    port_sets = ("p-c",) if draw(st.booleans()) else ()
    side = WantedSide(sets=tuple(plain[:1]), not_sets=tuple(plain[1:]), port_sets=port_sets)
    return WantedRule(draw(st.sampled_from(["Allow", "Deny"])), source=side)


@st.composite
def states(draw: Any) -> Wanted:
    """Everything that is referred to exists, and only that."""
    ids = [PolicyId("GlobalNetworkPolicy", name) for name in "abc"] + [PolicyId("NetworkPolicy", "a", "shop")]
    profiles = [PolicyId("Profile", name) for name in ("kns.shop", "kns.x")]
    classes, endpoints = {}, {}
    for pod in draw(st.lists(st.sampled_from(PODS), unique=True)):
        chosen = draw(st.lists(st.sampled_from(ids), unique=True, max_size=3))
        end = draw(st.sampled_from(["Deny", "Pass"]))
        tiers = tuple(WantedTier(f"t{i}", (one,), end) for i, one in enumerate(chosen))
        egress = tuple(tier for tier in tiers if draw(st.booleans()))
        its = WantedClass("", tiers, egress, tuple(draw(st.lists(st.sampled_from(profiles), unique=True, max_size=1))))
        its = WantedClass(f"c-{hash(its)}", its.ingress, its.egress, its.profiles)
        classes[its.id] = its
        key = ResourceKey("WorkloadEndpoint", pod, "shop")
        more = {"orchestrator": "k8s", "workload": f"shop/{pod}", "endpoint": "eth0"}
        endpoints[key] = WantedEndpoint(key, f"cali{pod}", its.id, (draw(addresses),), **more)
    needed = sorted({name for its in classes.values() for name in its.policy_ids()}, key=str)
    policies = {}
    for name in needed:
        directions = [draw(st.none() | st.lists(rules(), max_size=2).map(tuple)) for _ in range(2)]
        policies[name] = WantedPolicy(name, "" if name.kind == "Profile" else "t", *directions)
    named_sets = {name for policy in policies.values() for rule in policy.rules() for name in rule.set_ids()}
    sets = {name: draw(members(name)) for name in sorted(named_sets)}
    return Wanted(sets, policies, classes, endpoints)


def differing(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: after.get(key) for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


def changes_between(before: Wanted, after: Wanted) -> WantedChanges:
    changed = {}
    for name in before.sets.keys() & after.sets.keys():
        was, is_now = before.sets[name], after.sets[name]
        if was != is_now:
            parts = [(getattr(is_now, part), getattr(was, part)) for part in ("addresses", "nets", "ports")]
            changed[name] = SetChange(Members(*(a - b for a, b in parts)), Members(*(b - a for a, b in parts)))
    return WantedChanges(
        {name: one for name, one in after.sets.items() if name not in before.sets},
        changed,
        frozenset(before.sets.keys() - after.sets.keys()),
        differing(before.policies, after.policies),
        differing(before.classes, after.classes),
        differing(before.endpoints, after.endpoints),
        differing(before.host_classes, after.host_classes),
        differing(before.hosts, after.hosts),
    )


# -- what a reader must have ------------------------------------------------------------------------------------------


def text_of(member: Any) -> str:
    if isinstance(member, bytes):
        return f"{ip_address(member)}/{ip_address(member).max_prefixlen}"
    if len(member) == 2:
        return f"{ip_address(member[0])}/{member[1]}"
    return f"{ip_address(member[0])},{ {6: 'tcp', 17: 'udp'}[member[1]] }:{member[2]}"


def assert_has(reader: Reader, wanted: Wanted, pod: str) -> None:
    found = wanted.endpoints.get(ResourceKey("WorkloadEndpoint", pod, "shop"))
    if found is None:
        assert reader.endpoint is None
        return
    its = wanted.classes[found.class_id]
    assert reader.endpoint.name == found.interface
    assert list(reader.endpoint.ipv4_nets) + list(reader.endpoint.ipv6_nets) == [text_of(found.addresses[0])]
    for direction in ("ingress", "egress"):
        tiers = [
            (tier.name, tier.default_action, [id_of(one) for one in getattr(tier, f"{direction}_policies")])
            for tier in reader.endpoint.tiers
            if getattr(tier, f"{direction}_policies")
        ]
        expected = [
            (tier.name, tier.end, [(one.kind, one.namespace, one.name) for one in tier.policies])
            for tier in getattr(its, direction)
        ]
        assert tiers == expected
    assert list(reader.endpoint.profile_ids) == [profile.name for profile in its.profiles]
    needed = {name: wanted.policies[name] for name in its.policy_ids()}
    assert len(reader.policies) == len(needed)
    for name, policy in needed.items():
        key = ("Profile", name.name) if name.kind == "Profile" else (name.kind, name.namespace, name.name)
        has = reader.policies[key]
        for got, rules_wanted in ((has.inbound_rules, policy.ingress), (has.outbound_rules, policy.egress)):
            assert [(one.action, list(one.src_ip_set_ids), list(one.not_src_ip_set_ids)) for one in got] == [
                (one.action.lower(), list(one.source.sets), list(one.source.not_sets)) for one in rules_wanted or ()
            ]
            assert [list(one.src_named_port_ip_set_ids) for one in got] == [
                list(one.source.port_sets) for one in rules_wanted or ()
            ]
    named_sets = {name for policy in needed.values() for rule in policy.rules() for name in rule.set_ids()}
    assert reader.sets == {
        name: {text_of(one) for part in ("addresses", "nets", "ports") for one in getattr(wanted.sets[name], part)}
        for name in named_sets
    }


@dataclass
class Following:
    pod: str
    subscription: Subscription
    reader: Reader = field(default_factory=Reader)


steps = st.tuples(states(), st.booleans(), st.sets(st.integers(0, 5)), st.none() | st.sampled_from(PODS))


@pytest.fixture(autouse=True)
def little_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that readers lag, and sets do not fit into a message."""
    monkeypatch.setattr(known_module, "_CHANGES", 2)
    monkeypatch.setattr(messages_module, "MOST_MEMBERS", 2)


@settings(max_examples=100, deadline=None)
@given(st.lists(steps, min_size=1, max_size=6))
def test_readers_have_what_is_in_force_whenever_they_look(history: list[Any]) -> None:
    """Each step: what is in force, whether that is told as a whole, who looks, and who joins."""
    policies, accounts = KnownPolicies(), ClusterAccounts()
    accounts.complete = True
    followers: list[Following] = []
    before = Wanted()
    for wanted, as_whole, looking, joins in history:
        if as_whole or not policies.ready:
            policies.become(wanted)
        else:
            policies.receive(changes_between(before, wanted))
        before = wanted
        if joins is not None:
            name = ("k8s", f"shop/{joins}", "eth0")
            followers.append(Following(joins, Subscription(name, policies, accounts)))
        for i, one in enumerate(followers):
            if i in looking or wanted is history[-1][0]:
                read(one.reader, one.subscription.due())
                if one.reader.ended:
                    assert one.subscription.ended and not one.subscription.due()
                else:
                    assert_has(one.reader, wanted, one.pod)
                    assert one.reader.in_sync == (one.reader.endpoint is not None)
                    assert not one.subscription.due()


def test_nothing_is_said_before_the_engine_has_spoken_and_the_pod_is_there() -> None:
    policies, accounts = KnownPolicies(), ClusterAccounts()
    subscription = Subscription(("k8s", "shop/web", "eth0"), policies, accounts)
    assert subscription.due() == [] and not subscription.ended
    policies.become(Wanted())
    assert subscription.due() == [] and not subscription.ended


def test_in_sync_waits_for_the_clusters_accounts() -> None:
    policies, accounts = KnownPolicies(), ClusterAccounts()
    key, its = ResourceKey("WorkloadEndpoint", "web", "shop"), WantedClass("c", (), (), ())
    endpoint = WantedEndpoint(key, "cali1", "c", (), orchestrator="k8s", workload="shop/web", endpoint="eth0")
    policies.become(Wanted(classes={"c": its}, endpoints={key: endpoint}))
    subscription, reader = Subscription(("k8s", "shop/web", "eth0"), policies, accounts), Reader()
    read(reader, subscription.due())
    assert reader.endpoint is not None and not reader.in_sync
    accounts.put("kns.shop", {"pcns.team": "a", "projectcalico.org/x": "y"})
    accounts.put("ksa.shop.robot", {"pcsa.role": "r"})
    accounts.complete = True
    read(reader, subscription.due())
    assert reader.in_sync and reader.namespaces == {"shop": {"team": "a"}}
    assert reader.accounts == {("shop", "robot"): {"role": "r"}}
    accounts.put("kns.shop", None)
    read(reader, subscription.due())
    assert reader.namespaces == {}


def test_a_change_is_a_message_once_for_all_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def encode(name: str, change: SetChange) -> Iterator[bytes]:
        made.append(name)
        return messages_module.encode_set_change(name, change)

    monkeypatch.setattr(known_module, "encode_set_change", encode)
    name = PolicyId("GlobalNetworkPolicy", "a")
    its = WantedClass("c", (WantedTier("t", (name,), "Deny"),), (), ())
    policy = WantedPolicy(name, "t", (WantedRule("Allow", source=WantedSide(sets=("s-a",))),), None)
    keys = [ResourceKey("WorkloadEndpoint", f"p{i}", "shop") for i in range(250)]
    of = {"orchestrator": "k8s", "endpoint": "eth0"}
    endpoints = {key: WantedEndpoint(key, key.name, "c", (), workload=f"shop/{key.name}", **of) for key in keys}
    policies, accounts = KnownPolicies(), ClusterAccounts()
    policies.become(Wanted({"s-a": Members()}, {name: policy}, {"c": its}, endpoints))
    readers = [Subscription(("k8s", f"shop/{key.name}", "eth0"), policies, accounts) for key in keys]
    assert all(reader.due() for reader in readers)
    change = SetChange(Members(frozenset((b"\n\0\0\1",))))
    policies.receive(WantedChanges(sets_changed={"s-a": change}))
    assert {tuple(reader.due()) for reader in readers} == {tuple(messages_module.encode_set_change("s-a", change))}
    assert made == ["s-a"]
