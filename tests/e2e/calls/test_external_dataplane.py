"""``dataplane_options`` with ``type: grpc``: the interface is made by a program of others, everything else is as ever.

The program is a real gRPC server in a process of its own (tests/fakes/cni_dataplane.py), with messages of its own.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LAB_CACHE
from tests.e2e.host import EtcdNode, Node, added, addresses, cleaned
from tests.fakes.cni_dataplane import MAC, Dataplane, dataplane_in, without
from tests.netns.conftest import MakeNamespace
from tests.netns.namespaces import Killed, Namespace

pytestmark = pytest.mark.netns

FAILED = 137


@pytest.fixture
def dataplane(tmp_path: Path) -> Iterator[Dataplane]:
    with dataplane_in(tmp_path / "dataplane") as made:
        yield made


@pytest.fixture
def other(node: Node, dataplane: Dataplane) -> Node:
    """A node whose pods are the data plane's."""
    node.overrides["dataplane_options"] = dataplane.options
    return node


def kernel_of(node: Node, pod: Namespace) -> list[Any]:
    """What the kernel has of interfaces and routes, here and there."""
    return [(ns.ip("link", "show"), ns.ip("addr", "show"), ns.routes(4), ns.routes(6)) for ns in (node.host, pod)]


def names(dataplane: Dataplane) -> list[str]:
    return [method for method, _ in dataplane.asked()]


def test_add_and_del(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    before = kernel_of(other, pod_ns)
    reply = added(other, "c1", pod_ns, ifname="net0", container_settings={"allow_ip_forwarding": True})
    [address] = addresses(reply)
    options = without(dataplane.options)
    assert set(options) == {"type", "socket", "flavour"}
    labels = {"projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni"}
    assert dataplane.asked() == [
        [
            "Add",
            {
                "interface_name": "net0",
                "netns": pod_ns.path,
                "desired_host_interface_name": "calic1",
                "settings": {"allow_ip_forwarding": True, "mtu": 1450},
                "container_ips": [{"address": address, "gateway": ""}],
                "container_routes": ["0.0.0.0/0", "::/0"],
                "workload": {
                    "name": "node1-cni-c1-net0",
                    "namespace": "default",
                    "labels": labels,
                    "annotations": {},
                    "endpoint": "net0",
                    "node": "node1",
                    "orchestrator": "cni",
                    "pod": "",
                    "ports": [],
                },
                "dataplane_options": options,
            },
        ]
    ]
    assert reply.document["interfaces"] == [
        {"name": "vpp-tun7"},
        {"name": "net0", "mac": MAC, "sandbox": pod_ns.path, "mtu": 1450},
    ]
    [endpoint] = other.endpoints()
    assert (endpoint["spec"]["interfaceName"], endpoint["spec"]["mac"]) == ("vpp-tun7", MAC)
    assert endpoint["spec"]["ipNetworks"] == [address]
    assert other.call("DEL", "c1", pod_ns.path, ifname="net0").ok
    assert dataplane.asked() == [
        ["Del", {"interface_name": "net0", "netns": pod_ns.path, "dataplane_options": options}]
    ]
    assert kernel_of(other, pod_ns) == before and not other.leftovers()


def test_dual_stack(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    reply = added(other, "c1", pod_ns, ipam={"type": "calico-ipam", "assign_ipv6": "true"})
    [asked] = dataplane.asked("Add")
    assert [ip["address"] for ip in asked["container_ips"]] == addresses(reply)
    assert {ip.partition("/")[2] for ip in addresses(reply)} == {"32", "128"}
    assert asked["container_routes"] == ["0.0.0.0/0", "::/0"]
    cleaned(other, "c1")


@pytest.mark.cnitool
@pytest.mark.parametrize("routes", [(), ("10.0.0.0/8", "fd00::/16")])
def test_host_local(other: Node, dataplane: Dataplane, pod_ns: Namespace, tmp_path: Path, routes: Any) -> None:
    other.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    other.overrides["ipam"] = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.0.0/24", "gateway": "10.88.0.254"}], [{"subnet": "fd00:88::/64"}]],
        "routes": [{"dst": dst} for dst in routes],
        "dataDir": str(tmp_path / "leases"),
    }
    reply = added(other, "c1", pod_ns)
    [asked] = dataplane.asked("Add")
    assert [ip["address"] for ip in asked["container_ips"]] == addresses(reply)
    assert [ip["gateway"] for ip in asked["container_ips"]] == ["10.88.0.254", "fd00:88::1"]
    assert asked["container_routes"] == list(routes or ("0.0.0.0/0", "::/0"))
    dataplane.plan(Add={"successful": False, "error_message": "no"})
    assert other.call("ADD", "c2", pod_ns.path).document["code"] == FAILED
    dataplane.plan()
    assert other.call("DEL", "c1", pod_ns.path).ok
    assert not [path for path in (tmp_path / "leases" / "calnet").iterdir() if path.name[0].isdigit()]
    assert not other.leftovers()


def test_a_repeated_add_tells_it_again(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    first = added(other, "c1", pod_ns)
    dataplane.plan(Add={"successful": True, "host_interface_name": "vpp-tun8", "container_mac": "02-FE-00-00-00-02"})
    second = added(other, "c1", pod_ns)
    assert addresses(first) == addresses(second)
    assert second.document["interfaces"][0] == {"name": "vpp-tun8"}
    one, two = dataplane.asked("Add")
    assert one == two
    [endpoint] = other.endpoints()
    assert (endpoint["spec"]["interfaceName"], endpoint["spec"]["mac"]) == ("vpp-tun8", "02:fe:00:00:00:02")
    cleaned(other, "c1")


def test_a_repeated_add_that_fails_leaves_what_lives(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    added(other, "c1", pod_ns)
    stored = other.dump()
    dataplane.plan(Add={"successful": False, "error_message": "busy"})
    assert other.call("ADD", "c1", pod_ns.path).document["code"] == FAILED
    assert names(dataplane) == ["Add", "Add"] and other.dump() == stored
    dataplane.plan()
    cleaned(other, "c1")


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"successful": False, "error_message": "no memory\nleft"}, "it says: no memory left"),
        ({"successful": False}, "it says: not successful"),
        ({}, "it says: not successful"),
        ("garbage", "its answer cannot be read"),
        ("hang", "no answer within 5 s"),
        ("die", "cannot call Add of the data plane"),
        ({"successful": True, "container_mac": MAC}, "host_interface_name '' is not an interface name"),
        ({"successful": True, "host_interface_name": "a/b", "container_mac": MAC}, "'a/b' is not an interface name"),
        ({"successful": True, "host_interface_name": "v1", "container_mac": "02:fe"}, "'02:fe' is not a MAC address"),
    ],
)
def test_everything_is_given_back(other: Node, dataplane: Dataplane, pod_ns: Namespace, answer: Any, text: str) -> None:
    before = kernel_of(other, pod_ns)
    dataplane.plan(Add=answer)
    reply = other.call("ADD", "c1", pod_ns.path)
    assert reply.document["code"] == FAILED and text in reply.document["msg"], reply
    assert reply.document["details"]
    # whatever it may have made is taken back as well
    assert names(dataplane) == (["Add"] if answer == "die" else ["Add", "Del"])
    assert not other.leftovers() and kernel_of(other, pod_ns) == before


@contextmanager
def listener_at(path: Path, says: bytes | None) -> Iterator[None]:
    """Somebody who speaks no gRPC: never answers at all, or says always the same."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(8)
        if says is not None:
            threading.Thread(target=_answer, args=(listening, says), daemon=True).start()
        yield
        listening.shutdown(socket.SHUT_RDWR)


def _answer(listening: socket.socket, says: bytes) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            connection.sendall(says)


def test_nobody_listens(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    dataplane.stop()
    for path in ("a file that nobody listens to any more", None):
        if path is None:
            dataplane.socket.unlink()
        reply = other.call("ADD", "c1", pod_ns.path)
        assert reply.document["code"] == FAILED and str(dataplane.socket) in reply.document["msg"], reply
        assert "dataplane_options.socket" in reply.document["details"]
        assert not other.leftovers()
        assert other.call("STATUS", "", "").document["code"] == 50
        assert other.call("DEL", "c1", pod_ns.path).document["code"] == FAILED
    dataplane.start()  # the same path, another process
    assert other.call("STATUS", "", "").ok
    added(other, "c1", pod_ns)
    cleaned(other, "c1")


@pytest.mark.parametrize("says", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)), b""])
def test_who_listens_speaks_no_grpc(other: Node, dataplane: Dataplane, pod_ns: Namespace, says: bytes | None) -> None:
    dataplane.stop()
    with listener_at(dataplane.socket, says):
        reply = other.call("ADD", "c1", pod_ns.path)
        assert reply.document["code"] == FAILED and not other.leftovers(), reply
        status = other.call("STATUS", "", "")
        assert status.document["code"] == 50 and str(dataplane.socket) in status.document["msg"], status


def test_a_del_that_it_refuses_fails(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    reply = added(other, "c1", pod_ns)
    for answer in ({"successful": False, "error_message": "busy"}, "hang", "garbage"):
        dataplane.plan(Del=answer)
        failed = other.call("DEL", "c1", pod_ns.path)
        assert failed.document["code"] == FAILED, failed
        # an address that it may still serve is not given to anybody else
        assert list(other.taken()) == [ip.partition("/")[0] for ip in addresses(reply)]
    dataplane.plan(Del="die")
    assert other.call("DEL", "c1", pod_ns.path).document["code"] == FAILED
    dataplane.stop()
    dataplane.plan()
    dataplane.start()
    cleaned(other, "c1")


def test_del_is_sent_again_and_without_a_namespace(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    added(other, "c1", pod_ns)
    for netns in ("", "/var/run/netns/gone", pod_ns.path):
        assert other.call("DEL", "c1", netns).ok
    assert [fields["netns"] for fields in dataplane.asked("Del")] == ["", "/var/run/netns/gone", pod_ns.path]
    assert not other.leftovers()


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_fails_or_dies_at_the_data_plane(
    plain_node: Node, dataplane: Dataplane, pod_ns: Namespace, when: str, action: str
) -> None:
    """Points dataplane.add and dataplane.del: an answer that was lost, a process that was killed; DEL clears it all."""
    plain_node.overrides["dataplane_options"] = dataplane.options
    with suppress(Killed):
        assert not plain_node.call("ADD", "c1", pod_ns.path, fault=f"dataplane.add:{when}:1:{action}").ok
        assert action == "fail"
        assert not plain_node.leftovers()
    added(plain_node, "c1", pod_ns)
    with suppress(Killed):
        assert not plain_node.call("DEL", "c1", pod_ns.path, fault=f"dataplane.del:{when}:1:{action}").ok
        assert action == "fail"
    assert plain_node.call("DEL", "c1", pod_ns.path).ok and not plain_node.leftovers()
    assert names(dataplane)[-1] == "Del"


def test_check(other: Node, dataplane: Dataplane, pod_ns: Namespace) -> None:
    reply = added(other, "c1", pod_ns)
    assert other.call("CHECK", "c1", pod_ns.path, prevResult=reply.document).ok
    dataplane.asked()
    stored = other.dump()
    [key] = [key for key in stored if "workloadendpoints" in key]
    document = stored[key]
    other.put({key: {**document, "spec": {**document["spec"], "interfaceName": "vpp-tun9"}}})
    failed = other.call("CHECK", "c1", pod_ns.path, prevResult=reply.document)
    assert failed.document["code"] == 132
    [difference] = json.loads(failed.document["details"])
    assert (difference["kind"], difference["found"]) == ("endpoint", "vpp-tun9")
    assert dataplane.asked() == []
    cleaned(other, "c1")


def test_gc(other: Node, dataplane: Dataplane, make_pod_ns: MakeNamespace) -> None:
    for container in ("kept", "gone"):
        added(other, container, make_pod_ns())
    dataplane.asked()
    valid = [{"containerID": "kept", "ifname": "eth0"}]
    dataplane.plan(Del={"successful": False, "error_message": "busy"})
    failed = other.call("GC", "", "", **{"cni.dev/valid-attachments": valid})
    assert failed.document["code"] == 133 and "busy" in failed.document["msg"]
    assert set(other.taken().values()) == {"calnet.kept", "calnet.gone"}
    dataplane.plan()
    dataplane.asked()
    assert other.call("GC", "", "", **{"cni.dev/valid-attachments": valid}).ok
    assert {(fields["interface_name"], fields["netns"]) for fields in dataplane.asked("Del")} == {("eth0", "")}
    assert set(other.taken().values()) == {"calnet.kept"} and len(other.endpoints()) == 1
    cleaned(other, "kept")


@pytest.mark.parametrize("command", ["ADD", "DEL", "CHECK", "GC", "STATUS"])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"type": "dpdk"}, "Invalid dataplane type: dpdk"),
        ({"type": 7}, "Invalid dataplane type: 7"),
        ({"type": "grpc"}, "dataplane_options.socket is missing"),
        ({"type": "grpc", "socket": "/run/s"}, "dataplane_options.socket"),
    ],
)
def test_what_cannot_be_used_is_named(
    plain_node: Node, pod_ns: Namespace, command: str, options: Any, text: str
) -> None:
    reply = plain_node.call(command, "c1", pod_ns.path, dataplane_options=options)
    assert reply.document["code"] == 7 and text in reply.document["msg"]
    assert not plain_node.leftovers()


@pytest.mark.etcd
def test_the_datastore_is_down(on_etcd: EtcdNode, dataplane: Dataplane, pod_ns: Namespace) -> None:
    """DEL tells the data plane, and succeeds; what is owed is released later."""
    on_etcd.overrides["dataplane_options"] = dataplane.options
    added(on_etcd, "c1", pod_ns)
    on_etcd.stop_etcd()
    assert on_etcd.call("DEL", "c1", pod_ns.path).ok
    assert names(dataplane) == ["Add", "Del"] and on_etcd.intents()
    on_etcd.start_etcd()
    added(on_etcd, "c2", pod_ns)
    cleaned(on_etcd, "c2")


@pytest.mark.bundle
def test_the_frozen_executables(plain_node: Node, dataplane: Dataplane, pod_ns: Namespace, bundle: Path) -> None:
    plain_node.bin_dir = bundle
    plain_node.overrides["dataplane_options"] = dataplane.options
    reply = added(plain_node, "c1", pod_ns)
    assert reply.document["interfaces"][0] == {"name": "vpp-tun7"}
    assert plain_node.call("STATUS", "", "").ok
    assert plain_node.call("CHECK", "c1", pod_ns.path, prevResult=reply.document).ok
    cleaned(plain_node, "c1")
    assert names(dataplane) == ["Add", "Del"]
