"""The checker as Envoy and the agent meet it: gRPC at both sockets, with the agent's own server on the other side."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.alp.asked import ALLOWED, DENIED, UNAVAILABLE, AskedPeer, AskedRequest, encode_check, parse_answer
from cni_calico.alp.asked import parse_health as is_serving
from cni_calico.alp.envoy_pb2 import CheckResponse
from cni_calico.alp.following import FollowedPolicies
from cni_calico.alp.serving import CHECK, HEALTH, CannotListen, CheckServer
from cni_calico.errors import InvalidConfig
from cni_calico.log import SILENT
from cni_calico.nodeagent.sync import serving
from cni_calico.policy.wanted import SetChange, WantedChanges, WantedHttp, WantedPolicy
from tests.deadlines import until
from tests.fakes.notes import Notes
from tests.unit.alp.table import CASES
from tests.unit.alp.test_requests import world
from tests.unit.alp.told import messages_for, wanted_of
from tests.unit.nodeagent.sync.test_serving import KEY, POLICY, RULE, Served, clients, wanted_with

SPIFFE = "spiffe://cluster.local/ns/shop/sa/cart"
GET = AskedRequest(AskedPeer(ip_address("10.1.0.0")), AskedPeer(ip_address("10.0.0.1"), 80), method="GET", path="/")
STRANGER = replace(GET, source=AskedPeer(ip_address("10.9.0.0")))


class Checked:
    """A checker with its two threads, and an Envoy."""

    def __init__(self, directory: Path, agent: Path, hold_s: float | None = None) -> None:
        self.now = 0.0
        self.log = Notes()
        self.path = directory / "alp.sock"
        self.policies = FollowedPolicies(str(agent), hold_s, self.log, clock=lambda: self.now)
        self.server = CheckServer(str(self.path), self.policies, self.log)
        self.server.start()
        self.following = threading.Thread(target=self.policies.run)
        self.following.start()
        self.channel = grpc.insecure_channel(f"unix:{self.path}", options=(("grpc.use_local_subchannel_pool", 1),))

    def ask(self, asked: AskedRequest) -> int:
        return parse_answer(self.send(encode_check(asked)))

    def send(self, data: bytes) -> bytes:
        answer: bytes = self.channel.unary_unary(CHECK)(data, timeout=90)
        return answer

    def is_ready(self) -> bool:
        return is_serving(self.channel.unary_unary(HEALTH)(b"", timeout=90))

    def stop(self) -> None:
        self.channel.close()
        self.server.stop(0)
        self.policies.stop()
        self.following.join(90)
        assert not self.following.is_alive()


@pytest.fixture
def sync_agent(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path, serving.CUT_S)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def checked(sync_agent: Served, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Checked]:
    """Its volume is ``csi-1``, of the pod shop/web; the agent has nothing in it yet."""
    socket = tmp_path / "nodeagent/mount/csi-1/socket"
    found = Checked(tmp_path, socket, getattr(request, "param", None))
    try:
        yield found
    finally:
        found.stop()


def test_what_changes_in_the_agent_is_in_force_for_requests(sync_agent: Served, checked: Checked) -> None:
    """Refused before anything is known; then members, rules about requests, and the endpoint's end."""
    assert not checked.is_ready() and checked.ask(GET) == UNAVAILABLE
    assert stat.S_IMODE(os.stat(checked.path).st_mode) == 0o777
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    assert (checked.ask(GET), checked.ask(STRANGER)) == (ALLOWED, DENIED)
    sync_agent.server.receive(WantedChanges(sets_changed={"s-clients": SetChange(clients(0), clients(2))}))
    until(lambda: checked.ask(GET) == DENIED, "the member has gone")
    sync_agent.server.become(wanted_with(clients(100_000)))
    last = replace(GET, source=AskedPeer(ip_address("10.1.0.0") + 99_999))
    until(lambda: checked.ask(last) == ALLOWED, "a hundred thousand have come")
    rule = replace(RULE, http=WantedHttp(("GET",), prefixes=("/public",)))
    sync_agent.server.receive(WantedChanges(policies={POLICY: WantedPolicy(POLICY, "default", (rule,), None)}))
    until(lambda: checked.ask(GET) == DENIED, "a path is asked for")
    public = replace(GET, path="/public/x")
    assert (checked.ask(public), checked.ask(replace(public, method="POST"))) == (ALLOWED, DENIED)
    sync_agent.server.receive(WantedChanges(endpoints={KEY: None}, classes={"c-1": None}, policies={POLICY: None}))
    until(lambda: checked.ask(public) == UNAVAILABLE, "there is no such workload any more")
    assert not [text for text in checked.log.texts if text.startswith("error")]


def test_what_was_told_holds_while_the_agent_is_gone(sync_agent: Served, checked: Checked) -> None:
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    sync_agent.stop()
    until(lambda: "what it said last holds" in "".join(checked.log.said), "it has noticed")
    checked.now += 1e6
    assert (checked.ask(GET), checked.ask(STRANGER)) == (ALLOWED, DENIED)


def test_an_agent_that_comes_back_replaces_what_was_told(sync_agent: Served, checked: Checked, tmp_path: Path) -> None:
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    sync_agent.stop()
    again = tmp_path / "again"
    again.mkdir()
    other = Served(again, serving.CUT_S)
    try:
        other.server.become(wanted_with(clients(0)))
        theirs = other.add()
        ours = tmp_path / "nodeagent/mount/csi-1/socket"
        until(theirs.is_socket, "it listens")
        ours.symlink_to(theirs)
        until(lambda: checked.ask(GET) == DENIED, "what the new one says is in force")
    finally:
        other.stop()


@pytest.mark.parametrize("checked", [30.0], indirect=True)
def test_it_holds_only_as_long_as_was_asked_for(sync_agent: Served, checked: Checked) -> None:
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    sync_agent.stop()
    checked.now += 29
    assert checked.ask(GET) == ALLOWED
    checked.now += 2
    assert checked.ask(GET) == UNAVAILABLE and not checked.is_ready()


def test_an_answer_says_nothing_of_the_rules(sync_agent: Served, checked: Checked) -> None:
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    refused = CheckResponse.FromString(checked.send(encode_check(STRANGER)))
    assert (refused.status.code, refused.status.message, refused.denied_response.status.code) == (7, "", 403)
    assert CheckResponse.FromString(checked.send(encode_check(GET))).HasField("ok_response")


def test_garbage_is_refused(sync_agent: Served, checked: Checked) -> None:
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    for data in (b"\xff", b"\x0a\x05\x0a\x03\x22\x01\xff", b"\x00" * 4096):
        assert parse_answer(checked.send(data)) == UNAVAILABLE
    assert parse_answer(checked.send(b"")) == DENIED
    assert checked.ask(GET) == ALLOWED


def test_what_was_told_holds_while_the_agent_fails(checked: Checked, sync_agent: Served) -> None:
    sync_agent.add()
    until(checked.is_ready, "it has been told everything")
    sync_agent.server.receive(WantedChanges(sets_changed={"s-none": SetChange(clients(1), clients(0))}))
    until(lambda: sync_agent.failed, "the agent's server has failed")
    assert (checked.ask(GET), checked.ask(STRANGER)) == (ALLOWED, DENIED)


def test_an_agent_that_says_garbage_is_asked_again(tmp_path: Path) -> None:
    """Streams that end in garbage, before and after everything is told; what was told as a whole holds."""
    documents = world(CASES["one method"])
    wanted = wanted_of(documents)
    (key,) = wanted.endpoints
    whole = messages_for(wanted, key, documents)
    streams = [[b"\xff"], [*whole[:2], b"\xff"], [*whole, b"\xff"], whole[:1]]
    asked: list[int] = []

    def sync(_data: bytes, _context: object) -> Iterator[bytes]:
        asked.append(len(asked))
        yield from streams[min(asked[-1], 3)]

    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {"Sync": grpc.unary_stream_rpc_method_handler(sync)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("felix.PolicySync", handlers)])
    server.add_insecure_port(f"unix:{tmp_path}/agent.sock")
    server.start()
    found = Checked(tmp_path, tmp_path / "agent.sock")
    try:
        until(lambda: len(asked) > 4, "it was asked again and again")
        assert found.ask(replace(GET, source=AskedPeer())) == ALLOWED
        assert found.ask(replace(GET, source=AskedPeer(), method="POST")) == DENIED
        assert "says what cannot be read" in "".join(found.log.said)
    finally:
        found.stop()
        server.stop(0)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda path: path.write_text("mine"), InvalidConfig),
        (lambda path: path.parent.rmdir(), CannotListen),
    ],
)
def test_a_socket_that_cannot_be_opened(tmp_path: Path, make: Callable[[Path], object], error: type[Exception]) -> None:
    path = tmp_path / "run" / "alp.sock"
    path.parent.mkdir()
    make(path)
    server = CheckServer(str(path), FollowedPolicies("/nowhere", None, SILENT), SILENT)
    with pytest.raises(error, match="cannot listen at"):
        server.start()
    assert not path.exists() or path.read_text() == "mine"


@given(st.binary(max_size=60))
def test_no_bytes_are_allowed_without_policies(data: bytes) -> None:
    server = CheckServer("/nowhere", FollowedPolicies("/nowhere", None, SILENT), SILENT)
    assert parse_answer(server._check(data, None)) == UNAVAILABLE


def test_a_socket_of_before_is_replaced(tmp_path: Path) -> None:
    first = Checked(tmp_path, tmp_path / "none")
    second = Checked(tmp_path, tmp_path / "none")
    assert second.ask(replace(GET, source=AskedPeer(principal=SPIFFE))) == UNAVAILABLE
    second.stop()
    first.stop()
