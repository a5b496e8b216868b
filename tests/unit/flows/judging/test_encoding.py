"""What is sent judges as what was wanted: whole, and after any change, in whatever pieces it arrives."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.flows.judging.encoding import Messages, render_changes, render_nothing, render_whole
from cni_calico.flows.judging.known import KnownRules
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Packet, decide, decide_host
from cni_calico.policy.judge.cells import JudgedPacket
from cni_calico.policy.wanted import Direction, Members, SetChange, Wanted, WantedChanges, WantedEndpoint, WantedHost
from tests.unit.policy.judge.test_oracle import HOST, POD, STAGES, V4, V6, packets, plain, worlds


def between(before: Wanted, after: Wanted) -> WantedChanges:
    def changed(old: Mapping[Any, Any], new: Mapping[Any, Any]) -> dict[Any, Any]:
        gone = {key: None for key in old if key not in new}
        return gone | {key: value for key, value in new.items() if old.get(key) != value}

    sets = {
        name: SetChange(minus(new, before.sets[name]), minus(before.sets[name], new))
        for name, new in after.sets.items()
        if name in before.sets and before.sets[name] != new
    }
    return WantedChanges(
        {name: members for name, members in after.sets.items() if name not in before.sets},
        sets,
        frozenset(before.sets.keys() - after.sets.keys()),
        changed(before.policies, after.policies),
        changed(before.classes, after.classes),
        changed(before.endpoints, after.endpoints),
        changed(before.host_classes, after.host_classes),
        changed(before.hosts, after.hosts),
    )


def minus(one: Members, other: Members) -> Members:
    return Members(one.addresses - other.addresses, one.nets - other.nets, one.ports - other.ports)


def feed(known: KnownRules, sent: Iterable[bytes], size: int) -> None:
    messages, data = Messages(), b"".join(sent)
    for at in range(0, len(data), size):
        messages.put(data[at : at + size])
        while (message := messages.take()) is not None:
            known.receive(message.kind, message.changes, 1.0)


def renamed(wanted: Wanted) -> Wanted:
    """Another class has another name."""
    return Wanted(
        wanted.sets,
        wanted.policies,
        {"c2": replace(wanted.classes["c"], id="c2")},
        {POD: replace(wanted.endpoints[POD], class_id="c2")},
        {"h2": replace(wanted.host_classes["h"], id="h2")},
        {HOST: replace(wanted.hosts[HOST], class_id="h2")},
    )


def with_addresses(wanted: Wanted) -> Wanted:
    """The pod has one address of each family, so that what it is asked is known by addresses alone."""
    addresses = V4[0].packed, V6[0].packed
    pod = WantedEndpoint(POD, "cali1", wanted.endpoints[POD].class_id, addresses)
    other = ResourceKey("WorkloadEndpoint", "unused", "a")
    return Wanted(
        wanted.sets, wanted.policies, wanted.classes, {POD: pod, other: pod}, wanted.host_classes, wanted.hosts
    )


def require_same(known: KnownRules, wanted: Wanted, asked: list[Packet]) -> None:
    for packet in asked:
        for direction in ("ingress", "egress"):
            expected = expected_of(wanted, packet, direction)
            cells = known.cells(
                packet.source.packed, packet.destination.packed, packet.protocol, ingress=direction == "ingress"
            )
            first, second = packet.destination_port, packet.source_port
            if packet.protocol == (1 if packet.source.version == 4 else 58):
                first, second = packet.icmp
            found: list[JudgedPacket] = [cell.find(first, second) for cell in cells]
            assert [one.decision for one in found] == expected


def expected_of(wanted: Wanted, packet: Packet, direction: Direction) -> list[Any]:
    end = packet.destination if direction == "ingress" else packet.source
    mine = [key for key, endpoint in wanted.endpoints.items() if end.packed in endpoint.addresses]
    of_hosts = [decide_host(wanted, HOST, reach, direction, packet) for reach in STAGES if wanted.hosts]
    return [plain(one) for one in (*(decide(wanted, key, direction, packet) for key in mine), *of_hosts)]


@settings(max_examples=40, deadline=None)
@given(worlds(), worlds(), st.lists(packets(), min_size=5, max_size=10), st.sampled_from((7, 100, 1 << 20)), st.data())
def test_whole_and_changed(first: Wanted, second: Wanted, asked: list[Packet], size: int, data: st.DataObject) -> None:
    known, before = KnownRules(), with_addresses(first)
    feed(known, render_whole(before), size)
    assert known.ready
    require_same(known, before, asked)
    second = renamed(second)
    fewer = data.draw(st.sampled_from(({}, second.hosts)))
    after = Wanted(second.sets, second.policies, second.classes, second.endpoints, second.host_classes, fewer)
    feed(known, render_changes(between(before, after)), size)
    require_same(known, after, asked)
    after = with_addresses(after)
    feed(known, render_whole(after), size)
    require_same(known, after, asked)
    feed(known, render_nothing(), size)
    assert not known.ready and not list(known.cells(V4[0].packed, V4[1].packed, 6, ingress=True))


def test_nothing_is_large() -> None:
    """Many members, rules and endpoints come in many messages."""
    addresses = frozenset(i.to_bytes(4, "big") for i in range(20_000))
    ports = frozenset((one, 6, 80) for one in addresses)
    nets = frozenset((one, 32) for one in addresses)
    hosts = {ResourceKey("HostEndpoint", f"h{i}"): WantedHost(HOST, "", "h") for i in range(2000)}
    sent = list(render_whole(Wanted({"s": Members(addresses, nets), "p": Members(ports=ports)}, hosts=hosts)))
    assert len(sent) > 30 and max(map(len, sent)) < 100_000


@pytest.mark.parametrize(
    "text", ['["part",5]', "7", '["part",{"members":[]}]', "nonsense", '["part",{"hosts":[[1,2]]}]']
)
def test_what_is_no_message_is_an_error(text: str) -> None:
    messages = Messages()
    messages.put(len(text).to_bytes(4, "big") + text.encode())
    with pytest.raises(ValueError):
        messages.take()


def test_a_message_has_all_that_a_rule_says() -> None:
    """Beside JSON's own types nothing is in it."""
    (message,) = render_nothing()
    assert json.loads(message[4:]) == ["begin", None]
