"""ADD and DEL through serve(), in real namespaces: every version, family, repetition and rollback."""

from __future__ import annotations

import pytest

from cni_calico.cni.versions import SUPPORTED
from tests.e2e.host import Node

pytestmark = pytest.mark.netns


V6 = {"ipam": {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"}}
DUAL = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}}


def addresses(reply):
    return [ip["address"] for ip in reply.document["ips"]]


def ping(source, target, version=4):
    return source.run("ping", f"-{version}", "-c1", "-W2", target, check=False).returncode == 0


@pytest.mark.parametrize("version", SUPPORTED)
def test_every_version(any_node: Node, pod_ns, version):
    reply = any_node.call("ADD", "c1", pod_ns.path, cniVersion=version, **DUAL)
    assert reply.ok, reply
    assert reply.document["cniVersion"] == version
    assert pod_ns.addresses("eth0") == set(map(str, _all_addresses(reply.document)))
    previous = {"prevResult": reply.document} if version >= "0.4.0" else {}
    assert any_node.call("DEL", "c1", pod_ns.path, cniVersion=version, **previous).ok
    assert not any_node.leftovers()


def _all_addresses(document):
    if "ips" in document:
        return [ip["address"] for ip in document["ips"]]
    return [document["ip4"]["ip"], document["ip6"]["ip"]]


@pytest.mark.parametrize(("changes", "versions"), [({}, (4,)), (V6, (6,)), (DUAL, (4, 6))])
def test_pods_reach_one_another(any_node: Node, make_pod_ns, changes, versions):
    pods = [make_pod_ns(), make_pod_ns()]
    replies = [any_node.call("ADD", f"c{i}", pod.path, **changes) for i, pod in enumerate(pods)]
    assert all(reply.ok for reply in replies), replies
    for position, version in enumerate(versions):
        target = [addresses(reply)[position].split("/")[0] for reply in replies]
        assert ping(pods[0], target[1], version) and ping(pods[1], target[0], version)
    for i, pod in enumerate(pods):
        assert any_node.call("DEL", f"c{i}", pod.path).ok
    assert not any_node.leftovers()


def test_result_has_the_blocks_prefix_in_its_routes(any_node: Node, pod_ns):
    reply = any_node.call("ADD", "c1", pod_ns.path)
    address = addresses(reply)[0].split("/")[0]
    assert addresses(reply) == [f"{address}/32"]
    assert reply.document["routes"] == [{"dst": f"{address}/26"}]
    host, pod = reply.document["interfaces"]
    assert set(host) == {"name"} and host["name"] == "calic1"
    assert (pod["name"], pod["sandbox"], pod["mtu"]) == ("eth0", pod_ns.path, 1450)


def test_the_endpoint_is_stored_as_upstream_stores_it(any_node: Node, pod_ns):
    reply = any_node.call("ADD", "abcdef0123456789", pod_ns.path)
    (endpoint,) = any_node.endpoints()
    assert endpoint["metadata"]["name"] == "node1-cni-abcdef0123456789-eth0"
    assert endpoint["metadata"]["labels"] == {
        "projectcalico.org/namespace": "default",
        "projectcalico.org/orchestrator": "cni",
    }
    assert endpoint["spec"] == {
        "orchestrator": "cni",
        "node": "node1",
        "containerID": "abcdef0123456789",
        "endpoint": "eth0",
        "ipNetworks": addresses(reply),
        "profiles": ["calnet"],
        "interfaceName": "caliabcdef01234",
        "mac": reply.document["interfaces"][1]["mac"],
    }


def test_a_repeated_add_gives_the_same_and_repairs(any_node: Node, pod_ns):
    first = any_node.call("ADD", "c1", pod_ns.path, **DUAL)
    pod_ns.do("route", "del", "default")
    any_node.host.do("route", "del", addresses(first)[0])
    again = any_node.call("ADD", "c1", pod_ns.path, **DUAL)
    assert again.document == first.document
    assert len(any_node.endpoints()) == 1 and len(any_node.taken()) == 2
    assert any_node.call("CHECK", "c1", pod_ns.path, prevResult=again.document, **DUAL).ok
    any_node.call("DEL", "c1", pod_ns.path)
    assert not any_node.leftovers()


def test_del_without_namespace_and_repeated(any_node: Node, pod_ns):
    any_node.call("ADD", "c1", pod_ns.path)
    assert any_node.call("DEL", "c1", "").ok
    assert not any_node.leftovers()
    for netns in ("", "/var/run/netns/never-was", pod_ns.path):
        assert any_node.call("DEL", "c1", netns).ok
    assert any_node.call("DEL", "never-added", "", nodename=None, nodename_file=str(any_node.root / "none")).ok


def test_in_process_and_executed_ipam_agree(any_node: Node, pod_ns):
    ours = any_node.call("ADD", "c1", pod_ns.path, plugin="calico-ipam", **DUAL)
    both = any_node.call("ADD", "c1", pod_ns.path, **DUAL)
    assert [a.split("/")[0] for a in addresses(ours)] == [a.split("/")[0] for a in addresses(both)]
    assert ours.document["routes"] == both.document["routes"]
    assert any_node.call("DEL", "c1", pod_ns.path).ok
    assert not any_node.leftovers()


def test_an_address_asked_for(any_node: Node, pod_ns, make_pod_ns):
    reply = any_node.call("ADD", "c1", pod_ns.path, args="IP=10.65.200.7")
    assert addresses(reply) == ["10.65.200.7/32"] and reply.document["routes"] == [{"dst": "10.65.200.7/32"}]
    taken = any_node.call("ADD", "c2", make_pod_ns().path, args="IP=10.65.200.7")
    assert not taken.ok and "Address already assigned in block" in taken.document["msg"]
    outside = any_node.call("ADD", "c3", make_pod_ns().path, args="IP=192.168.1.1")
    assert not outside.ok and "The provided IP address is not in a configured pool" in outside.document["msg"]
    assert any_node.call("DEL", "c1", pod_ns.path).ok
    assert not any_node.leftovers()


def test_interface_names_that_collide(any_node: Node, make_pod_ns):
    """Container IDs with the same first 11 characters, as cnitool makes them."""
    one, two = make_pod_ns(), make_pod_ns()
    first = any_node.call("ADD", "cnitool-abc111", one.path)
    second = any_node.call("ADD", "cnitool-abc222", two.path)
    names = [reply.document["interfaces"][0]["name"] for reply in (first, second)]
    assert names[0] == "calicnitool-abc" and names[1] != names[0] and names[1].startswith("cali")
    assert ping(one, addresses(second)[0].split("/")[0])
    assert any_node.call("DEL", "cnitool-abc111", one.path).ok
    assert any_node.host.link(names[1]) is not None
    assert any_node.call("DEL", "cnitool-abc222", "").ok
    assert not any_node.leftovers()


def test_two_interfaces_of_one_container(any_node: Node, pod_ns):
    first = any_node.call("ADD", "c1", pod_ns.path)
    # both of one family would want one default route
    second = any_node.call("ADD", "c1", pod_ns.path, ifname="eth1", **V6)
    assert first.ok and not set(addresses(first)) & set(addresses(second)), second
    assert any_node.call("DEL", "c1", pod_ns.path, ifname="eth1").ok
    assert pod_ns.addresses("eth0") == set(addresses(first)) and len(any_node.taken()) == 1
    assert any_node.call("DEL", "c1", pod_ns.path).ok
    assert not any_node.leftovers()


def test_a_second_network_joins_the_endpoint(any_node: Node, pod_ns):
    first = any_node.call("ADD", "c1", pod_ns.path)
    second = any_node.call("ADD", "c1", pod_ns.path, name="net2")
    assert addresses(second) == addresses(first)
    (endpoint,) = any_node.endpoints()
    assert endpoint["spec"]["profiles"] == ["calnet", "net2"] and len(any_node.taken()) == 1
    assert any_node.call("DEL", "c1", pod_ns.path).ok
    assert not any_node.leftovers()


@pytest.mark.parametrize(
    ("netns", "changes", "code", "text"),
    [
        ("/var/run/netns/never-was", {}, 121, "never-was"),
        ("/etc/hostname", {}, 121, "/etc/hostname"),
        ("/tmp", {}, 121, "/tmp"),
        (None, {"ipam": {}}, 7, "ipam.type"),
        (None, {"ipam": {"type": "calico-ipam", "ipv4_pools": ["nope"]}}, None, 'error parsing pool "nope"'),
        (
            None,
            {"ipam": {"type": "calico-ipam", "ipv4_pools": ["10.99.0.0/16"]}},
            None,
            "the given pool (10.99.0.0/16)",
        ),
        (None, {"ipam": {"type": "no-such-ipam"}}, 131, 'failed to find plugin "no-such-ipam"'),
        (
            None,
            {"nodename": None, "nodename_file": "/none/such"},
            130,
            "check that the calico/node container is running",
        ),
    ],
)
def test_bad_requests_take_nothing(any_node: Node, pod_ns, netns, changes, code, text):
    reply = any_node.call("ADD", "c1", netns or pod_ns.path, **changes)
    assert not reply.ok and text in reply.document["msg"], reply
    assert code is None or reply.document["code"] == code
    assert not any_node.leftovers() and pod_ns.link("eth0") is None


def test_not_ready(any_node: Node, pod_ns):
    any_node.apply("ClusterInformation", "default", {"datastoreReady": False})
    reply = any_node.call("ADD", "c1", pod_ns.path)
    assert not reply.ok and "Calico is currently not ready to process requests" in reply.document["msg"]
    assert not any_node.leftovers()


def test_a_full_pool(any_node: Node, make_pod_ns):
    any_node.apply("IPPool", "tiny", {"cidr": "10.77.0.0/30", "blockSize": 30})
    ipam = {"ipam": {"type": "calico-ipam", "ipv4_pools": ["tiny"]}}
    pods = [make_pod_ns() for _ in range(5)]
    replies = [any_node.call("ADD", f"c{i}", pod.path, **ipam) for i, pod in enumerate(pods)]
    assert [reply.ok for reply in replies] == [True] * 4 + [False]
    assert replies[4].document["msg"] == (
        "failed to request IPv4 addresses: Assigned 0 out of 1 requested IPv4 addresses; "
        "No IPs available in pools: [10.77.0.0/30]"
    )
    assert len(any_node.taken()) == 4 and pods[4].link("eth0") is None
    for i, pod in enumerate(pods):
        assert any_node.call("DEL", f"c{i}", pod.path).ok
    assert not any_node.leftovers()


def test_an_interface_of_somebody_else_in_the_pod(any_node: Node, pod_ns):
    pod_ns.do("link", "add", "eth0", "type", "bridge")
    reply = any_node.call("ADD", "c1", pod_ns.path)
    assert not reply.ok and reply.document["code"] == 122
    assert not any_node.leftovers() and pod_ns.link("eth0") is not None


def test_the_hosts_own_namespace_is_refused(any_node: Node):
    reply = any_node.call("ADD", "c1", any_node.host.path)
    assert not reply.ok and not any_node.leftovers()
