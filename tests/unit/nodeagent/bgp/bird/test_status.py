"""Replies of a real BIRD 2.0.12, cut into lines and parsed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import BirdUnavailable
from cni_calico.nodeagent.bgp.bird.control import BirdReply, ReplyReader
from cni_calico.nodeagent.bgp.bird.readiness import decide_ready
from cni_calico.nodeagent.bgp.bird.status import BirdStatus, PeerStatus, parse_peers, parse_status

REPLIES = Path(__file__).parents[4] / "golden" / "bird-replies"
STATUS = (REPLIES / "show-status.txt").read_bytes()
PROTOCOLS = (REPLIES / "show-protocols-all.txt").read_bytes()


def read(*chunks: bytes) -> list[BirdReply]:
    reader = ReplyReader()
    replies = []
    for chunk in chunks:
        reply = reader.feed(chunk)
        while reply is not None:
            replies.append(reply)
            reply = reader.feed(b"")
    return replies


def peers() -> tuple[PeerStatus, ...]:
    (reply,) = read(PROTOCOLS)
    return parse_peers(reply.lines)


def test_status() -> None:
    (reply,) = read(STATUS)
    assert parse_status(reply.lines) == BirdStatus(
        version="2.0.12",
        router_id="172.31.0.1",
        running=True,
        recovering=True,
        last_reboot="2026-11-21 00:51:51.064",
        last_reconfiguration="2026-11-21 00:51:52.064",
    )


def test_peers() -> None:
    mesh, tor, six = peers()
    assert mesh == PeerStatus(
        "Mesh_172_31_0_2",
        "Established",
        "2026-11-21T00:52:07+0000",
        "node b",
        "172.31.0.2",
        179,
        64512,
        64512,
        imported=2,
        exported=1,
        preferred=2,
    )
    assert (mesh.kind, tor.kind, six.kind) == ("node-to-node mesh", "global", "node specific")
    assert (tor.state, tor.last_error, tor.port) == ("Active", "Socket: No route to host", 1179)
    assert (six.state, six.established, six.version) == ("Down", False, 6)


@given(st.lists(st.integers(1, 60), max_size=20))
def test_replies_do_not_depend_on_how_they_arrive(cuts: list[int]) -> None:
    data = b"0001 BIRD 2.0.12 ready.\n" + STATUS + PROTOCOLS
    chunks, at = [], 0
    for cut in cuts:
        chunks.append(data[at : at + cut])
        at += cut
    assert read(*chunks, data[at:]) == read(data)


def test_asynchronous_lines_belong_to_no_reply() -> None:
    (reply,) = read(b"+some news\n0003-a\n+more\n b\n0003 Reconfigured\n")
    assert reply.lines == ((3, "a"), (3, "b"), (3, "Reconfigured"))
    assert (reply.code, reply.text) == (3, "Reconfigured")


def test_what_is_no_reply() -> None:
    with pytest.raises(BirdUnavailable, match="HTTP"):
        read(b"HTTP/1.1 400 Bad Request\r\n")


# -- readiness --------------------------------------------------------------------------------------------------------


def status(*states: str, **more: bool) -> BirdStatus:
    made = tuple(
        PeerStatus(f"Mesh_10_0_0_{i}", s, address=f"10.0.0.{i}", description=f"node {i}") for i, s in enumerate(states)
    )
    return BirdStatus(**{"running": True, **more}, peers=made)


def test_ready() -> None:
    up, down = "Established", "Active"
    young = {"age_s": 5.0}
    old = {"age_s": 31.0}
    assert not decide_ready(None).ready
    assert not decide_ready(status(up, running=False), **old).ready
    assert decide_ready(status(), **young).ready
    assert decide_ready(status(up, up), **young).ready
    assert not decide_ready(status(up, down), **young).ready
    assert decide_ready(status(up, down), **old).ready
    assert not decide_ready(status(down, down), **old).ready
    assert not decide_ready(status(up, up, recovering=True), **young).ready
    assert decide_ready(status(up, up, recovering=True), **old).ready
    assert not decide_ready(status(up, down), age_s=None).ready
    assert decide_ready(status(up, down), age_s=5.0, threshold_s=4.0).ready


def test_a_workload_says_nothing_about_its_node() -> None:
    pod = PeerStatus("Local_Workload_10_65_0_5", state="Active")
    for others, ready in ((("Established",), True), (("Active",), False), ((), True)):
        found = status(*others)
        with_pod = replace(found, peers=(*found.peers, pod))
        for age_s in (5.0, 31.0):
            assert decide_ready(with_pod, age_s=age_s).ready is decide_ready(found, age_s=age_s).ready is ready
            assert decide_ready(with_pod, age_s=age_s).text == decide_ready(found, age_s=age_s).text


def test_says_who_and_why() -> None:
    _, tor, six = peers()
    told = decide_ready(
        BirdStatus(running=True, peers=(tor, six)), age_s=99.0, probe=lambda peer: f"port {peer.port} is closed"
    )
    assert told.text == (
        "BIRD is not ready: 2 of 2 BGP sessions are not established: 172.31.0.250 (BGPPeer tor) is Active, Socket: No "
        "route to host, port 1179 is closed; fd31::9 (BGPPeer six) is Down, port 179 is closed"
    )
    assert "no answer" in decide_ready(None).text
    assert "connection refused" in decide_ready(None, silence="connection refused").text
    many = decide_ready(status(*["Active"] * 8), age_s=1.0).text
    assert many.count("is Active") == 5
    assert many.endswith("and 3 more")
