"""What the keys of the configuration, CNI_ARGS and the environment change about an ADD."""

from __future__ import annotations

import http.server
import json
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest

from cni_calico.cni.versions import SUPPORTED
from cni_calico.model.names import hashed_veth, kubernetes_veth
from cni_calico.plugin.waits import status_fields
from tests.deadlines import until
from tests.e2e.host import Node, added, addresses, cleaned
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

IPAM = {"type": "calico-ipam"}
DUAL = {"ipam": {**IPAM, "assign_ipv4": "true", "assign_ipv6": "true"}}
POD = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=u1"


@contextmanager
def meanwhile(work: Callable[[], None], may_go: threading.Event | None = None) -> Iterator[None]:
    """``work`` beside the block, which has not ended before it. ``may_go``: set at the end at the latest."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        if may_go is not None:
            may_go.set()
        thread.join()
    assert not failed, failed


@contextmanager
def process_beside(work: Callable[[], None]) -> Iterator[None]:
    """``work`` in a process: what a thread holds of the datastore's locks when a call is forked, nobody gives back."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    try:
        yield
    finally:
        process.join()
    assert process.exitcode == 0


def write_once(started: threading.Event, path: Path, text: str) -> None:
    assert started.wait(20)
    path.write_text(text)


def write_once_recorded(node: Node, path: Path) -> None:
    """What calico-node writes, as soon as the endpoint is in the datastore."""
    spec = until(node.endpoints, "the endpoint is recorded", 20)[0]["spec"]
    networks = (ip_interface(network).ip for network in spec["ipNetworks"])
    path.write_text(json.dumps(status_fields(spec["interfaceName"], spec["mac"], networks)))


# -- the node's name --------------------------------------------------------------------------------------------------


def test_node_names(node: Node, make_pod_ns: MakeNamespace) -> None:
    """nodename > file > hostname > the host's own name in lower case; all trimmed."""
    node, file = node, node.root / "nodename"
    file.write_text(" from-File\n")
    own = os.uname().nodename.lower()
    here, absent = {"nodename_file": str(file)}, {"nodename_file": "/none/such", "nodename_file_optional": True}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"nodename": " Given ", **here}, "Given"),
        ({"nodename": None, "hostname": "Old", **here}, "from-File"),
        ({"nodename": None, "hostname": " Old ", **absent}, "Old"),
        ({"nodename": None, **absent}, own),
    ]
    for number, (changes, expected) in enumerate(cases):
        added(node, f"c{number}", make_pod_ns(), **changes)
        assert {e["spec"]["node"] for e in node.endpoints()} == {expected}
        cleaned(node, f"c{number}", **changes)
    file.write_text("")  # says nothing: as if it said nothing about the name
    added(node, "c9", make_pod_ns(), nodename=None, hostname="Old", **here)
    assert {e["spec"]["node"] for e in node.endpoints()} == {"Old"}


def test_a_named_file_must_exist_even_beside_a_nodename(node: Node, pod_ns: Namespace) -> None:
    reply = node.call("STATUS", "", "", nodename_file="/none/such")
    assert reply.document["code"] == 50 and "/none/such" in reply.document["msg"]
    added(node, "c1", pod_ns, nodename_file="/none/such", nodename_file_optional=True)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"a/b\n", b"two\nlines"])
def test_a_nodename_file_with_something_else_in_it(node: Node, pod_ns: Namespace, content: bytes) -> None:
    file = node.root / "nodename"
    file.write_bytes(content)
    reply = node.call("ADD", "c1", pod_ns.path, nodename=None, nodename_file=str(file))
    assert reply.document["code"] in (7, 130) and str(file) in reply.document["msg"]
    assert not node.leftovers()


def test_add_waits_for_the_file_while_the_node_boots(node: Node, pod_ns: Namespace) -> None:
    """The file appears after the call has begun to look for it: when its lock directory does not exist yet."""
    file, looked = node.root / "nodename", threading.Event()
    threading.Timer(0.5, looked.set).start()
    with meanwhile(partial(write_once, looked, file, "late\n"), looked):
        added(node, "c1", pod_ns, nodename=None, nodename_file=str(file))
    assert {e["spec"]["node"] for e in node.endpoints()} == {"late"}


# -- MTU and queues ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "file", "expected"),
    [
        ({"mtu": 1300}, "1400", 1300),
        ({"mtu": 0}, "1400\n", 1400),
        ({"mtu": None}, "1400", 1400),
        ({"mtu": 1300, "require_mtu_file": True}, "1400", 1300),
        ({"mtu": None, "require_mtu_file": True}, "1400", 1400),
        ({"mtu": 0}, None, 9000),  # the interface of the default route: the node has no record
        ({"mtu": 0}, "rubbish", 9000),
        ({"mtu": 0}, "12", 9000),
    ],
)
def test_mtu(node: Node, pod_ns: Namespace, changes: dict[str, Any], file: str | None, expected: int) -> None:
    node.host.do("link", "set", "uplink", "mtu", "9000")
    if file is not None:
        (node.root / "state").mkdir(exist_ok=True)
        (node.root / "state" / "mtu").write_text(file)
    reply = added(node, "c1", pod_ns, **changes)
    veth, pod = node.host.link("calic1"), pod_ns.link("eth0")
    assert veth is not None and pod is not None
    assert veth["mtu"] == pod["mtu"] == reply.document["interfaces"][1]["mtu"] == expected
    cleaned(node, "c1")


@pytest.mark.parametrize(
    ("pools", "expected"),
    [
        ({"p4": {"ipipMode": "Always"}}, 1980),
        ({"p4": {"vxlanMode": "CrossSubnet"}}, 1950),
        ({"p4": {"ipipMode": "Always"}, "p6": {"vxlanMode": "Always"}}, 1930),
        ({"p4": {}}, 2000),
    ],
)
def test_mtu_of_the_nodes_own_interface_less_encapsulation(
    node: Node, pod_ns: Namespace, pools: dict[str, Any], expected: int
) -> None:
    node.host.do("link", "add", "second", "mtu", "2000", "type", "bridge")
    node.host.do("addr", "add", "198.51.100.7/24", "dev", "second")
    node.apply("Node", "node1", {"bgp": {"ipv4Address": "198.51.100.7/24"}})
    for name, spec in pools.items():
        cidr, size = ("10.66.0.0/16", 26) if name == "p4" else ("fd00:66::/112", 122)
        node.apply("IPPool", name, {"cidr": cidr, "blockSize": size, "nodeSelector": "all()", **spec})
    assert added(node, "c1", pod_ns, mtu=0).document["interfaces"][1]["mtu"] == expected
    cleaned(node, "c1")


def test_mtu_of_a_node_with_ipv6_only(node: Node, pod_ns: Namespace) -> None:
    node.host.do("link", "add", "second", "mtu", "2000", "type", "bridge")
    node.host.do("addr", "add", "2001:db8:7::7/64", "dev", "second", "nodad")
    node.apply("Node", "node1", {"bgp": {"ipv6Address": "2001:db8:7::7/64"}})
    assert added(node, "c1", pod_ns, mtu=0).document["interfaces"][1]["mtu"] == 2000


@pytest.mark.parametrize("changes", [{"mtu": 1300}, {"mtu": None}])
def test_a_required_mtu_file(node: Node, pod_ns: Namespace, changes: dict[str, Any]) -> None:
    reply = node.call("ADD", "c1", pod_ns.path, require_mtu_file=True, **changes)
    assert reply.document["code"] == 130 and "cannot read the MTU from" in reply.document["msg"]
    assert not node.leftovers()


def test_queues(node: Node, pod_ns: Namespace) -> None:
    added(node, "c1", pod_ns, num_queues=3)
    veth = node.host.link("calic1")
    assert veth is not None and (veth["num_tx_queues"], veth["num_rx_queues"]) == (3, 3)


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["10.65.9.9", "fd00:65::99"])
@pytest.mark.parametrize("plugin", ["calico", "calico-ipam"])
def test_an_address_asked_for_is_the_only_one(node: Node, pod_ns: Namespace, address: str, plugin: str) -> None:
    """As upstream: with IP= nothing else is assigned, whatever assign_ipv4 and assign_ipv6 say."""
    reply = added(node, "c1", pod_ns, args=f"IP={address}", plugin=plugin, **DUAL)
    alone = str(ip_interface(address))
    assert addresses(reply) == [alone] and reply.document["routes"] == [{"dst": alone}]
    assert set(node.taken()) == {address}
    cleaned(node, "c1")


@pytest.mark.parametrize("plugin", ["calico", "calico-ipam"])
@pytest.mark.parametrize("missing", ["pool4", "pool6"])
def test_half_a_dual_stack_gives_everything_back(node: Node, pod_ns: Namespace, missing: str, plugin: str) -> None:
    node.put({path: None for path in node.dump() if path.endswith(missing)})
    reply = node.call("ADD", "c1", pod_ns.path, plugin=plugin, **DUAL)
    assert reply.document["code"] == 112 and f"IPv{missing[-1]}" in reply.document["msg"]
    assert not node.leftovers()


def test_half_a_dual_stack_that_is_full_gives_everything_back(node: Node, make_pod_ns: MakeNamespace) -> None:
    node.apply("IPPool", "tiny6", {"cidr": "fd00:77::/126", "blockSize": 126, "nodeSelector": "all()"})
    ipam = {"ipam": {**DUAL["ipam"], "ipv6_pools": ["tiny6"]}}
    for number in range(4):
        added(node, f"c{number}", make_pod_ns(), **ipam)
    reply = node.call("ADD", "c9", make_pod_ns().path, **ipam)
    assert reply.document["code"] == 111 and "out of 1 requested IPv6 addresses" in reply.document["msg"]
    assert len(node.taken()) == 8 and "calnet.c9" not in set(node.taken().values())


def test_pools_by_name_and_by_cidr(node: Node, make_pod_ns: MakeNamespace) -> None:
    node.apply("IPPool", "other", {"cidr": "10.99.0.0/24", "blockSize": 26, "nodeSelector": "!all()"})
    for number, pool in enumerate(("other", "10.99.0.0/24")):
        reply = added(node, f"c{number}", make_pod_ns(), ipam={**IPAM, "ipv4_pools": [pool]})
        assert addresses(reply)[0].startswith("10.99.0.")


# -- results ----------------------------------------------------------------------------------------------------------

DNS = {"nameservers": ["10.96.0.10"], "domain": "cluster.local", "search": ["svc"], "options": ["ndots:5"]}


@pytest.mark.parametrize("version", SUPPORTED)
def test_dns_is_passed_through(node: Node, pod_ns: Namespace, version: str) -> None:
    assert added(node, "c1", pod_ns, cniVersion=version, dns=DNS).document["dns"] == DNS


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0", None])
def test_results_of_the_first_versions(node: Node, pod_ns: Namespace, version: str | None) -> None:
    """No interfaces, one object per family, with its routes."""
    reply = added(node, "c1", pod_ns, cniVersion=version, **DUAL)
    four, six = sorted(node.taken(), key=len)
    assert reply.document == {
        "cniVersion": version or "0.2.0",
        "ip4": {"ip": f"{four}/32", "routes": [{"dst": f"{four}/26"}]},
        "ip6": {"ip": f"{six}/128", "routes": [{"dst": f"{six}/122"}]},
        "dns": {},
    }
    cleaned(node, "c1", cniVersion=version)


def test_forwarding_in_the_pod(node: Node, make_pod_ns: MakeNamespace) -> None:
    for allowed, expected in ((False, "0"), (True, "1")):
        pod = make_pod_ns()
        added(node, f"c{expected}", pod, container_settings={"allow_ip_forwarding": allowed}, **DUAL)
        assert pod.sysctl("ipv4/ip_forward") == pod.sysctl("ipv6/conf/all/forwarding") == expected


# -- profiles, labels, namespaces -------------------------------------------------------------------------------------


def profile(node: Node, name: str = "calnet") -> Any:
    return node.dump().get(f"/calico/resources/v3/projectcalico.org/profiles/{name}")


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({}, {"selector": "has(calnet)"}),
        ({"profile_ingress": "members"}, {"selector": "has(calnet)"}),
        ({"profile_ingress": "anyone"}, {}),
    ],
)
def test_the_profile_of_a_network(
    node: Node, make_pod_ns: MakeNamespace, changes: dict[str, Any], source: dict[str, Any]
) -> None:
    """By default upstream's, as in its own dump; one that exists stays, whatever a later ADD would make."""
    added(node, "c1", make_pod_ns(), **changes)
    assert profile(node)["spec"] == {
        "ingress": [{"action": "Allow", "source": source, "destination": {}}],
        "egress": [{"action": "Allow", "source": {}, "destination": {}}],
        "labelsToApply": {"calnet": ""},
    }
    before = profile(node)
    added(node, "c2", make_pod_ns(), profile_ingress="anyone")
    assert profile(node) == before
    reply = node.call("ADD", "c3", make_pod_ns().path, profile_ingress="everybody")
    assert reply.document["code"] == 7 and "profile_ingress" in reply.document["msg"]


def test_no_profile_in_policy_mode(node: Node, pod_ns: Namespace) -> None:
    added(node, "c1", pod_ns, policy={"type": "k8s"})
    assert profile(node) is None


def test_pods_without_policy(node: Node, pod_ns: Namespace) -> None:
    """Kubernetes' CNI_ARGS with an empty policy.type: nothing is asked of Kubernetes, everybody may talk."""
    reply = added(node, "c1", pod_ns, args=POD)
    (endpoint,) = node.endpoints()
    assert endpoint["metadata"]["name"] == "node1-k8s-web--0-eth0"
    assert endpoint["metadata"]["namespace"] == "ns1"
    assert endpoint["metadata"]["labels"] == {
        "projectcalico.org/namespace": "ns1",
        "projectcalico.org/orchestrator": "k8s",
    }
    spec = endpoint["spec"]
    assert (spec["pod"], spec["containerID"], spec["profiles"]) == ("web-0", "c1", ["calnet"])
    assert spec["interfaceName"] == kubernetes_veth("ns1", "web-0") == reply.document["interfaces"][0]["name"]
    assert profile(node)["spec"]["ingress"] == [{"action": "Allow", "source": {}, "destination": {}}]
    (block,) = [document for path, document in node.dump().items() if "/assignment/" in path]
    secondary = block["attributes"][0]["secondary"]
    assert (secondary["namespace"], secondary["pod"], secondary["node"]) == ("ns1", "web-0", "node1")
    assert node.call("CHECK", "c1", pod_ns.path, args=POD, prevResult=reply.document).ok
    cleaned(node, "c1", args=POD)


def test_a_pod_is_made_again_before_its_old_sandbox_is_deleted(node: Node, make_pod_ns: MakeNamespace) -> None:
    """The endpoint is the pod's, the address the container's: the late DEL leaves the new sandbox alone."""
    node, old, new = node, make_pod_ns(), make_pod_ns()
    first = added(node, "c1", old, args=POD)
    second = added(node, "c2", new, args=POD)
    assert addresses(first) != addresses(second)
    assert first.document["interfaces"][0] == second.document["interfaces"][0]
    (endpoint,) = node.endpoints()
    assert endpoint["spec"]["containerID"] == "c2" and endpoint["spec"]["ipNetworks"] == addresses(second)
    for netns in (old.path, ""):
        assert node.call("DEL", "c1", netns, args=POD).ok
        assert set(node.taken().values()) == {"calnet.c2"} and len(node.endpoints()) == 1
        assert node.call("CHECK", "c2", new.path, args=POD, prevResult=second.document).ok
    assert old.link("eth0") is None
    cleaned(node, "c2", args=POD)


def test_the_prefix_of_host_interfaces(node: Node, make_pod_ns: MakeNamespace) -> None:
    """Of pods only, and the first of several."""
    node.environ["FELIX_INTERFACEPREFIX"] = "kube,cali"
    pod = added(node, "c1", make_pod_ns(), args=POD)
    assert pod.document["interfaces"][0]["name"] == kubernetes_veth("ns1", "web-0", "kube")
    other = added(node, "c2", make_pod_ns())
    assert other.document["interfaces"][0]["name"] == "calic2"
    assert node.call("DEL", "c1", "", args=POD).ok
    assert node.host.link(kubernetes_veth("ns1", "web-0", "kube")) is None


def test_the_namespace_of_tests(node: Node, pod_ns: Namespace) -> None:
    for number, args in enumerate(("CNI_TEST_NAMESPACE=elsewhere", f"{POD};CNI_TEST_NAMESPACE=elsewhere")):
        added(node, f"c{number}", pod_ns, args=args)
        (endpoint,) = node.endpoints()
        assert endpoint["metadata"]["namespace"] == "elsewhere"
        cleaned(node, f"c{number}", args=args)


MESOS = {
    "org.apache.mesos": {
        "network_info": {
            "name": "net",
            "labels": {
                "labels": [
                    {"key": "team/app name", "value": "--Blau & Grün--"},
                    {"key": "projectcalico.org/namespace", "value": "/marathon/"},
                ]
            },
        }
    }
}


def test_labels_of_mesos(node: Node, pod_ns: Namespace) -> None:
    document = {**node.conf(), "args": MESOS}
    reply = node.call("ADD", "c1", pod_ns.path, stdin=json.dumps(document).encode())
    assert reply.ok, reply
    (endpoint,) = node.endpoints()
    assert endpoint["metadata"]["namespace"] == "marathon"
    assert endpoint["metadata"]["labels"] == {
        "team.app-name": "Blau-Gr-n",
        "projectcalico.org/namespace": "marathon",
        "projectcalico.org/orchestrator": "cni",
    }
    assert node.call("DEL", "c1", "", stdin=json.dumps(document).encode()).ok
    assert not node.leftovers()


# -- a second network -------------------------------------------------------------------------------------------------


def test_a_network_that_joined_can_be_checked_and_leaves_alone(node: Node, pod_ns: Namespace) -> None:
    first = added(node, "c1", pod_ns)
    second = added(node, "c1", pod_ns, name="net2")
    assert addresses(first) == addresses(second)
    assert second.document["interfaces"][1]["sandbox"] == pod_ns.path
    assert node.call("CHECK", "c1", pod_ns.path, name="net2", prevResult=second.document).ok
    assert node.call("DEL", "c1", pod_ns.path, name="net2").ok
    (endpoint,) = node.endpoints()
    assert endpoint["spec"]["profiles"] == ["calnet"]
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=first.document).ok
    assert node.call("GC", "", "", name="net2", **{"cni.dev/valid-attachments": []}).ok
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=first.document).ok
    cleaned(node, "c1")


# -- what an ADD waits for --------------------------------------------------------------------------------------------


def log_of(node: Node) -> str:
    path = node.root / "cni.log"
    return path.read_text() if path.exists() else ""


def test_policy_of_a_pod_is_waited_for(node: Node, pod_ns: Namespace) -> None:
    """As upstream: its file need only be there."""
    waiting = {"policy_setup_timeout_seconds": 10, "endpoint_status_dir": str(node.root / "status")}
    (node.root / "status").mkdir()
    (node.root / "status" / "k8s ns1%2Fweb-0 eth0").write_text("{}")
    added(node, "c1", pod_ns, args=POD, **waiting)
    assert "is not known to be in force" not in log_of(node)


def test_policy_that_is_late_is_a_warning(node: Node, pod_ns: Namespace) -> None:
    waiting = {"policy_setup_timeout_seconds": 1, "endpoint_status_dir": str(node.root / "status")}
    reply = added(node, "c1", pod_ns, **waiting)
    assert "policy of calnet/c1/eth0 is not known to be in force after 1 s" in log_of(node)
    assert node.call("CHECK", "c1", pod_ns.path, prevResult=reply.document).ok


def test_policy_that_comes_while_waiting(node: Node, pod_ns: Namespace) -> None:
    """Outside Kubernetes the file has to say what this start of the container got."""
    node, status = node, node.root / "status"
    status.mkdir()
    file = status / "cni default%2Fc1 eth0"
    file.write_text(json.dumps(status_fields("calic1", "02:00:00:00:00:01", [])))  # of a former start
    with process_beside(partial(write_once_recorded, node, file)):
        added(node, "c1", pod_ns, policy_setup_timeout_seconds=20, endpoint_status_dir=str(status))
    assert "is not known to be in force" not in log_of(node)


class _Gate(http.server.BaseHTTPRequestHandler):
    statuses: list[int] = []

    def do_GET(self) -> None:
        self.send_response(self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0])
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def gate(host: Namespace, *statuses: int) -> Iterator[str]:
    """The URL of a server in the host's namespace that answers with these, the last one for ever."""
    listening = host_socket(host)
    handler = type("Gate", (_Gate,), {"statuses": list(statuses)})
    server = http.server.HTTPServer(("127.0.0.1", 0), handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/ready?full=1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def host_socket(host: Namespace) -> socket.socket:
    """A socket that listens in another namespace: made on a thread that enters it and ends."""
    made: list[socket.socket] = []

    def make() -> None:
        from cni_calico.kernel import netns

        netns.enter(os.open(host.path, os.O_RDONLY))
        made.append(socket.create_server(("127.0.0.1", 0)))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    return made[0]


def test_readiness_gates_that_open(node: Node, pod_ns: Namespace) -> None:
    with gate(node.host, 503, 500, 200) as url, gate(node.host, 302) as moved:
        added(node, "c1", pod_ns, readiness_gates=[url, moved])


def test_a_readiness_gate_that_stays_shut(plain_node: Node, pod_ns: Namespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a server, in whose process the patience cannot be shortened; it runs the same function."""
    node = plain_node
    monkeypatch.setattr("cni_calico.plugin.waits.GATE_PATIENCE_S", 1.0)
    for url_of, problem in ((lambda shut: shut, "status 503"), (lambda _: "http://127.0.0.1:9/", "refused")):
        with gate(node.host, 503) as shut:
            reply = node.call("ADD", "c1", pod_ns.path, readiness_gates=[url_of(shut)])
        assert reply.document["code"] == 130, reply
        assert "readiness gate http://127.0.0.1" in reply.document["msg"] and problem in reply.document["msg"]
        assert not node.leftovers()


# -- the environment --------------------------------------------------------------------------------------------------


def test_the_datastore_of_the_environment(node: Node, pod_ns: Namespace) -> None:
    assert node.datastore.path
    node.environ |= {"DATASTORE_TYPE": "local", "DATASTORE_PATH": node.datastore.path}
    added(node, "c1", pod_ns, datastore_type=None, datastore_path=None)
    assert len(node.endpoints()) == 1
    cleaned(node, "c1", datastore_type=None, datastore_path=None)


@pytest.mark.parametrize(
    ("environ", "changes"),
    [
        ({"ETCD_ENDPOINTS": "http://127.0.0.1:9"}, {}),
        ({"ETCD_ENDPOINTS": "http://127.0.0.1:9"}, {"datastore_type": "etcdv3"}),
        ({}, {"etcd_endpoints": " http://127.0.0.1:9 ,"}),
        ({"ETCD_AUTHORITY": "127.0.0.1:9"}, {}),
        ({}, {"etcd_authority": "127.0.0.1:9", "etcd_scheme": "http"}),
    ],
)
def test_etcd_endpoints_mean_etcd(node: Node, environ: dict[str, str], changes: dict[str, Any]) -> None:
    """Whoever names endpoints means etcd, here one that refuses connections: named, with code 101."""
    node.environ |= environ
    absent = {"datastore_type": None, "datastore_path": None}
    reply = node.call("CHECK", "c1", "/proc/self/ns/net", prevResult={}, **{**absent, **changes})
    assert reply.document["code"] == 101 and "127.0.0.1:9" in reply.document["msg"], reply


# -- locks and run-time directories -----------------------------------------------------------------------------------


def test_calico_ipam_alone_on_a_fresh_host(node: Node) -> None:
    """No directory of ours exists yet; nobody but the IPAM plugin runs."""
    node.environ |= {"CALICO_RUN_DIR": str(node.root / "a" / "b"), "CALICO_STATE_DIR": str(node.root / "c" / "d")}
    added(node, "c1", node.host, plugin="calico-ipam", ipam_lock_file=None)
    assert node.call("DEL", "c1", "", plugin="calico-ipam", ipam_lock_file=None).ok
    assert not node.taken()


def test_a_lock_file_that_cannot_be_is_no_failure(plain_node: Node, pod_ns: Namespace) -> None:
    """Without a server: tests/e2e/server/test_ipam.py has what the server does about the lock."""
    node = plain_node
    (node.root / "file").write_text("")
    added(node, "c1", pod_ns, ipam_lock_file=str(node.root / "file" / "lock"))
    assert "continuing without the host-wide IPAM lock" in log_of(node)
    cleaned(node, "c1")


@pytest.mark.parametrize(
    ("level", "said"), [("debug", True), ("info", True), ("INFO", True), ("error", False), ("none", False), ("x", True)]
)
def test_log_levels(node: Node, pod_ns: Namespace, level: str, said: bool) -> None:
    """A GC that collects says so at info."""
    added(node, "c1", pod_ns, log_level="none")
    assert node.call("GC", "", "", log_level=level, **{"cni.dev/valid-attachments": []}).ok
    assert ("no longer a valid attachment" in log_of(node)) == said


def test_hashed_names_are_checked_and_deleted_too(node: Node, make_pod_ns: MakeNamespace) -> None:
    one, two = make_pod_ns(), make_pod_ns()
    added(node, "cnitool-abc111", one)
    second = added(node, "cnitool-abc222", two)
    assert second.document["interfaces"][0]["name"] == hashed_veth("cnitool-abc222", "eth0")
    assert node.call("CHECK", "cnitool-abc222", two.path, prevResult=second.document).ok
