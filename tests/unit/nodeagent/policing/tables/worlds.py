"""Random policies, classes and endpoints for tests: values as policy/ gives them, always complete in themselves."""

from __future__ import annotations

import random
from ipaddress import ip_network
from typing import Any

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.hosts.interfaces import InterfaceAddresses
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import (
    Members,
    PacketLimits,
    PolicyId,
    PolicyReach,
    SetChange,
    Wanted,
    WantedChanges,
    WantedClass,
    WantedEndpoint,
    WantedHost,
    WantedHostClass,
    WantedPolicy,
    WantedRule,
    WantedSide,
    WantedTier,
)

ADDRESS_SETS = [f"s-app-{i}" for i in range(4)]
PORT_SETS = [f"p-web-{i}" for i in range(2)]
POLICIES = [PolicyId("NetworkPolicy", f"np{i}", "default") for i in range(3)] + [
    PolicyId("GlobalNetworkPolicy", f"gnp{i}") for i in range(3)
]
FORWARD, RAW, BEFORE_NAT = (
    [PolicyId("GlobalNetworkPolicy", f"{name}{i}") for i in range(2)] for name in ("f", "r", "b")
)
REACHES: dict[PolicyId, PolicyReach] = dict.fromkeys(FORWARD, "forward") | dict.fromkeys(RAW, "raw")
REACHES |= dict.fromkeys(BEFORE_NAT, "beforeNat")
THERE = {
    "eth0": frozenset((bytes((10, 65, 0, 0)),)),
    "eth1": frozenset((bytes((10, 65, 0, 1)),)),
    "kube-ipvs0": frozenset[bytes](),
}
PROFILES = [PolicyId("Profile", f"kns.ns{i}") for i in range(2)]
NETS = [
    ip_network(text) for text in ("10.0.0.0/8", "10.65.0.0/26", "192.0.2.7/32", "0.0.0.0/0", "2001:db8::/64", "::/0")
]
PACKED_NETS = [(net.network_address.packed, net.prefixlen) for net in NETS if net.prefixlen not in (32, 128)]


def v4(number: int) -> bytes:
    return bytes((10, 65, number >> 8, number & 255))


def v6(number: int) -> bytes:
    return bytes.fromhex("fd00") + bytes(12) + number.to_bytes(2, "big")


def random_members(rng: random.Random, name: str) -> Members:
    count = rng.randrange(4)
    if name in PORT_SETS:
        return Members(ports=frozenset((v4(rng.randrange(9)), 6, 80 + i) for i in range(count)))
    addresses = [rng.choice((v4, v6))(rng.randrange(9)) for _ in range(count)]
    nets = rng.sample([PACKED_NETS[1], PACKED_NETS[3]], rng.randrange(3))
    return Members(frozenset(addresses), frozenset(nets))


def random_side(rng: random.Random, *, ports: bool) -> WantedSide:
    def some(of: list[Any], most: int = 2) -> tuple[Any, ...]:
        return tuple(rng.sample(of, rng.randrange(most + 1))) if rng.random() < 0.4 else ()

    ranges = [(80, 80), (443, 443), (8000, 8010), (1, 60000)]
    return WantedSide(
        nets=some(NETS),
        not_nets=some(NETS[:3]),
        ports=some(ranges) if ports else (),
        port_sets=some(PORT_SETS, 1),
        not_ports=some(ranges) if ports else (),
        not_port_sets=some(PORT_SETS, 1),
        sets=some(ADDRESS_SETS, 1),
        not_sets=some(ADDRESS_SETS),
    )


def random_rule(rng: random.Random) -> WantedRule:
    protocol = rng.choice((None, 6, 17, 1))
    ports = protocol in (6, 17)
    icmp = (8, rng.choice((None, 0))) if protocol == 1 and rng.random() < 0.5 else None
    return WantedRule(
        rng.choice(("Allow", "Deny", "Pass", "Log")),
        families=(4,) if protocol == 1 else rng.choice(((4, 6), (4,), (6,))),
        protocol=protocol,
        icmp=icmp,
        not_icmp=(3, None) if protocol != 6 and rng.random() < 0.2 else None,
        source=random_side(rng, ports=ports),
        destination=random_side(rng, ports=ports),
        annotations=(("why", 'b"ecause\n'),) if rng.random() < 0.2 else (),
    )


def random_policy(rng: random.Random, policy: PolicyId, needed: tuple[bool, bool]) -> WantedPolicy:
    """Governs at least the directions that are needed: (ingress, egress)."""

    def rules() -> tuple[WantedRule, ...]:
        return tuple(random_rule(rng) for _ in range(rng.randrange(4)))

    is_profile = policy.kind == "Profile"
    ingress = rules() if needed[0] or is_profile or rng.random() < 0.5 else None
    egress = rules() if needed[1] or is_profile or rng.random() < 0.5 else None
    return WantedPolicy(policy, "" if is_profile else "default", ingress, egress, REACHES.get(policy, "own"))


def random_wanted(rng: random.Random) -> Wanted:
    """A complete value: classes of random tiers, their policies and the sets those use."""
    classes: dict[str, WantedClass] = {}
    for number in range(rng.randrange(1, 4)):
        chosen = rng.sample(POLICIES, rng.randrange(len(POLICIES)))
        halves = (chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :])
        tiers = tuple(
            WantedTier(f"tier{i}", tuple(half), rng.choice(("Deny", "Pass"))) for i, half in enumerate(halves) if half
        )
        profiles = tuple(rng.sample(PROFILES, rng.randrange(3)))
        ingress, egress = rng.choice(((tiers, ()), ((), tiers), (tiers, tiers)))
        name = f"c{number}-{rng.randrange(1 << 30):x}"
        classes[name] = WantedClass(name, ingress, egress, profiles)
    host_classes, hosts = random_hosts(rng)
    used: dict[PolicyId, tuple[bool, bool]] = {}
    for wanted in (*classes.values(), *host_classes.values()):
        for tiers, flags in (*_directions(wanted),):
            for policy in (p for tier in tiers for p in tier.policies):
                before = used.get(policy, (False, False))
                used[policy] = (before[0] or flags[0], before[1] or flags[1])
        for profile in wanted.profiles:
            used[profile] = (True, True)
    policies = {policy: random_policy(rng, policy, needed) for policy, needed in used.items()}
    names = {name for policy in policies.values() for rule in policy.rules() for name in rule.set_ids()}
    endpoints = {}
    for i in range(rng.randrange(6)):
        key = ResourceKey("WorkloadEndpoint", f"n1-k8s-pod{i}-eth0", "default")
        endpoints[key] = WantedEndpoint(
            key,
            f"cali{i if rng.random() < 0.9 else i + 10}",
            rng.choice(sorted(classes)),
            (v4(i), v6(i)),
            spoofing=tuple(rng.sample(NETS[:2], rng.randrange(2))),
            ingress_limits=PacketLimits(100, 5, 3) if rng.random() < 0.3 else PacketLimits(),
            egress_limits=PacketLimits(max_connections=7) if rng.random() < 0.3 else PacketLimits(),
            orchestrator="k8s",
            workload=f"default/pod{i // 2}",
            container=rng.choice(("", "c1", "c2")),
        )
    sets = {name: random_members(rng, name) for name in sorted(names)}
    return Wanted(sets, policies, classes, endpoints, host_classes, hosts)


def _directions(wanted: WantedClass | WantedHostClass) -> list[tuple[tuple[WantedTier, ...], tuple[bool, bool]]]:
    found = [(wanted.ingress, (True, False)), (wanted.egress, (False, True))]
    if isinstance(wanted, WantedHostClass):
        found += [(wanted.before_nat + wanted.raw_ingress, (True, False)), (wanted.raw_egress, (False, True))]
    return found


def random_hosts(rng: random.Random) -> tuple[dict[str, WantedHostClass], dict[ResourceKey, WantedHost]]:
    """Mostly none. ``FORWARD``, ``RAW`` and ``BEFORE_NAT`` have policies of their own."""

    def tiers(of: list[PolicyId], end: Any = None) -> tuple[WantedTier, ...]:
        chosen = rng.sample(of, rng.randrange(len(of) + 1))
        return tuple(
            WantedTier(f"tier{i}", (one,), end or rng.choice(("Deny", "Pass"))) for i, one in enumerate(chosen)
        )

    classes, hosts = {}, {}
    for i in range(rng.choice((0, 0, 1, 3))):
        forward = (tiers(FORWARD), tiers(FORWARD))
        own = tuple(one + tiers(POLICIES[3:]) for one in forward)
        early = (tiers(BEFORE_NAT, "Pass"), tiers(RAW, "Pass"), tiers(RAW, "Pass"))
        name = f"h{i}-{rng.randrange(1 << 30):x}"
        classes[name] = WantedHostClass(name, *own, *forward, *early, tuple(rng.sample(PROFILES, rng.randrange(3))))
        key = ResourceKey("HostEndpoint", f"host{i}")
        hosts[key] = WantedHost(key, rng.choice(("*", "", "eth0", "eth1")), name, (v4(i),))
    return classes, hosts


def difference(before: Wanted, after: Wanted) -> WantedChanges:
    def members(plus: Members, minus: Members) -> Members:
        return Members(plus.addresses - minus.addresses, plus.nets - minus.nets, plus.ports - minus.ports)

    def changed(old: Any, new: Any) -> Any:
        return {key: new.get(key) for key in {**old, **new} if old.get(key) != new.get(key)}

    both = before.sets.keys() & after.sets.keys()
    return WantedChanges(
        sets_made={name: after.sets[name] for name in after.sets.keys() - both},
        sets_changed={
            name: SetChange(members(after.sets[name], before.sets[name]), members(before.sets[name], after.sets[name]))
            for name in both
            if before.sets[name] != after.sets[name]
        },
        sets_removed=frozenset(before.sets.keys() - both),
        policies=changed(before.policies, after.policies),
        classes=changed(before.classes, after.classes),
        endpoints=changed(before.endpoints, after.endpoints),
        host_classes=changed(before.host_classes, after.host_classes),
        hosts=changed(before.hosts, after.hosts),
    )


def goal_of(wanted: Wanted, settings: FilterSettings, there: InterfaceAddresses | None = None) -> Goal:
    """Everything in one step; ``there``: the interfaces."""
    goal = Goal(settings)
    goal.use_interfaces(there or {})
    goal.update(difference(Wanted(), wanted))
    return goal
