"""Real gRPC clients at the sockets of volumes: what they get, and what becomes of those that do not behave."""

from __future__ import annotations

import json
import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import grpc
import pytest

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.sync import serving
from cni_calico.nodeagent.sync.felix_pb2 import ReportResult, ToDataplane
from cni_calico.nodeagent.sync.serving import SyncServer
from cni_calico.policy.wanted import (
    Members,
    PolicyId,
    SetChange,
    Wanted,
    WantedChanges,
    WantedClass,
    WantedEndpoint,
    WantedHttp,
    WantedPolicy,
    WantedRule,
    WantedSide,
    WantedTier,
)
from tests.deadlines import until
from tests.fakes.notes import Notes

POLICY = PolicyId("NetworkPolicy", "web", "shop")
RULE = WantedRule("Allow", source=WantedSide(sets=("s-clients",)))
TIER = WantedTier("default", (POLICY,), "Deny")
CLASS = WantedClass("c-1", (TIER,), (), ())
KEY = ResourceKey("WorkloadEndpoint", "n-k8s-web-eth0", "shop")
ENDPOINT = WantedEndpoint(KEY, "cali1", "c-1", (b"\n\0\0\1",), orchestrator="k8s", workload="shop/web", endpoint="eth0")


def clients(count: int, first: int = 0) -> Members:
    start = int(ip_address("10.1.0.0")) + first
    return Members(frozenset(ip_address(start + i).packed for i in range(count)))


def wanted_with(members: Members) -> Wanted:
    policies = {POLICY: WantedPolicy(POLICY, "default", (RULE,), None)}
    return Wanted({"s-clients": members}, policies, {"c-1": CLASS}, {KEY: ENDPOINT})


class Served:
    """A server in a thread, and volumes as the CSI driver makes them."""

    def __init__(self, directory: Path, cut_s: float) -> None:
        self.prefix, self.log = directory / "nodeagent", Notes()
        (self.prefix / "creds").mkdir(parents=True)
        (self.prefix / "mount").mkdir()
        self.troubles: list[str] = []
        self.server = SyncServer(str(self.prefix), self.log, self.troubles.append, cut_s)
        self.failed: list[Exception] = []
        self.thread = threading.Thread(target=self._run)
        self.server.receive_profiles({"kns.shop": {"pcns.a": "b"}}, complete=True)
        self.server.become(wanted_with(clients(2)))
        self.thread.start()

    def _run(self) -> None:
        try:
            self.server.run(threading.Event())
        except Exception as e:
            self.failed.append(e)

    def add(self, volume: str = "csi-1", pod: str = "web", content: bytes | None = None) -> Path:
        (self.prefix / "mount" / volume).mkdir(exist_ok=True)
        whose = {"UID": "u", "Workload": pod, "Namespace": "shop", "ServiceAccount": "default"}
        made = self.prefix / f"{volume}.json"
        made.write_bytes(json.dumps(whose).encode() if content is None else content)
        made.rename(self.prefix / "creds" / made.name)
        return self.prefix / "mount" / volume / "socket"

    def stop(self) -> None:
        self.server.stop()
        self.thread.join(30)
        assert not self.thread.is_alive()


class Client:
    """A program in the pod."""

    def __init__(self, path: Path) -> None:
        until(path.is_socket, f"{path} is there")
        self.directory = os.open(path.parent, os.O_RDONLY)  # gRPC's paths are short
        options = (("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0))
        self.channel = grpc.insecure_channel(f"unix:/proc/self/fd/{self.directory}/socket", options)
        # a socket is there a moment before somebody listens
        self.sync = partial(self.channel.unary_stream("/felix.PolicySync/Sync"), wait_for_ready=True)
        self.report = partial(self.channel.unary_unary("/felix.PolicySync/Report"), wait_for_ready=True)
        self.call: Any = None

    def join(self) -> Client:
        self.call = self.sync(b"", timeout=90)
        return self

    def next(self) -> Any:
        """The next message: its kind and content."""
        message = ToDataplane.FromString(next(self.call))
        kind = message.WhichOneof("payload")
        return kind, getattr(message, kind)

    def until_in_sync(self) -> list[str]:
        kinds = []
        while not kinds or kinds[-1] != "in_sync":
            kinds.append(self.next()[0])
        return kinds

    def end(self) -> grpc.StatusCode:
        """How the stream ends."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        code: grpc.StatusCode = self.call.code()
        return code


@pytest.fixture
def join() -> Iterator[Callable[[Path], Client]]:
    made: list[Client] = []

    def open_client(path: Path) -> Client:
        made.append(Client(path))
        return made[-1]

    yield open_client
    for client in made:
        client.channel.close()
        os.close(client.directory)


def test_a_workload_gets_what_it_needs_and_then_what_changes(served: Served, join: Any) -> None:
    path = served.add()
    client = join(path).join()
    assert stat.S_IMODE(path.stat().st_mode) == 0o777
    assert client.until_in_sync() == [
        "ipset_update",
        "active_policy_update",
        "workload_endpoint_update",
        "namespace_update",
        "in_sync",
    ]
    served.server.receive(WantedChanges(sets_changed={"s-clients": SetChange(clients(1, first=9), clients(1))}))
    kind, removed = client.next()
    assert (kind, list(removed.removed_members)) == ("ipset_delta_update", ["10.1.0.0/32"])
    assert list(client.next()[1].added_members) == ["10.1.0.9/32"]
    served.server.receive(WantedChanges(policies={POLICY: WantedPolicy(POLICY, "default", (), None)}))
    assert client.next()[0] == "active_policy_update" and client.next()[0] == "ipset_remove"
    served.server.receive(WantedChanges(endpoints={KEY: None}, classes={"c-1": None}, policies={POLICY: None}))
    assert client.next()[0] == "workload_endpoint_remove"
    assert client.end() == grpc.StatusCode.OK


def test_a_pod_whose_requests_nobody_checks_is_named(
    served: Served, join: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "UNREAD_S", 0.0)
    asking = WantedPolicy(POLICY, "default", (replace(RULE, http=WantedHttp(("GET",))),), None)
    served.server.receive(WantedChanges(policies={POLICY: asking}))
    until(lambda: "nobody checks requests to shop/web: " in "".join(served.troubles[-1:]), "it is named")
    client = join(served.add()).join()
    client.until_in_sync()
    until(lambda: served.troubles[-1] == "", "it is checked")
    client.call.cancel()
    until(lambda: "shop/web" in served.troubles[-1], "it is not any more")
    served.server.receive(WantedChanges(policies={POLICY: WantedPolicy(POLICY, "default", (RULE,), None)}))
    until(lambda: served.troubles[-1] == "", "nothing is asked of requests")


def test_an_unknown_pods_reader_waits_and_a_second_one_ends_the_first(served: Served, join: Any) -> None:
    path = served.add(pod="later")
    first = join(path).join()
    assert first.report(b"", timeout=90)  # the server has got what came before on this connection
    second = join(path).join()
    assert first.end() == grpc.StatusCode.OK
    key = KEY._replace(name="n-k8s-later-eth0")
    late = replace(ENDPOINT, key=key, workload="shop/later", interface="cali2")
    served.server.receive(WantedChanges(endpoints={key: late}))
    assert "workload_endpoint_update" in second.until_in_sync()


def test_a_volume_that_goes_takes_its_readers_with_it(served: Served, join: Any) -> None:
    path = served.add()
    client = join(path).join()
    client.until_in_sync()
    (served.prefix / "creds" / "csi-1.json").unlink()
    assert client.end() == grpc.StatusCode.UNAVAILABLE
    until(lambda: not path.exists(), "the socket is gone")


def test_what_is_in_a_volume_leads_nowhere(served: Served, join: Any, tmp_path: Path) -> None:
    """Links to a file outside, from the socket and from the volume's directory; a directory in the socket's place."""
    outside = tmp_path / "outside"
    outside.mkdir(0o700)
    secret = outside / "socket"
    secret.write_text("secret")
    secret.chmod(0o600)
    mount = served.prefix / "mount"
    (mount / "csi-1").mkdir()
    (mount / "csi-1" / "socket").symlink_to(secret)
    (mount / "csi-2").symlink_to(outside)
    (mount / "csi-3" / "socket").mkdir(parents=True)
    client = join(served.add("csi-1")).join()
    assert client.until_in_sync()
    for volume in ("csi-2", "csi-3"):
        served.add(volume)
    until(lambda: all(f"mount/{name}" in served.troubles[-1] for name in ("csi-2", "csi-3")), "both are named")
    assert secret.read_text() == "secret" and stat.S_IMODE(secret.stat().st_mode) == 0o600
    (mount / "csi-3" / "socket").rmdir()
    assert join(mount / "csi-3" / "socket").join().until_in_sync()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"Workload": "web"}', b'{"Namespace": "a/b", "Workload": "web"}', b"[" * 9000]
)
def test_credentials_that_cannot_be_understood_open_nothing(served: Served, join: Any, content: bytes) -> None:
    path = served.add("csi-bad", content=content)
    until(lambda: served.troubles and "csi-bad.json" in served.troubles[-1], "it is named")
    assert not path.exists()
    served.add("csi-bad")
    assert join(path).join().until_in_sync()
    until(lambda: served.troubles[-1] == "", "nothing is wrong any more")


def test_a_path_too_long_for_a_socket_is_no_obstacle(served: Served, join: Any) -> None:
    assert join(served.add("v" * 150)).join().until_in_sync()


@pytest.mark.parametrize("served", [2.0], indirect=True)
def test_a_reader_that_does_not_read_is_cut_off_and_holds_nobody_up(served: Served, join: Any) -> None:
    """Its pod's next reader, and others', get everything meanwhile."""
    served.server.become(wanted_with(clients(100_000)))
    path = served.add()
    frozen = join(path).join()
    assert frozen.next()[0] == "ipset_update"  # and then no more
    other = join(served.add("csi-2")).join()
    assert other.until_in_sync()[0] == "ipset_update"
    other.call.cancel()
    members = [clients(100_000, first) for first in (50_000, 0)]

    def changed_again() -> bool:
        members.reverse()
        served.server.become(wanted_with(members[0]))
        return any("has not read a message" in text for text in served.log.said)

    until(changed_again, "it is cut off", pause_s=0.2)
    assert frozen.end() == grpc.StatusCode.UNAVAILABLE
    again = join(path).join()
    assert again.until_in_sync()[:2] == ["ipset_update", "ipset_delta_update"]


def test_garbage_is_refused_and_what_no_reader_does_is_cut_off(served: Served, join: Any) -> None:
    path = served.add()
    client = join(path)
    client.call = client.sync(b"\xff\xff", timeout=90)
    assert client.end() == grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.RpcError, match="INVALID_ARGUMENT"):
        client.report(b"\x08", timeout=90)
    assert ReportResult.FromString(client.report(b"\x0a\x01x", timeout=90)).successful
    assert join(path).join().until_in_sync()
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(f"/proc/self/fd/{client.directory}/socket")
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n" * 10)
        raw.settimeout(90)
        while raw.recv(65536):
            pass
    for _ in range(serving._EVENTS + 1):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(f"/proc/self/fd/{client.directory}/socket")
            raw.shutdown(socket.SHUT_WR)
    until(lambda: any("faster than a reader" in text for text in served.log.said), "it is cut off")
    assert join(served.add("csi-2")).join().until_in_sync()


def test_what_is_half_known_is_not_gone_on_with(served: Served, join: Any) -> None:
    """Whoever runs it begins again, and hands everything in."""
    join(served.add()).join().until_in_sync()
    served.server.receive(WantedChanges(sets_changed={"s-other": SetChange(clients(1))}))
    served.thread.join(90)
    assert [type(one) for one in served.failed] == [KeyError]


def test_what_is_handed_over_while_it_fails_neither_fails_nor_is_lost(served: Served, join: Any) -> None:
    """Whoever hands it over is the thread that enforces policies."""
    path = served.add()
    join(path).join().until_in_sync()
    unknown = WantedChanges(sets_changed={"s-other": SetChange(clients(1))})
    served.server.receive(unknown)
    served.server.receive_profiles({"kns.one": {}}, complete=True)
    served.thread.join(90)
    served.server.receive(unknown)
    served.server.receive_profiles({"kns.two": {}}, complete=True)
    served.server.become(wanted_with(clients(3)))
    served.thread = threading.Thread(target=served._run)
    served.thread.start()
    assert join(path).join().until_in_sync().count("namespace_update") == 3
    assert len(served.failed) == 1
