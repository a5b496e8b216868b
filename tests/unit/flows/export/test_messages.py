"""Updates byte for byte: against bytes written by hand, and read back by another decoder than the one that is used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.flows.export.intervals import ExportedFlow
from cni_calico.flows.export.keys import (
    EndType,
    ExportedService,
    ExportKey,
    FlowAction,
    FlowEnd,
    HitKind,
    PolicyHit,
    ReportingSide,
)
from cni_calico.flows.export.messages import decode_update, encode_update, pb

ALLOWED = ExportedFlow(
    ExportKey(
        FlowEnd(EndType.WORKLOAD, "shop", "web-*"),
        FlowEnd(EndType.NETWORK, "-", "pvt"),
        5432,
        "tcp",
        ReportingSide.SOURCE,
        FlowAction.ALLOW,
        (PolicyHit(HitKind.PROFILE, "", "kns.shop", "", FlowAction.ALLOW, 0),),
    ),
    1_700_000_000,
    ("app=web",),
    (),
    2,
    3,
    104,
    300,
    1,
    0,
    1,
)
TO_SERVICE = ALLOWED._replace(key=ALLOWED.key._replace(service=ExportedService("shop", "db", "pg", 443)))
DENIED = ALLOWED._replace(
    key=ExportKey(
        FlowEnd(EndType.NETWORK, "-", "pub"),
        FlowEnd(EndType.WORKLOAD, "shop", "db-0"),
        0,
        "icmp",
        ReportingSide.DESTINATION,
        FlowAction.DENY,
        (
            PolicyHit(
                HitKind.END_OF_TIER,
                "",
                "",
                "default",
                FlowAction.DENY,
                -1,
                PolicyHit(HitKind.KUBERNETES, "shop", "database", "default", None, 0),
            ),
        ),
    ),
    source_labels=(),
    destination_labels=("app=db", "tier=2"),
    packets_in=1,
    packets_out=0,
    bytes_in=0,
    bytes_out=0,
    completed=1,
    live=0,
)
# each row: field number, wire type (0: varint, 2: length and bytes), the bytes behind
TABLE = {
    "allowed": (
        ALLOWED,
        "0a64"  # FlowUpdate 1 flow
        "0a40"  # Flow 1 Key
        "0a05" + b"web-*".hex()  # FlowKey 1 source_name
        + "1204" + b"shop".hex()  # 2 source_namespace
        + "1801"  # 3 source_type WorkloadEndpoint
        "2203" + b"pvt".hex()  # 4 dest_name
        + "2a01" + b"-".hex()  # 5 dest_namespace
        + "3004"  # 6 dest_type Network
        "38b82a"  # 7 dest_port 5432
        "4201" + b"-".hex()  # 8 dest_service_name
        + "4a01" + b"-".hex()  # 9 dest_service_namespace
        + "5201" + b"-".hex()  # 10 dest_service_port_name; 11 is 0
        + "6203" + b"tcp".hex()  # 12 proto
        + "6801"  # 13 reporter Src
        "7001"  # 14 action Allow
        "7a10"  # 15 policies
        "0a0e"  # PolicyTrace 1 enforced_policies
        "0809"  # PolicyHit 1 kind Profile
        "1a08" + b"kns.shop".hex()  # 3 name
        + "2801"  # 5 action Allow; 6 policy_index, 7 rule_index are 0
        "1080e2cfaa06"  # Flow 2 start_time
        "1880e2cfaa06"  # 3 end_time
        "2207" + b"app=web".hex()  # 4 source_labels
        + "3002"  # 6 packets_in
        "3803"  # 7 packets_out
        "4068"  # 8 bytes_in
        "48ac02"  # 9 bytes_out
        "5001"  # 10 num_connections_started
        "6001",  # 12 num_connections_live
    ),
    "sent to a service": (
        TO_SERVICE,
        "0a6c"
        "0a48"
        "0a05" + b"web-*".hex()
        + "1204" + b"shop".hex()
        + "1801"
        "2203" + b"pvt".hex()
        + "2a01" + b"-".hex()
        + "3004"
        "38b82a"
        "4202" + b"db".hex()  # 8 dest_service_name
        + "4a04" + b"shop".hex()  # 9 dest_service_namespace
        + "5202" + b"pg".hex()  # 10 dest_service_port_name
        + "58bb03"  # 11 dest_service_port 443
        "6203" + b"tcp".hex()
        + "6801"
        "7001"
        "7a10"
        "0a0e"
        "0809"
        "1a08" + b"kns.shop".hex()
        + "2801"
        "1080e2cfaa06"
        "1880e2cfaa06"
        "2207" + b"app=web".hex()
        + "3002"
        "3803"
        "4068"
        "48ac02"
        "5001"
        "6001",
    ),
    "denied at the end of a tier": (
        DENIED,
        "0a8801"
        "0a64"
        "0a03" + b"pub".hex()
        + "1201" + b"-".hex()
        + "1804"  # source_type Network
        "2204" + b"db-0".hex()
        + "2a04" + b"shop".hex()
        + "3001"  # dest_type WorkloadEndpoint; 7 dest_port is 0
        "4201" + b"-".hex()
        + "4a01" + b"-".hex()
        + "5201" + b"-".hex()
        + "6204" + b"icmp".hex()
        + "6802"  # reporter Dst
        "7002"  # action Deny
        "7a37"
        "0a35"
        "080a"  # kind EndOfTier
        "2207" + b"default".hex()  # 4 tier
        + "2802"  # 5 action Deny
        "38ffffffffffffffffff01"  # 7 rule_index -1
        "421b"  # 8 trigger
        "0806"  # kind NetworkPolicy
        "1204" + b"shop".hex()  # 2 namespace
        + "1a08" + b"database".hex()  # 3 name
        + "2207" + b"default".hex()  # 4 tier
        + "1080e2cfaa06"
        "1880e2cfaa06"
        "2a06" + b"app=db".hex()  # 5 dest_labels, the second one behind it
        + "2a06" + b"tier=2".hex()
        + "3001"
        "5001"
        "5801",  # 11 num_connections_completed
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_bytes_as_written_by_hand(name: str) -> None:
    flow, wanted = TABLE[name]
    assert encode_update(flow).hex() == wanted


# -- a decoder that knows nothing of the generated one ----------------------------------------------------------------


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value - (1 << 64) if value >> 63 else value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
        else:
            assert tag & 7 == 2
            length = varint()
            yield tag >> 3, data[at : at + length]
            at += length


def one(data: bytes) -> dict[int, Any]:
    return dict(fields(data))


def text(found: dict[int, Any], number: int) -> str:
    return str(found.get(number, b"").decode())


def read_hit(data: bytes, at: int) -> PolicyHit:
    found = one(data)
    assert found.get(6, 0) == at
    action = FlowAction(found[5]) if 5 in found else None
    trigger = read_hit(found[8], 0) if 8 in found else None
    return PolicyHit(
        HitKind(found[1]), text(found, 2), text(found, 3), text(found, 4), action, found.get(7, 0), trigger
    )


def read_update(data: bytes) -> ExportedFlow:
    [(_, inner)] = fields(data)
    flow = one(inner)
    labels = [tuple(value.decode() for number, value in fields(inner) if number == which) for which in (4, 5)]
    key = one(flow[1])
    trace = list(fields(key.get(15, b"")))
    hits, pending = (
        tuple(read_hit(hit, at) for at, hit in enumerate(hit for number, hit in trace if number == which))
        for which in (1, 2)
    )
    name, space, port = (text(key, number) for number in (8, 9, 10))
    service = ExportedService(space, name, port, key.get(11, 0))
    sent_to = None if service == ExportedService("-", "-", "-", 0) else service
    ends = [
        FlowEnd(EndType(key[kind]), text(key, space), text(key, name)) for name, space, kind in ((1, 2, 3), (4, 5, 6))
    ]
    made = ExportKey(
        *ends, key.get(7, 0), text(key, 12), ReportingSide(key[13]), FlowAction(key[14]), hits, pending, sent_to
    )
    assert flow.get(2, 0) == flow.get(3, 0)
    return ExportedFlow(made, flow.get(2, 0), *labels, *(flow.get(number, 0) for number in range(6, 13)))


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
COUNTS = st.integers(0, (1 << 63) - 1)
ENDS = st.builds(FlowEnd, st.sampled_from(EndType), TEXTS, TEXTS)
TRIGGERS = st.builds(PolicyHit, st.sampled_from(HitKind), TEXTS, TEXTS, TEXTS, st.none(), st.just(0), st.none())
HITS = st.builds(
    PolicyHit,
    st.sampled_from(HitKind),
    TEXTS,
    TEXTS,
    TEXTS,
    st.sampled_from(FlowAction),
    st.integers(-1, 10_000),
    st.none() | TRIGGERS,
)
KEYS = st.builds(
    ExportKey,
    ENDS,
    ENDS,
    st.integers(0, 65535),
    TEXTS,
    st.sampled_from(ReportingSide),
    st.sampled_from(FlowAction),
    st.lists(HITS, max_size=3).map(tuple),
    st.lists(HITS, max_size=2).map(tuple),
    st.none() | st.builds(ExportedService, TEXTS, TEXTS, TEXTS, st.integers(1, 65535)),
)
LABELS = st.lists(TEXTS, max_size=4).map(tuple)
FLOWS = st.builds(ExportedFlow, KEYS, COUNTS, LABELS, LABELS, *[COUNTS] * 7)


@given(FLOWS)
def test_everything_is_read_back(flow: ExportedFlow) -> None:
    data = encode_update(flow)
    assert read_update(data) == flow
    assert pb.FlowUpdate.FromString(data).SerializeToString(deterministic=True) == data == encode_update(flow)


@given(st.binary(max_size=40))
def test_what_is_no_update_is_refused_or_read(data: bytes) -> None:
    try:
        decode_update(data)
    except ValueError as e:
        assert "no update" in str(e)
