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
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Killed, Namespace

pytestmark = pytest.mark.netns

FAILED = 137


@pytest.fixture
def node_dataplane(tmp_path: Path) -> Iterator[Dataplane]:
    with dataplane_in(tmp_path / "dataplane") as made:
        yield made


@pytest.fixture
def second_dataplane(node: Node, node_dataplane: Dataplane) -> Node:
    """A node whose pods are the data plane's."""
    node.overrides["dataplane_options"] = node_dataplane.options
    return node


def kernel_of(node: Node, pod: Namespace) -> list[Any]:
    """What the kernel has of interfaces and routes, here and there."""
    return [(ns.ip("link", "show"), ns.ip("addr", "show"), ns.routes(4), ns.routes(6)) for ns in (node.host, pod)]


def names(dataplane: Dataplane) -> list[str]:
    return [method for method, _ in dataplane.asked()]


def test_add_and_del(second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    before = kernel_of(second_dataplane, pod_ns)
    reply = added(second_dataplane, "c1", pod_ns, ifname="net0", container_settings={"allow_ip_forwarding": True})
    [address] = addresses(reply)
    options = without(node_dataplane.options)
    assert set(options) == {"type", "socket", "flavour"}
    labels = {"projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni"}
    assert node_dataplane.asked() == [
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
    [endpoint] = second_dataplane.endpoints()
    assert (endpoint["spec"]["interfaceName"], endpoint["spec"]["mac"]) == ("vpp-tun7", MAC)
    assert endpoint["spec"]["ipNetworks"] == [address]
    assert second_dataplane.call("DEL", "c1", pod_ns.path, ifname="net0").ok
    assert node_dataplane.asked() == [
        ["Del", {"interface_name": "net0", "netns": pod_ns.path, "dataplane_options": options}]
    ]
    assert kernel_of(second_dataplane, pod_ns) == before and not second_dataplane.leftovers()


def test_dual_stack(second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    reply = added(second_dataplane, "c1", pod_ns, ipam={"type": "calico-ipam", "assign_ipv6": "true"})
    [asked] = node_dataplane.asked("Add")
    assert [ip["address"] for ip in asked["container_ips"]] == addresses(reply)
    assert {ip.partition("/")[2] for ip in addresses(reply)} == {"32", "128"}
    assert asked["container_routes"] == ["0.0.0.0/0", "::/0"]
    cleaned(second_dataplane, "c1")


@pytest.mark.cnitool
@pytest.mark.parametrize("routes", [(), ("10.0.0.0/8", "fd00::/16")])
def test_host_local(
    second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace, tmp_path: Path, routes: Any
) -> None:
    second_dataplane.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    second_dataplane.overrides["ipam"] = {
        "type": "host-local",
        "ranges": [[{"subnet": "10.88.0.0/24", "gateway": "10.88.0.254"}], [{"subnet": "fd00:88::/64"}]],
        "routes": [{"dst": dst} for dst in routes],
        "dataDir": str(tmp_path / "leases"),
    }
    reply = added(second_dataplane, "c1", pod_ns)
    [asked] = node_dataplane.asked("Add")
    assert [ip["address"] for ip in asked["container_ips"]] == addresses(reply)
    assert [ip["gateway"] for ip in asked["container_ips"]] == ["10.88.0.254", "fd00:88::1"]
    assert asked["container_routes"] == list(routes or ("0.0.0.0/0", "::/0"))
    node_dataplane.plan(Add={"successful": False, "error_message": "no"})
    assert second_dataplane.call("ADD", "c2", pod_ns.path).document["code"] == FAILED
    node_dataplane.plan()
    assert second_dataplane.call("DEL", "c1", pod_ns.path).ok
    assert not [path for path in (tmp_path / "leases" / "calnet").iterdir() if path.name[0].isdigit()]
    assert not second_dataplane.leftovers()


def test_a_repeated_add_tells_it_again(second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    first = added(second_dataplane, "c1", pod_ns)
    node_dataplane.plan(
        Add={"successful": True, "host_interface_name": "vpp-tun8", "container_mac": "02-FE-00-00-00-02"}
    )
    second = added(second_dataplane, "c1", pod_ns)
    assert addresses(first) == addresses(second)
    assert second.document["interfaces"][0] == {"name": "vpp-tun8"}
    one, two = node_dataplane.asked("Add")
    assert one == two
    [endpoint] = second_dataplane.endpoints()
    assert (endpoint["spec"]["interfaceName"], endpoint["spec"]["mac"]) == ("vpp-tun8", "02:fe:00:00:00:02")
    cleaned(second_dataplane, "c1")


def test_a_repeated_add_that_fails_leaves_what_lives(
    second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace
) -> None:
    added(second_dataplane, "c1", pod_ns)
    stored = second_dataplane.dump()
    node_dataplane.plan(Add={"successful": False, "error_message": "busy"})
    assert second_dataplane.call("ADD", "c1", pod_ns.path).document["code"] == FAILED
    assert names(node_dataplane) == ["Add", "Add"] and second_dataplane.dump() == stored
    node_dataplane.plan()
    cleaned(second_dataplane, "c1")


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
def test_everything_is_given_back(
    second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace, answer: Any, text: str
) -> None:
    before = kernel_of(second_dataplane, pod_ns)
    node_dataplane.plan(Add=answer)
    reply = second_dataplane.call("ADD", "c1", pod_ns.path)
    assert reply.document["code"] == FAILED and text in reply.document["msg"], reply
    assert reply.document["details"]
    # whatever it may have made is taken back as well
    assert names(node_dataplane) == (["Add"] if answer == "die" else ["Add", "Del"])
    assert not second_dataplane.leftovers() and kernel_of(second_dataplane, pod_ns) == before


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


@pytest.mark.slow_on("one-shot")
def test_nobody_listens(second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    node_dataplane.stop()
    for path in ("a file that nobody listens to any more", None):
        if path is None:
            node_dataplane.socket.unlink()
        reply = second_dataplane.call("ADD", "c1", pod_ns.path)
        assert reply.document["code"] == FAILED and str(node_dataplane.socket) in reply.document["msg"], reply
        assert "dataplane_options.socket" in reply.document["details"]
        assert not second_dataplane.leftovers()
        assert second_dataplane.call("STATUS", "", "").document["code"] == 50
        assert second_dataplane.call("DEL", "c1", pod_ns.path).document["code"] == FAILED
    node_dataplane.start()  # the same path, another process
    assert second_dataplane.call("STATUS", "", "").ok
    added(second_dataplane, "c1", pod_ns)
    cleaned(second_dataplane, "c1")


@pytest.mark.slow_on("one-shot")
@pytest.mark.parametrize("says", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", bytes(range(256)), b""])
def test_who_listens_speaks_no_grpc(
    second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace, says: bytes | None
) -> None:
    node_dataplane.stop()
    with listener_at(node_dataplane.socket, says):
        reply = second_dataplane.call("ADD", "c1", pod_ns.path)
        assert reply.document["code"] == FAILED and not second_dataplane.leftovers(), reply
        status = second_dataplane.call("STATUS", "", "")
        assert status.document["code"] == 50 and str(node_dataplane.socket) in status.document["msg"], status
        if says is None:
            assert "no answer within 5 s" in reply.document["msg"], reply
            assert "no gRPC within 5 s" in status.document["msg"], status


def test_a_del_that_it_refuses_fails(second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    reply = added(second_dataplane, "c1", pod_ns)
    for answer in ({"successful": False, "error_message": "busy"}, "hang", "garbage"):
        node_dataplane.plan(Del=answer)
        failed = second_dataplane.call("DEL", "c1", pod_ns.path)
        assert failed.document["code"] == FAILED, failed
        # an address that it may still serve is not given to anybody else
        assert list(second_dataplane.taken()) == [ip.partition("/")[0] for ip in addresses(reply)]
    node_dataplane.plan(Del="die")
    assert second_dataplane.call("DEL", "c1", pod_ns.path).document["code"] == FAILED
    node_dataplane.stop()
    node_dataplane.plan()
    node_dataplane.start()
    cleaned(second_dataplane, "c1")


def test_del_is_sent_again_and_without_a_namespace(
    second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace
) -> None:
    added(second_dataplane, "c1", pod_ns)
    for netns in ("", "/var/run/netns/gone", pod_ns.path):
        assert second_dataplane.call("DEL", "c1", netns).ok
    assert [fields["netns"] for fields in node_dataplane.asked("Del")] == ["", "/var/run/netns/gone", pod_ns.path]
    assert not second_dataplane.leftovers()


@pytest.mark.parametrize("action", ["fail", "kill"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_fails_or_dies_at_the_data_plane(
    plain_node: Node, node_dataplane: Dataplane, pod_ns: Namespace, when: str, action: str
) -> None:
    """Points dataplane.add and dataplane.del: an answer that was lost, a process that was killed; DEL clears it all."""
    plain_node.overrides["dataplane_options"] = node_dataplane.options
    with suppress(Killed):
        assert not plain_node.call("ADD", "c1", pod_ns.path, fault=f"dataplane.add:{when}:1:{action}").ok
        assert action == "fail"
        assert not plain_node.leftovers()
    added(plain_node, "c1", pod_ns)
    with suppress(Killed):
        assert not plain_node.call("DEL", "c1", pod_ns.path, fault=f"dataplane.del:{when}:1:{action}").ok
        assert action == "fail"
    assert plain_node.call("DEL", "c1", pod_ns.path).ok and not plain_node.leftovers()
    assert names(node_dataplane)[-1] == "Del"


def test_check(second_dataplane: Node, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    reply = added(second_dataplane, "c1", pod_ns)
    assert second_dataplane.call("CHECK", "c1", pod_ns.path, prevResult=reply.document).ok
    node_dataplane.asked()
    stored = second_dataplane.dump()
    [key] = [key for key in stored if "workloadendpoints" in key]
    document = stored[key]
    second_dataplane.put({key: {**document, "spec": {**document["spec"], "interfaceName": "vpp-tun9"}}})
    failed = second_dataplane.call("CHECK", "c1", pod_ns.path, prevResult=reply.document)
    assert failed.document["code"] == 132
    [difference] = json.loads(failed.document["details"])
    assert (difference["kind"], difference["found"]) == ("endpoint", "vpp-tun9")
    assert node_dataplane.asked() == []
    cleaned(second_dataplane, "c1")


def test_gc(second_dataplane: Node, node_dataplane: Dataplane, make_pod_ns: MakeNamespace) -> None:
    for container in ("kept", "gone"):
        added(second_dataplane, container, make_pod_ns())
    node_dataplane.asked()
    valid = [{"containerID": "kept", "ifname": "eth0"}]
    node_dataplane.plan(Del={"successful": False, "error_message": "busy"})
    failed = second_dataplane.call("GC", "", "", **{"cni.dev/valid-attachments": valid})
    assert failed.document["code"] == 133 and "busy" in failed.document["msg"]
    assert set(second_dataplane.taken().values()) == {"calnet.kept", "calnet.gone"}
    node_dataplane.plan()
    node_dataplane.asked()
    assert second_dataplane.call("GC", "", "", **{"cni.dev/valid-attachments": valid}).ok
    assert {(fields["interface_name"], fields["netns"]) for fields in node_dataplane.asked("Del")} == {("eth0", "")}
    assert set(second_dataplane.taken().values()) == {"calnet.kept"} and len(second_dataplane.endpoints()) == 1
    cleaned(second_dataplane, "kept")


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
def test_the_datastore_is_down(on_etcd: EtcdNode, node_dataplane: Dataplane, pod_ns: Namespace) -> None:
    """DEL tells the data plane, and succeeds; what is owed is released later."""
    on_etcd.overrides["dataplane_options"] = node_dataplane.options
    added(on_etcd, "c1", pod_ns)
    on_etcd.stop_etcd()
    assert on_etcd.call("DEL", "c1", pod_ns.path).ok
    assert names(node_dataplane) == ["Add", "Del"] and on_etcd.intents()
    on_etcd.start_etcd()
    added(on_etcd, "c2", pod_ns)
    cleaned(on_etcd, "c2")


@pytest.mark.bundle
def test_the_frozen_executables(plain_node: Node, node_dataplane: Dataplane, pod_ns: Namespace, bundle: Path) -> None:
    plain_node.bin_dir = bundle
    plain_node.overrides["dataplane_options"] = node_dataplane.options
    reply = added(plain_node, "c1", pod_ns)
    assert reply.document["interfaces"][0] == {"name": "vpp-tun7"}
    assert plain_node.call("STATUS", "", "").ok
    assert plain_node.call("CHECK", "c1", pod_ns.path, prevResult=reply.document).ok
    cleaned(plain_node, "c1")
    assert names(node_dataplane) == ["Add", "Del"]
