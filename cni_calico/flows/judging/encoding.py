"""PURE: the rules in force as messages from the agent to the recorder, in pieces of a bounded size.

Rule: what is decoded judges every packet as what was encoded; nothing else of it is sent. Both ends are of one
executable, so that a message has no version; one that cannot be decoded is an error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from itertools import islice
from sys import intern
from typing import Any, NamedTuple, TypeVar

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.wanted import (
    ANY_SIDE,
    Members,
    Packed,
    PackedNet,
    PackedPort,
    PolicyId,
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

STANDS_IN = "denied"  # the annotation of rules that stand for what cannot be enforced
BEGIN, PART, DONE = "begin", "part", "done"  # everything that was known is forgotten; a change; it may be judged by
NAMES = "names"  # the staged policies, in the place of a change
_MEMBERS, _RULES, _OTHERS = 2000, 200, 500  # in a piece
_SIZE, _BEGINS = 4, b'["begin"'
_STAGED = 1 << 31  # in the size of a message about what staged policies would make of the rules
Batched = TypeVar("Batched")


class StagedName(NamedTuple):
    """A staged policy, of ``kind``; ``policy``: what it would be, or take away."""

    policy: PolicyId
    kind: str
    name: str


class AgentMessage(NamedTuple):
    """``kind``: BEGIN, PART, DONE or NAMES. ``staged``: about the rules as they would be with the staged policies,
    which are ``names``.
    """

    kind: str
    changes: WantedChanges
    staged: bool = False
    names: tuple[StagedName, ...] = ()


def render_nothing() -> Iterator[bytes]:
    """No rules are in force."""
    yield _message(BEGIN, None)


def render_whole(wanted: Wanted) -> Iterator[bytes]:
    """Messages; between two of them the sender may do something else."""
    yield _message(BEGIN, None)
    everything = WantedChanges(
        sets_made=wanted.sets,
        policies=wanted.policies,
        classes=wanted.classes,
        endpoints=wanted.endpoints,
        host_classes=wanted.host_classes,
        hosts=wanted.hosts,
    )
    yield from _pieces(everything)
    yield _message(DONE, None)


def render_changes(changes: WantedChanges) -> Iterator[bytes]:
    yield from _pieces(changes)
    yield _message(DONE, None)


def render_staged(messages: Iterable[bytes], names: Iterable[StagedName]) -> Iterator[bytes]:
    """The messages, as being about the rules as they would be with these staged policies."""
    for message in messages:
        yield _as_staged(message)
        if message[_SIZE:].startswith(_BEGINS):
            for some in _batched([[_policy_id(one.policy), one.kind, one.name] for one in names], _OTHERS):
                yield _as_staged(_message(NAMES, some))


def _as_staged(message: bytes) -> bytes:
    return (int.from_bytes(message[:_SIZE], "big") | _STAGED).to_bytes(_SIZE, "big") + message[_SIZE:]


class Messages:
    """``take`` gives what is complete of a stream of messages."""

    def __init__(self) -> None:
        self._data = bytearray()

    def put(self, data: bytes) -> None:
        self._data += data

    def take(self) -> AgentMessage | None:
        """None if no message is complete. Raises ValueError."""
        data = self._data
        if len(data) < _SIZE:
            return None
        size = int.from_bytes(data[:_SIZE], "big")
        end = _SIZE + (size & ~_STAGED)
        if len(data) < end:
            return None
        try:
            kind, content = json.loads(data[_SIZE:end])
            if kind == NAMES:
                found = AgentMessage(kind, WantedChanges(), True, tuple(_name_of(*one) for one in content))
            else:
                changes = WantedChanges() if content is None else _decode(content)
                found = AgentMessage(kind, changes, bool(size & _STAGED))
        except (TypeError, KeyError, AttributeError) as e:
            raise ValueError(f"it is not the agent's message: {e}") from e
        del data[:end]
        return found


def _message(kind: str, content: Any) -> bytes:
    data = json.dumps([kind, content], separators=(",", ":")).encode()
    return len(data).to_bytes(_SIZE, "big") + data


# -- pieces -----------------------------------------------------------------------------------------------------------


def _pieces(changes: WantedChanges) -> Iterator[bytes]:
    """Each is a change of its own; only after the last one they are what is in force."""
    if changes.sets_removed:
        yield _part(gone=sorted(changes.sets_removed))
    for name, members in changes.sets_made.items():
        yield from _set_pieces(name, SetChange(added=members))
    for name, change in changes.sets_changed.items():
        yield from _set_pieces(name, change)
    batch, rules = list[Any](), 0
    for policy, wanted in changes.policies.items():
        batch.append([_policy_id(policy), None if wanted is None else _policy(wanted)])
        rules += 1 if wanted is None else len(wanted.rules()) + 1
        if rules >= _RULES:
            yield _part(policies=batch)
            batch, rules = [], 0
    if batch:
        yield _part(policies=batch)
    others = (
        ("classes", [[name, one and _class(one)] for name, one in changes.classes.items()]),
        ("endpoints", [[_key(key), one and _endpoint(one)] for key, one in changes.endpoints.items()]),
        ("host_classes", [[name, one and _host_class(one)] for name, one in changes.host_classes.items()]),
        ("hosts", [[_key(key), one and _host(one)] for key, one in changes.hosts.items()]),
    )
    for name, found in others:
        for some in _batched(found, _OTHERS):
            yield _part(**{name: some})


def _batched(items: Iterable[Batched], count: int) -> Iterator[list[Batched]]:
    left = iter(items)
    while batch := list(islice(left, count)):
        yield batch


def _part(**content: Any) -> bytes:
    return _message(PART, content)


def _set_pieces(name: str, change: SetChange) -> Iterator[bytes]:
    for removes, members in ((True, change.removed), (False, change.added)):
        for addresses in _batched(members.addresses, _MEMBERS):
            yield _part(members=[name, removes, [[_hex(one for one in addresses if len(one) == n) for n in (4, 16)]]])
        for nets in _batched(members.nets, _MEMBERS):
            yield _part(members=[name, removes, [None, [_net(net) for net in nets]]])
        for ports in _batched(members.ports, _MEMBERS):
            yield _part(members=[name, removes, [None, None, [[one.hex(), *rest] for one, *rest in ports]]])


def _hex(addresses: Iterable[Packed]) -> str:
    return b"".join(addresses).hex()


def _net(net: PackedNet) -> list[Any]:
    return [net[0].hex(), net[1]]


def _key(key: ResourceKey) -> list[str]:
    return [key.kind, key.name, key.namespace]


def _policy_id(policy: PolicyId) -> list[str]:
    return [policy.kind, policy.name, policy.namespace]


def _policy(policy: WantedPolicy) -> list[Any]:
    lists = (None if rules is None else [_rule(rule) for rule in rules] for rules in (policy.ingress, policy.egress))
    return [policy.tier, *lists, policy.reach]


def _rule(rule: WantedRule) -> list[Any]:
    protocols = rule.families, rule.protocol, rule.not_protocol, rule.icmp, rule.not_icmp
    stands_in = any(key == STANDS_IN for key, _ in rule.annotations)
    return [rule.action, *protocols, stands_in, _side(rule.source), _side(rule.destination)]


def _side(side: WantedSide) -> list[Any] | None:
    if side == ANY_SIDE:
        return None
    nets = [list(map(str, side.nets)), list(map(str, side.not_nets))]
    ports = [side.ports, side.port_sets, side.not_ports, side.not_port_sets]
    return [*nets, *ports, side.sets, side.not_sets, side.service_sets]


def _tiers(tiers: Iterable[WantedTier]) -> list[Any]:
    return [[tier.name, [_policy_id(policy) for policy in tier.policies], tier.end] for tier in tiers]


def _class(one: WantedClass) -> list[Any]:
    return [_tiers(one.ingress), _tiers(one.egress), [_policy_id(profile) for profile in one.profiles]]


def _host_class(one: WantedHostClass) -> list[Any]:
    own = one.ingress, one.egress, one.forward_ingress, one.forward_egress
    stages = map(_tiers, (*own, one.before_nat, one.raw_ingress, one.raw_egress))
    return [*stages, [_policy_id(profile) for profile in one.profiles]]


def _host(one: WantedHost) -> list[Any]:
    return [one.class_id, one.interface, [address.hex() for address in one.expected]]


def _endpoint(one: WantedEndpoint) -> list[Any]:
    return [one.class_id, [address.hex() for address in one.addresses]]


# -- and back ---------------------------------------------------------------------------------------------------------


def _decode(content: Mapping[str, Any]) -> WantedChanges:
    changed: dict[str, SetChange] = {}
    if "members" in content:
        name, removes, raw = content["members"]
        members = _members_of(*raw)
        changed[intern(name)] = SetChange(removed=members) if removes else SetChange(added=members)
    return WantedChanges(
        sets_changed=changed,
        sets_removed=frozenset(content.get("gone", ())),
        policies={_policy_id_of(name): one and _policy_of(name, *one) for name, one in content.get("policies", ())},
        classes={intern(name): one and _class_of(name, *one) for name, one in content.get("classes", ())},
        endpoints={_key_of(key): one and _endpoint_of(key, *one) for key, one in content.get("endpoints", ())},
        host_classes={intern(name): one and _host_class_of(name, one) for name, one in content.get("host_classes", ())},
        hosts={_key_of(key): one and _host_of(key, *one) for key, one in content.get("hosts", ())},
    )


def _name_of(policy: Any, kind: str, name: str) -> StagedName:
    return StagedName(_policy_id_of(policy), str(kind), str(name))


def _members_of(addresses: Any = None, nets: Any = None, ports: Any = None) -> Members:
    packed = (bytes.fromhex(text) for text in addresses or ("", ""))
    sizes = zip(packed, (4, 16), strict=True)
    found = frozenset(data[at : at + size] for data, size in sizes for at in range(0, len(data), size))
    return Members(
        found,
        frozenset((bytes.fromhex(text), length) for text, length in nets or ()),
        frozenset(_port_of(*one) for one in ports or ()),
    )


def _port_of(address: str, protocol: int, port: int) -> PackedPort:
    return bytes.fromhex(address), protocol, port


def _key_of(raw: Any) -> ResourceKey:
    return ResourceKey(*raw)


def _policy_id_of(raw: Any) -> PolicyId:
    kind, name, namespace = raw
    return PolicyId(kind, intern(name), intern(namespace))


def _policy_of(name: Any, tier: str, ingress: Any, egress: Any, reach: Any) -> WantedPolicy:
    into, out = (None if rules is None else tuple(map(_rule_of, rules)) for rules in (ingress, egress))
    return WantedPolicy(_policy_id_of(name), intern(tier), into, out, reach)


def _rule_of(raw: Any) -> WantedRule:
    action, families, protocol, not_protocol, icmp, not_icmp, stands_in, source, destination = raw
    return WantedRule(
        action,
        tuple(families),
        protocol,
        not_protocol,
        icmp and (icmp[0], icmp[1]),
        not_icmp and (not_icmp[0], not_icmp[1]),
        _side_of(source),
        _side_of(destination),
        ((STANDS_IN, ""),) if stands_in else (),
    )


def _side_of(raw: Any) -> WantedSide:
    if raw is None:
        return ANY_SIDE
    nets, not_nets, ports, port_sets, not_ports, not_port_sets, sets, not_sets, service_sets = raw
    return WantedSide(
        tuple(map(ip_network, nets)),
        tuple(map(ip_network, not_nets)),
        tuple((low, high) for low, high in ports),
        tuple(map(intern, port_sets)),
        tuple((low, high) for low, high in not_ports),
        tuple(map(intern, not_port_sets)),
        tuple(map(intern, sets)),
        tuple(map(intern, not_sets)),
        tuple(map(intern, service_sets)),
    )


def _tiers_of(raw: Any) -> tuple[WantedTier, ...]:
    return tuple(WantedTier(intern(name), tuple(map(_policy_id_of, its)), end) for name, its, end in raw)


def _class_of(name: str, ingress: Any, egress: Any, profiles: Any) -> WantedClass:
    return WantedClass(name, _tiers_of(ingress), _tiers_of(egress), tuple(map(_policy_id_of, profiles)))


def _host_class_of(name: str, raw: Any) -> WantedHostClass:
    *stages, profiles = raw
    own_in, own_out, forward_in, forward_out, before_nat, raw_in, raw_out = map(_tiers_of, stages)
    ids = tuple(map(_policy_id_of, profiles))
    return WantedHostClass(name, own_in, own_out, forward_in, forward_out, before_nat, raw_in, raw_out, ids)


def _host_of(key: Any, class_id: str, interface: str, expected: Any) -> WantedHost:
    return WantedHost(_key_of(key), interface, intern(class_id), tuple(map(bytes.fromhex, expected)))


def _endpoint_of(key: Any, class_id: str, addresses: Any) -> WantedEndpoint:
    return WantedEndpoint(_key_of(key), "", intern(class_id), tuple(map(bytes.fromhex, addresses)))
