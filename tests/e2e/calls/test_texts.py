"""The texts and codes that users and their tools look for, each where it belongs, through the door of the plugins.

Rule: a request that is refused has taken nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from cni_calico.cni.versions import SUPPORTED
from cni_calico.model.keys import IPAMConfigKey, etcd_path
from tests.e2e.host import Node
from tests.netns.namespaces import Namespace

pytestmark = pytest.mark.netns

IPAM = {"type": "calico-ipam"}
BOTH = ("calico", "calico-ipam")
EXHAUSTED = "Assigned 0 out of 1 requested IPv4 addresses; "


@dataclass
class Case:
    """``prepare(node)`` before the call; ``changes`` of the configuration; ``code`` and ``text`` of the error."""

    code: int
    text: str
    changes: dict[str, Any] = field(default_factory=dict)
    prepare: Callable[[Node], None] = lambda node: None
    command: str = "ADD"
    args: str = ""
    environ: dict[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    container: str = "c1"
    ifname: str = "eth0"


def pools(*wanted: dict[str, Any]) -> Callable[[Node], None]:
    """Only these pools."""

    def prepare(node: Node) -> None:
        node.put({path: None for path in node.dump() if "/ippools/" in path})
        for number, spec in enumerate(wanted):
            node.apply("IPPool", f"p{number}", {"nodeSelector": "all()", **spec})

    return prepare


def also(*steps: Callable[[Node], None]) -> Callable[[Node], None]:
    def prepare(node: Node) -> None:
        for step in steps:
            step(node)

    return prepare


def ipam_config(**values: Any) -> Callable[[Node], None]:
    return lambda node: node.put({etcd_path(IPAMConfigKey()): {"auto_allocate_blocks": True, **values}})


def taken(count: int, nodename: str = "node1") -> Callable[[Node], None]:
    """So many addresses held by others; the IPAM plugin alone gives them."""

    def prepare(node: Node) -> None:
        for number in range(count):
            reply = node.call("ADD", f"other{number}", "/proc/self/ns/net", plugin="calico-ipam", nodename=nodename)
            assert reply.ok, reply

    return prepare


def not_ready(node: Node) -> None:
    node.apply("ClusterInformation", "default", {"datastoreReady": False})


TINY = {"cidr": "10.77.0.0/30", "blockSize": 30}
TWO_BLOCKS = {"cidr": "10.77.0.0/29", "blockSize": 30}
ADDRESSES = {
    "pool exhausted": Case(
        111,
        f"failed to request IPv4 addresses: {EXHAUSTED}No IPs available in pools: [10.77.0.0/30]",
        prepare=also(pools(TINY), taken(4)),
    ),
    "strict affinity": Case(
        111,
        f"failed to request IPv4 addresses: {EXHAUSTED}No more free affine blocks and strict affinity enabled",
        prepare=also(ipam_config(strict_affinity=True), pools(TINY), taken(1, "node2")),
    ),
    "block limit": Case(
        113,
        f"failed to request IPv4 addresses: {EXHAUSTED}cannot allocate new block due to per host block limit",
        prepare=also(ipam_config(maxBlocksPerHost=1), pools(TWO_BLOCKS), taken(4)),
    ),
    "auto-allocation off": Case(
        111,
        f"failed to request IPv4 addresses: {EXHAUSTED}failed to find or claim a block",
        prepare=ipam_config(auto_allocate_blocks=False),
    ),
    "no pool": Case(112, "cannot find a qualified ippool", prepare=pools()),
    "no pool of the second family": Case(
        112,
        "failed to request IPv6 addresses: cannot find a qualified ippool",
        {"ipam": {**IPAM, "assign_ipv6": "true"}},
        prepare=pools({"cidr": "10.77.0.0/24", "blockSize": 26}),
    ),
    "pool disabled": Case(112, "cannot find a qualified ippool", prepare=pools({**TINY, "disabled": True})),
    "pool of another use": Case(
        112,
        "cannot find a qualified ippool, no pools match the required use (Workload)",
        prepare=pools({**TINY, "allowedUses": ["Tunnel"]}),
    ),
    "no pool selects the node": Case(
        112,
        "no configured Calico pools for node node1",
        prepare=pools({**TINY, "nodeSelector": "rack == 'x'"}),
    ),
    "unknown pool name": Case(
        112, 'error parsing pool "x": invalid CIDR address: x', {"ipam": {**IPAM, "ipv4_pools": ["x"]}}
    ),
    "pool CIDR that is none": Case(
        7, 'error parsing pool "10.0/x": invalid CIDR address: 10.0/x', {"ipam": {**IPAM, "ipv4_pools": ["10.0/x"]}}
    ),
    "unknown pool CIDR": Case(
        112,
        "the given pool (10.99.0.0/16) does not exist, or is not enabled",
        {"ipam": {**IPAM, "ipv4_pools": ["10.99.0.0/16"]}},
    ),
    "disabled pool by name": Case(
        112,
        "the given pool (10.77.0.0/30) does not exist, or is not enabled",
        {"ipam": {**IPAM, "ipv4_pools": ["p0"]}},
        prepare=pools({**TINY, "disabled": True}),
    ),
    "address taken": Case(
        114,
        "Address already assigned in block",
        args="IP=10.65.200.7",
        prepare=lambda node: _take(node, "10.65.200.7"),
    ),
    "address outside pools": Case(115, "The provided IP address is not in a configured pool", args="IP=192.168.1.1"),
    "neither family": Case(
        7, "assign_ipv4 and ipam.assign_ipv6 are both false", {"ipam": {**IPAM, "assign_ipv4": "false"}}
    ),
    "not ready": Case(11, "Calico is currently not ready to process requests", prepare=not_ready),
    "not ready for DEL": Case(
        11, "Calico is currently not ready to process requests", prepare=not_ready, command="DEL"
    ),
    "not ready for GC": Case(
        11,
        "Calico is currently not ready to process requests",
        {"cni.dev/valid-attachments": []},
        prepare=not_ready,
        command="GC",
    ),
    "not ready for STATUS": Case(
        50, "Calico is currently not ready to process requests", prepare=not_ready, command="STATUS"
    ),
    "nodename file missing": Case(
        130,
        "stat /none/such: no such file or directory: check that the calico/node container is running and has mounted "
        "/var/lib/calico/",
        {"nodename": None, "nodename_file": "/none/such"},
    ),
    "nodename file missing for STATUS": Case(
        50,
        "stat /none/such: no such file or directory: check that the calico/node container is running and has mounted "
        "/var/lib/calico/",
        {"nodename": None, "nodename_file": "/none/such"},
        command="STATUS",
    ),
}


def _take(node: Node, address: str) -> None:
    reply = node.call("ADD", "other", "/proc/self/ns/net", plugin="calico-ipam", args=f"IP={address}")
    assert reply.ok, reply


def old(command: str, version: str) -> Case:
    return Case(1, f"config version does not allow {command}", {"cniVersion": version}, command=command)


REQUESTS = {
    "unknown datastore": Case(7, "unknown datastore type: mysql", {"datastore_type": "mysql"}),
    "no etcd endpoints": Case(7, "no etcd endpoints specified", {"datastore_type": "etcdv3"}),
    "network name missing": Case(7, "missing network name", {"name": None}),
    "network name bad": Case(7, "invalid characters found in network name", {"name": "a/b"}),
    "an unknown API group": Case(7, "calico_api_group", {"calico_api_group": "projectcalico.org"}),
    "version unknown": Case(1, "incompatible CNI versions", {"cniVersion": "9.9.9"}),
    "version of a wrong kind": Case(1, "incompatible CNI versions", {"cniVersion": 1}),
    **{f"CHECK with {version}": old("CHECK", version) for version in SUPPORTED if version < "0.4.0"},
    **{f"STATUS with {version}": old("STATUS", version) for version in SUPPORTED if version < "1.1.0"},
    **{f"GC with {version}": old("GC", version) for version in SUPPORTED if version < "1.1.0"},
    "CHECK without a version": Case(1, "config version does not allow CHECK", {"cniVersion": None}, command="CHECK"),
    "unknown verb": Case(4, "unknown CNI_COMMAND: FOO", command="FOO"),
    "no verb": Case(4, "required env variables [CNI_COMMAND] missing", command=""),
    "no namespace": Case(4, "required env variables [CNI_NETNS] missing", environ={"CNI_NETNS": ""}),
    "several missing": Case(
        4,
        "required env variables [CNI_CONTAINERID,CNI_NETNS] missing",
        environ={"CNI_CONTAINERID": "", "CNI_NETNS": ""},
    ),
    "no path": Case(4, "required env variables [CNI_PATH] missing", command="STATUS", environ={"CNI_PATH": ""}),
    "container ID": Case(4, "invalid characters in containerID", container="../c1"),
    "interface name": Case(4, "invalid interface name", ifname="eth0/x"),
    "interface name too long": Case(4, "invalid interface name", ifname="e" * 16),
    "CNI_ARGS": Case(4, "'IP' is not KEY=VALUE", args="IgnoreUnknown=1;IP"),
    "address in CNI_ARGS": Case(4, "IP='10.0.0' is not an IP address", args="IP=10.0.0"),
    "pod name": Case(4, "K8S_POD_NAME='a/b'", args="K8S_POD_NAME=a/b;K8S_POD_NAMESPACE=n"),
    "no JSON": Case(6, "cannot decode the network configuration", stdin=b"{"),
    "no configuration": Case(6, "cannot decode the network configuration", stdin=b""),
    "no object": Case(6, "expected an object, got list", stdin=b"[]"),
    "no UTF-8": Case(6, "cannot decode the network configuration", stdin=b'{"name":"\xff"}'),
    "nested too deeply": Case(6, "cannot decode the network configuration", stdin=b'{"a":' * 100000),
    "negative policy timeout": Case(7, "policy_setup_timeout_seconds", {"policy_setup_timeout_seconds": -1}),
    "readiness gate": Case(7, "Invalid URL set for ReadinessGates", {"readiness_gates": ["nonsense"]}),
    "node name": Case(7, "nodename: expected a node's name", {"nodename": "a/b"}),
    "wrong kind of value": Case(7, "mtu: expected an integer from 0 to 65535, got 'big'", {"mtu": "big"}),
    "dns": Case(7, "dns: expected an object", {"dns": ["8.8.8.8"]}),
    "IPAM type missing": Case(7, "has no ipam.type", {"ipam": {}}),
    "prevResult missing": Case(7, "required prevResult is missing", command="CHECK"),
    "prevResult": Case(7, "prevResult.ips.address", {"prevResult": {"ips": [{"address": "x"}]}}, command="CHECK"),
    "interface of prevResult": Case(
        7,
        "'../../x' is not an interface name",
        {"prevResult": {"ips": [{"address": "10.0.0.1/32"}], "interfaces": [{"name": "../../x"}]}},
        command="CHECK",
    ),
    "MAC of prevResult": Case(
        7,
        "is not a MAC address",
        {
            "prevResult": {
                "ips": [{"address": "10.0.0.1/32"}],
                "interfaces": [{"name": "eth0", "mac": "zz:zz:zz:zz:zz:zz", "sandbox": "/x"}],
            }
        },
        command="CHECK",
    ),
    "valid attachments missing": Case(7, "cni.dev/valid-attachments is missing", command="GC"),
    "valid attachments": Case(
        7, "expected objects with containerID and ifname", {"cni.dev/valid-attachments": [{}]}, command="GC"
    ),
    "feature of Kubernetes only": Case(
        109,
        "requested feature is not supported for this runtime: ip_addrs_no_ipam",
        {"feature_control": {"ip_addrs_no_ipam": True}},
    ),
}


def require_refused(node: Node, pod: Namespace, case: Case, plugin: str) -> None:
    case.prepare(node)
    before = {path: document for path, document in node.dump().items() if "/config" not in path}
    node.environ.update({"CNI_PATH": "/opt/cni/bin", **case.environ})
    options = {"args": case.args, "ifname": case.ifname, "plugin": plugin, "stdin": case.stdin, **case.changes}
    reply = node.call(case.command, case.container, pod.path, **options)
    assert reply.rc == 1, reply
    assert case.text in reply.document["msg"], reply
    assert reply.document["code"] == case.code, reply
    assert reply.document["cniVersion"] in SUPPORTED
    after = {path: document for path, document in node.dump().items() if "/config" not in path}
    assert after == before, "a request that is refused changes nothing"
    assert pod.link("eth0") is None and not [n for n in node.host.ip("link", "show") if n["ifname"].startswith("cali")]


# calico-ipam by itself needs no node that is set up (tests/e2e/calls/test_callers.py)
OF_CALICO = {"nodename file missing", "nodename file missing for STATUS"}


@pytest.mark.parametrize(
    ("name", "plugin"), [(n, p) for n in ADDRESSES for p in BOTH if p == "calico" or n not in OF_CALICO]
)
def test_addresses(node: Node, pod_ns: Namespace, name: str, plugin: str) -> None:
    require_refused(node, pod_ns, ADDRESSES[name], plugin)


@pytest.mark.parametrize("name", REQUESTS)
def test_requests(node: Node, pod_ns: Namespace, name: str) -> None:
    require_refused(node, pod_ns, REQUESTS[name], "calico")


SHOWS_NOTHING = {
    "token": {"policy": {"k8s_auth_token": ["swordfish"]}},
    "key": {"policy": {"k8s_client_key": {"pem": "swordfish"}}},
    "certificate": {"policy": {"k8s_certificate_authority": ["swordfish"]}},
}


@pytest.mark.parametrize("name", SHOWS_NOTHING)
def test_no_secret_is_shown(node: Node, pod_ns: Namespace, name: str) -> None:
    reply = node.call("ADD", "c1", pod_ns.path, **SHOWS_NOTHING[name])
    assert reply.document["code"] == 7 and "policy.k8s_" in reply.document["msg"]
    assert "swordfish" not in str(reply.document)
    log = node.root / "cni.log"
    assert not log.exists() or "swordfish" not in log.read_text()
