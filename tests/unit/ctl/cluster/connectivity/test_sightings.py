"""What a packet says to whoever sees it on the wire, and what the check says of that."""

import struct
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.cluster.connectivity.findings import FAILED, OK, SKIPPED, Trial
from cni_calico.ctl.cluster.connectivity.inside import Progress
from cni_calico.ctl.cluster.connectivity.sightings import (
    Sighting,
    WirePlan,
    has_address,
    headers_of,
    is_encrypted,
    judge,
    packed,
    parse_wire_plan,
    render_wire_plan,
)

NODES = ("10.0.0.1", "10.0.0.2")
PODS = ("10.65.1.4", "fd00:65::4")
TOKEN = "ab" * 16


def packet(source, target, protocol, payload):
    one, other = ip_address(source), ip_address(target)
    if one.version == 6:
        return struct.pack(">IHBB", 6 << 28, len(payload), protocol, 64) + one.packed + other.packed + payload
    return struct.pack(">BxH5xB2x", 0x45, 20 + len(payload), protocol) + one.packed + other.packed + payload


def udp(source, target, port, payload):
    return packet(source, target, 17, struct.pack(">HHHH", 9, port, 8 + len(payload), 0) + payload)


def in_vxlan(inner):
    return udp(*NODES, 4789, bytes(8) + bytes(14) + inner)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(
    "wrapped",
    [lambda p: p, lambda p: packet(*NODES, 41 if p[0] >> 4 == 6 else 4, p), in_vxlan],
    ids=["as it is", "IPIP", "VXLAN"],
)
def test_addresses_are_found_in_every_header(version, wrapped):
    pod = PODS[version]
    for ends in ((pod, pod), (pod, pod[:-1] + "9"), (pod[:-1] + "9", pod)):
        assert has_address(wrapped(udp(*ends, 53, b"x")), packed(PODS))
    assert not has_address(wrapped(udp(pod[:-1] + "8", pod[:-1] + "9", 53, b"x")), packed(PODS))


def test_what_is_wireguards():
    data, handshake = b"\x04\0\0\0" + bytes(28), b"\x01\0\0\0" + bytes(144)
    assert is_encrypted(udp(*NODES, 51999, data), packed(NODES))
    assert not is_encrypted(udp(*NODES, 51820, handshake), packed(NODES))
    assert not is_encrypted(udp("10.0.0.3", NODES[0], 51820, data), packed(NODES))
    assert not is_encrypted(packet(*NODES, 6, bytes(8) + data), packed(NODES))


@given(st.binary(max_size=120))
def test_whatever_comes_is_looked_at(data):
    assert len(list(headers_of(data))) <= 3
    assert not is_encrypted(data, packed(()))


def test_a_plan_comes_into_the_pod_as_it_was():
    plan = WirePlan([TOKEN], [*PODS], [*NODES], ["wg"], ["cali", "eni"], [PODS[0]])
    assert parse_wire_plan(render_wire_plan(plan)) == plan
    assert parse_wire_plan('{"addresses": []}') is None
    for text in ("", "{", '{"wire": {"else": 1}}', '{"wire": 5}'):
        with pytest.raises((ValueError, TypeError)):
            parse_wire_plan(text)


def test_what_a_host_has_seen_is_read_from_its_log():
    progress = Progress(
        '{"seen": {"round": 1}}\n{"seen": {"round": 2, "readable": {"a": 3}, "wires": ["eth0"]}}\n'
        '{"exchanged": {"10.65.1.4": 40}}\n'
    )
    assert progress.seen == Sighting({"a": 3}, round=2, wires=["eth0"])
    assert progress.exchanged == {"10.65.1.4": 40}
    assert Progress('{"blind": "Operation not permitted"}\n').blind == "Operation not permitted"


@pytest.mark.parametrize(
    ("sent", "seen", "outcome", "text"),
    [
        (40, {"n1": (Sighting(), 40), "n2": (Sighting(), 44)}, OK, "40 packets, none readable"),
        (
            40,
            {"n1": (Sighting(), 40), "n2": (Sighting({TOKEN: 3}, wires=["eth0"]), 40)},
            FAILED,
            "3 packets can be read on eth0 of n2: no key",
        ),
        (40, {"n1": (Sighting({"": 1}, wires=["eth0"]), 40)}, FAILED, "1 packets can be read on eth0 of n1: no key"),
        (40, {"n1": (Sighting({"another": 1}, wires=["eth0"]), 40)}, OK, "40 packets, none readable"),
        (0, {"n1": (Sighting(), 0)}, FAILED, "no packet with the token comes back: no key"),
        (40, {"n1": (Sighting(), 12)}, FAILED, "of 40 packets 12 were seen encrypted on n1, the others not at all"),
        (40, {"n1": (Sighting(missed=7), 40)}, SKIPPED, "n1 has more packets than can be looked at; 7 were not"),
        (40, {"n1": (Sighting({TOKEN: 1}, missed=7), 40)}, FAILED, "1 packets can be read"),
    ],
)
def test_what_is_said_of_it(sent, seen, outcome, text):
    found = judge("IPv4 encryption", "n1 to n2", TOKEN, sent, seen, "no key")
    assert (found.what, found.outcome) == ("IPv4 encryption", outcome)
    assert found.text.startswith(f"n1 to n2: {text}")
    if outcome == OK:
        assert found == Trial("IPv4 encryption", OK, f"n1 to n2: {text}")
