"""``calicoctl policy show``: which policies apply to a workload or a host endpoint, in their order."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from cni_calico.ctl.output.escaping import shown_lines
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.claims import describe_unconfirmed, unconfirmed
from cni_calico.ctl.policy.host_records import (
    HOST_PREFIX,
    HostRecords,
    everywhere_on,
    host_records,
    named_host,
    overruled_by,
)
from cni_calico.ctl.policy.named_ends import find_end
from cni_calico.ctl.policy.records import PolicyRecords, load, workload_name
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import asked_host
from cni_calico.policy.wanted import Direction, PolicyReach, Wanted, WantedTier


def show(session: Session, arguments: Namespace) -> str:
    if bool(arguments.endpoint) == bool(arguments.all):
        raise InvalidConfig("cannot show policies: name a workload, or give --all")
    records = load(session, arguments)
    every = host_records(records)
    if arguments.all:
        keys = [key for key, record in records.endpoints.items() if arguments.node in ("", record.node)]
        hosts = [key for key, host in every.items() if arguments.node in ("", host.node)]
    elif arguments.endpoint.startswith(HOST_PREFIX):
        keys, hosts = [], [named_host(records, arguments.endpoint.removeprefix(HOST_PREFIX))[0]]
    else:
        hosts = []
        end = find_end(records, arguments.endpoint, arguments.namespace)
        if end.key is None:
            raise CommandFailed(f"cannot show policies: no workload has {arguments.endpoint}")
        keys = [end.key]
    everywhere = (everywhere_on(every, every[key].node) for key in hosts)
    graph = records.graph([*keys, *hosts, *(key for key in everywhere if key is not None)], members=False)
    for key, why in graph.problems.items():
        arguments.warn(f"{describe(key)} is not in force: {why}")
    for warning in graph.facts.told_warnings():
        arguments.warn(warning)
    for endpoint in sorted((key for key in keys if key in records.claimed), key=str):
        if claimed := unconfirmed(records.claimed.get(endpoint)):
            arguments.warn(describe_unconfirmed(f"{endpoint.namespace}/{records.endpoint(endpoint).pod}", claimed))
    wanted = graph.wanted()
    if arguments.output != TABLE:
        found = [_described(records, wanted, key) for key in sorted(keys, key=lambda key: (key.namespace, key.name))]
        shown_hosts = [_described_host(every, wanted, key) for key in hosts]
        return render_value({"workloads": found, "hostEndpoints": shown_hosts}, arguments.output)
    shown = [_shown(records, wanted, key) for key in sorted(keys, key=lambda key: (key.namespace, key.name))]
    shown += [_shown_host(records, every, wanted, key) for key in hosts]
    return shown_lines("\n".join(shown)) if shown else "No workloads.\n"


_HOST_SECTIONS: tuple[tuple[str, PolicyReach, Direction], ...] = (
    ("ingress, before connection tracking (doNotTrack)", "raw", "ingress"),
    ("ingress, before addresses are translated (preDNAT)", "beforeNat", "ingress"),
    ("ingress of what is forwarded (applyOnForward)", "forward", "ingress"),
    ("ingress of the host itself, after failsafe ports", "own", "ingress"),
    ("egress, before connection tracking (doNotTrack)", "raw", "egress"),
    ("egress of what is forwarded (applyOnForward)", "forward", "egress"),
    ("egress of the host itself, after failsafe ports", "own", "egress"),
)


def _described_host(hosts: HostRecords, wanted: Wanted, key: ResourceKey) -> dict[str, Any]:
    host, group = hosts[key], wanted.host_classes[wanted.hosts[key].class_id]
    found: dict[str, Any] = {"name": key.name, "node": host.node, "interface": host.interface}
    other = overruled_by(hosts, key)
    found |= {"overruledBy": other.name} if other else {}
    everywhere = everywhere_on(hosts, host.node)
    for _, reach, direction in _HOST_SECTIONS:
        _, tiers = _tiers(wanted, key, everywhere, reach, direction)
        found.setdefault(direction, {})[reach] = [
            {"tier": tier.name, "policies": [str(policy) for policy in tier.policies], "end": tier.end}
            for tier in tiers
        ]
    return {**found, "profiles": [profile.name for profile in group.profiles]}


def _shown_host(records: PolicyRecords, hosts: HostRecords, wanted: Wanted, key: ResourceKey) -> str:
    """Stages without policies are left out, except the host's own traffic, which is closed then."""
    host, group = hosts[key], wanted.host_classes[wanted.hosts[key].class_id]
    where = {"*": "all interfaces without one of their own", "": "the interface with its expectedIPs"}
    lines = [f"HostEndpoint {key.name} on {host.node}, {where.get(host.interface, host.interface)}"]
    other = overruled_by(hosts, key)
    if other:
        lines.append(f"  not in force: HostEndpoint {other.name} names the same, and comes first by its name")
    everywhere = everywhere_on(hosts, host.node)
    for title, reach, direction in _HOST_SECTIONS:
        asked, tiers = _tiers(wanted, key, everywhere, reach, direction)
        if not tiers and reach != "own":
            continue
        lines.append(f"  {title}{'' if asked == key else f', of HostEndpoint {asked.name}'}")
        for tier in tiers:
            lines += [f"    tier {tier.name}", *_policies(records, wanted, tier, direction)]
            end = "denied" if tier.end == "Deny" else "continues"
            lines.append(f"      if none of their rules matches: {end}")
        if reach == "own":
            lines += [f"    profile {profile.name}" for profile in group.profiles]
        missing = host.labelled.profiles[len(group.profiles) :][:1]
        rest = f"profile {missing[0]} does not exist: everything is denied" if missing else "the rest: denied"
        lines.append(f"    {rest if reach == 'own' else 'the rest: continues'}")
    return "\n".join([*lines, ""])


def _tiers(
    wanted: Wanted, key: ResourceKey, everywhere: ResourceKey | None, reach: PolicyReach, direction: Direction
) -> tuple[ResourceKey, tuple[WantedTier, ...]]:
    """Those that decide at a host endpoint's interface, and the host endpoint to which they apply."""
    asked = asked_host(wanted, key, everywhere, reach)
    return asked, wanted.host_classes[wanted.hosts[asked].class_id].tiers(reach, direction == "ingress")


def _described(records: PolicyRecords, wanted: Wanted, key: ResourceKey) -> dict[str, Any]:
    """A workload with its tiers, each with its policies in order; without them if it is not policed."""
    record = records.endpoint(key)
    found: dict[str, Any] = {
        "namespace": key.namespace,
        "name": workload_name(key, record),
        "node": record.node,
        "interface": record.interface_name,
        "addresses": [str(net.network_address) for net in record.ip_networks],
        "policed": key in wanted.endpoints,
    }
    claimed = [str(net.network_address) for net in unconfirmed(records.claimed.get(key))]
    found |= {"unconfirmed": claimed} if claimed else {}
    if key not in wanted.endpoints:
        return found
    dispute = records.dispute(key)
    found |= {"disputed": dispute} if dispute else {}
    group = wanted.classes[wanted.endpoints[key].class_id]
    for direction, tiers in (("ingress", group.ingress), ("egress", group.egress)):
        found[direction] = [
            {"tier": tier.name, "policies": [str(policy) for policy in tier.policies], "end": tier.end}
            for tier in tiers
        ]
    return {**found, "profiles": [profile.name for profile in group.profiles]}


def _shown(records: PolicyRecords, wanted: Wanted, key: ResourceKey) -> str:
    record = records.endpoint(key)
    claimed = unconfirmed(records.claimed.get(key))
    each = (f"{net.network_address}{' (not confirmed)' if net in claimed else ''}" for net in record.ip_networks)
    addresses = ", ".join(each) or "no address"
    lines = [f"{key.namespace}/{workload_name(key, record)} on {record.node}, {record.interface_name}, {addresses}"]
    if key not in wanted.endpoints:
        why = "it names no interface" if record.ip_networks else "it has no address (any more)"
        return "\n".join([*lines, f"  not policed: {why}", ""])
    dispute = records.dispute(key)
    lines += [f"  disputed: {dispute}"] if dispute else []
    directions: tuple[Direction, ...] = ("ingress", "egress")
    for direction in directions:
        lines += [f"  {direction}", *_direction(records, wanted, key, direction)]
    return "\n".join([*lines, ""])


def _direction(records: PolicyRecords, wanted: Wanted, key: ResourceKey, direction: Direction) -> Iterator[str]:
    group = wanted.classes[wanted.endpoints[key].class_id]
    tiers = group.ingress if direction == "ingress" else group.egress
    for tier in tiers:
        yield f"    tier {tier.name}"
        yield from _policies(records, wanted, tier, direction)
        yield f"      if none of their rules matches: {'denied' if tier.end == 'Deny' else 'continues'}"
    if tiers and tiers[-1].end == "Deny" and not _passes(wanted, tiers, direction):
        return
    for profile in group.profiles:
        rules = wanted.policies[profile]
        count = len((rules.ingress if direction == "ingress" else rules.egress) or ())
        yield f"    profile {profile.name} ({_counted(count)})"
        if direction == "ingress" and _lets_in_members_only(records, profile.name):
            yield f"      lets in members of network {profile.name} only: its published ports are closed to others"
    missing = records.endpoint(key).profiles[len(group.profiles) :][:1]
    yield f"    profile {missing[0]} does not exist: everything is denied" if missing else "    the rest: denied"


def _lets_in_members_only(records: PolicyRecords, profile: str) -> bool:
    """Whether a profile is one that the plugin makes for a network by default."""
    spec = records.documents.get(ResourceKey("Profile", profile), {}).get("spec") or {}
    return [(rule.get("source") or {}).get("selector") for rule in spec.get("ingress") or ()] == [f"has({profile})"]


def _policies(records: PolicyRecords, wanted: Wanted, tier: WantedTier, direction: Direction) -> Iterator[str]:
    for i, policy in enumerate(tier.policies, 1):
        rules = wanted.policies[policy]
        count = len((rules.ingress if direction == "ingress" else rules.egress) or ())
        is_new = ResourceKey(policy.kind, policy.name, policy.namespace) in records.overlaid
        size = "over the budget: denies" if policy in records.over_budget else _counted(count)
        yield f"      {i}. {policy} ({size}{', not applied yet' if is_new else ''})"


def _counted(count: int) -> str:
    return f"{count} rule{'' if count == 1 else 's'}"


def _passes(wanted: Wanted, tiers: tuple[WantedTier, ...], direction: Direction) -> bool:
    """Whether a Pass rule of the last tier can lead to the profiles."""
    for name in tiers[-1].policies:
        policy = wanted.policies[name]
        if any(rule.action == "Pass" for rule in (policy.ingress if direction == "ingress" else policy.egress) or ()):
            return True
    return False
