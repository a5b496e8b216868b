"""``calicoctl policy show``: which policies apply to a workload, in the order in which they are asked."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.explain import find_end
from cni_calico.ctl.policy.records import PolicyRecords, load
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import describe
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.rules import Direction
from cni_calico.policy.wanted import Wanted, WantedTier


def show(session: Session, arguments: Namespace) -> str:
    if bool(arguments.endpoint) == bool(arguments.all):
        raise InvalidConfig("cannot show policies: name a workload, or say --all")
    records = load(session, arguments)
    if arguments.all:
        keys = [key for key, record in records.endpoints.items() if arguments.node in ("", record.node)]
    else:
        end = find_end(records, arguments.endpoint, arguments.namespace)
        if end.key is None:
            raise CommandFailed(f"cannot show policies: no workload has {arguments.endpoint}")
        keys = [end.key]
    graph = records.graph(keys)
    for key, why in graph.problems.items():
        arguments.warn(f"{describe(key)} is not in force: {why}")
    wanted = graph.wanted()
    if arguments.output != TABLE:
        found = [_described(records, wanted, key) for key in sorted(keys, key=lambda key: (key.namespace, key.name))]
        return render_value({"workloads": found}, arguments.output)
    shown = [_shown(records, wanted, key) for key in sorted(keys, key=lambda key: (key.namespace, key.name))]
    return "\n".join(shown) if shown else "No workloads.\n"


def _described(records: PolicyRecords, wanted: Wanted, key: ResourceKey) -> dict[str, Any]:
    """A workload with its tiers, each with its policies in order; without them if it is not policed."""
    record = records.endpoints[key]
    found: dict[str, Any] = {
        "namespace": key.namespace,
        "name": record.pod or record.workload or key.name,
        "node": record.node,
        "interface": record.interface_name,
        "addresses": [str(net.network_address) for net in record.ip_networks],
        "policed": key in wanted.endpoints,
    }
    if key not in wanted.endpoints:
        return found
    group = wanted.classes[wanted.endpoints[key].class_id]
    for direction, tiers in (("ingress", group.ingress), ("egress", group.egress)):
        found[direction] = [
            {"tier": tier.name, "policies": [str(policy) for policy in tier.policies], "end": tier.end}
            for tier in tiers
        ]
    return {**found, "profiles": [profile.name for profile in group.profiles]}


def _shown(records: PolicyRecords, wanted: Wanted, key: ResourceKey) -> str:
    record = records.endpoints[key]
    addresses = ", ".join(str(net.network_address) for net in record.ip_networks) or "no address"
    name = record.pod or record.workload or key.name
    lines = [f"{key.namespace}/{name} on {record.node}, {record.interface_name}, {addresses}"]
    if key not in wanted.endpoints:
        why = "another workload has its interface" if record.ip_networks else "it has no address (any more)"
        return "\n".join([*lines, f"  not policed: {why}", ""])
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
    missing = records.endpoints[key].profiles[len(group.profiles) :][:1]
    yield f"    profile {missing[0]} does not exist: everything is denied" if missing else "    the rest: denied"


def _policies(records: PolicyRecords, wanted: Wanted, tier: WantedTier, direction: Direction) -> Iterator[str]:
    for i, policy in enumerate(tier.policies, 1):
        rules = wanted.policies[policy]
        count = len((rules.ingress if direction == "ingress" else rules.egress) or ())
        is_new = ResourceKey(policy.kind, policy.name, policy.namespace) in records.overlaid
        yield f"      {i}. {policy} ({_counted(count)}{', not applied yet' if is_new else ''})"


def _counted(count: int) -> str:
    return f"{count} rule{'' if count == 1 else 's'}"


def _passes(wanted: Wanted, tiers: tuple[WantedTier, ...], direction: Direction) -> bool:
    """Whether a Pass rule of the last tier can lead to the profiles."""
    for name in tiers[-1].policies:
        policy = wanted.policies[name]
        if any(rule.action == "Pass" for rule in (policy.ingress if direction == "ingress" else policy.egress) or ()):
            return True
    return False
