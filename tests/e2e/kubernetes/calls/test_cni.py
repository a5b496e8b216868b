"""CNI calls for pods of a real API server: with the Kubernetes datastore, and with another one under Kubernetes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.kubernetes.node import POD_PREFIX, KubeNode
from tests.e2e.kubernetes.pods import C1, C2, endpoint, ips, pod
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]


# -- the ordinary life of a pod ---------------------------------------------------------------------------------------


def test_a_pods_life(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(
        any_kube_node,
        labels={"app": "web"},
        generateName="web-",
        spec={
            "serviceAccountName": "web-sa",
            "containers": [
                {"name": "c", "image": "i", "ports": [{"name": "http", "containerPort": 80, "hostPort": 8080}]}
            ],
        },
    )
    added = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    [address] = ips(added)
    assert address.endswith("/32") and pod_ns.addresses("eth0") == {address}
    assert added.document["interfaces"][0]["name"] == "calie71244c6ddd"
    found = endpoint(any_kube_node)
    assert found["metadata"]["labels"] == {
        "app": "web",
        "projectcalico.org/namespace": "space",
        "projectcalico.org/orchestrator": "k8s",
        "projectcalico.org/serviceaccount": "web-sa",
    }
    assert found["metadata"]["generateName"] == "web-"
    spec = found["spec"]
    assert spec["profiles"] == ["kns.space", "ksa.space.web-sa"] and spec["serviceAccountName"] == "web-sa"
    assert spec["ports"] == [{"name": "http", "protocol": "TCP", "port": 80, "hostPort": 8080}]
    assert (spec["containerID"], spec["ipNetworks"], spec["pod"]) == (C1, [address], "web-0")
    if any_kube_node.datastore.type == "kubernetes":
        assert any_kube_node.annotations("web-0") == {"podIP": address, "podIPs": address, "containerID": C1}
    [block] = [d for p, d in any_kube_node.dump().items() if "/block/" in p and "allocations" in d]
    assert (
        block["attributes"][0]["secondary"].items() >= {"namespace": "space", "pod": "web-0", "node": "node1"}.items()
    )
    assert ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)) == [address]
    assert any_kube_node.pod_call("CHECK", "web-0", C1, pod_ns.path, prevResult=added.document).ok
    for _ in range(3):
        assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert any_kube_node.leftovers() == {}
    if any_kube_node.datastore.type == "kubernetes":
        assert any_kube_node.annotations("web-0") == {"podIP": "", "podIPs": "", "containerID": C1}


def test_del_of_a_pod_that_is_gone(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node)
    assert any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path).ok
    any_kube_node.kube.delete_pod(any_kube_node.kube.read_pod(any_kube_node.namespace, "web-0"))
    for _ in range(2):
        assert any_kube_node.pod_call("DEL", "web-0", C1, uid="").ok
    if any_kube_node.datastore.type == "kubernetes":
        assert any_kube_node.leftovers() == {}
    assert any_kube_node.taken() == {}


def test_a_pod_made_anew_with_the_same_name(any_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """A StatefulSet's: the late DEL of the old one leaves the new one's endpoint and interface alone."""
    old_ns, new_ns = make_pod_ns(), make_pod_ns()
    pod(any_kube_node)
    [old] = ips(any_kube_node.pod_call("ADD", "web-0", C1, old_ns.path))
    uid = any_kube_node.kube.read_pod(any_kube_node.namespace, "web-0")["metadata"]["uid"]
    any_kube_node.kube.delete_pod(any_kube_node.kube.read_pod(any_kube_node.namespace, "web-0"))
    pod(any_kube_node)
    late = any_kube_node.pod_call("ADD", "web-0", C1, old_ns.path, uid=uid)
    assert late.document["code"] == 11 and "has been replaced by another pod of its name" in late.document["msg"]
    [new] = ips(any_kube_node.pod_call("ADD", "web-0", C2, new_ns.path))
    assert new != old
    assert any_kube_node.pod_call("DEL", "web-0", C1, old_ns.path, uid=uid).ok
    assert set(any_kube_node.taken()) == {new.removesuffix("/32")}
    assert endpoint(any_kube_node)["spec"]["containerID"] == C2
    assert any_kube_node.host.link("calie71244c6ddd") is not None and new_ns.addresses("eth0") == {new}
    assert any_kube_node.pod_call("DEL", "web-0", C2, new_ns.path).ok
    assert any_kube_node.leftovers() == {}


def test_a_pod_that_does_not_exist(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    reply = any_kube_node.pod_call("ADD", "none", C1, pod_ns.path)
    assert reply.document["code"] == 11 and "pod space/none: it does not exist in Kubernetes" in reply.document["msg"]
    assert any_kube_node.leftovers() == {}


def test_a_static_pod_is_known_by_its_mirror(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    any_kube_node.kube.create_pod(
        any_kube_node.namespace, "web-0", "node1", annotations={"kubernetes.io/config.mirror": "static-uid"}
    )
    assert any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, uid="static-uid").ok


# -- annotations ------------------------------------------------------------------------------------------------------


def test_families_and_pools_of_pod_and_namespace(any_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    any_kube_node.apply("IPPool", "other4", {"cidr": "10.66.0.0/24", "blockSize": 28, "nodeSelector": "!all()"})
    ask = {"ipv4pools": ["other4"], "ipFamilies": ["IPv4", "IPv6"]}
    annotations = {POD_PREFIX + k: json.dumps(v) for k, v in ask.items()}
    any_kube_node.namespace = "asking"
    any_kube_node.kube.ensure_namespace("asking", annotations=annotations)
    pod(any_kube_node, "by-namespace")
    first, second = ips(any_kube_node.pod_call("ADD", "by-namespace", C1, make_pod_ns().path))
    assert first.startswith("10.66.0.") and second.startswith("fd00:65::")
    pod(any_kube_node, "by-pod", ask={"ipv4pools": ["10.65.0.0/16"], "ipFamilies": ["IPv4"]})
    [address] = ips(any_kube_node.pod_call("ADD", "by-pod", C2, make_pod_ns().path))
    assert address.startswith("10.65.")


def test_pools_that_select_namespaces(any_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    any_kube_node.apply(
        "IPPool", "pool4", {"cidr": "10.65.0.0/16", "blockSize": 26, "namespaceSelector": "team == 'a'"}
    )
    any_kube_node.kube.ensure_namespace("team-a", labels={"team": "a"})
    pod(any_kube_node)
    refused = any_kube_node.pod_call("ADD", "web-0", C1, make_pod_ns().path)
    assert "no configured Calico pools for node node1" in refused.document["msg"]
    any_kube_node.namespace = "team-a"
    pod(any_kube_node)
    assert ips(any_kube_node.pod_call("ADD", "web-0", C1, make_pod_ns().path))
    # without policy the namespace's labels still count, the pod's annotations do not
    pod(any_kube_node, "other", ask={"ipAddrs": "nonsense"})
    assert ips(any_kube_node.pod_call("ADD", "other", C2, make_pod_ns().path, policy={}))


def test_addresses_asked_for(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node, ask={"ipAddrs": ["10.65.7.7", "fd00:65::77"]})
    reply = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert ips(reply) == ["10.65.7.7/32", "fd00:65::77/128"] and not reply.document.get("routes")
    assert {r["dst"] for r in any_kube_node.host.routes(4) if "dev" in r and r["dev"].startswith("cali")} == {
        "10.65.7.7"
    }
    assert ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)) == ["10.65.7.7/32", "fd00:65::77/128"]
    pod(any_kube_node, "thief", ask={"ipAddrs": ["10.65.7.7"]})
    taken = any_kube_node.pod_call("ADD", "thief", C2, pod_ns.path, ifname="eth1")
    assert "Address already assigned in block" in taken.document["msg"]
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert any_kube_node.leftovers() == {}


def test_addresses_past_ipam(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node, ask={"ipAddrsNoIpam": ["172.20.0.9"]})
    refused = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert refused.document["msg"] == "requested feature is not enabled: ip_addrs_no_ipam"
    features = {"ip_addrs_no_ipam": True}
    assert ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, feature_control=features)) == ["172.20.0.9/32"]
    assert any_kube_node.taken() == {} and endpoint(any_kube_node)["spec"]["ipNetworks"] == ["172.20.0.9/32"]
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, feature_control=features).ok
    assert any_kube_node.leftovers() == {}


def test_an_address_past_ipam_takes_nobodys_route(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node, ask={"ipAddrsNoIpam": ["172.20.0.9"]})
    any_kube_node.host.do("route", "add", "172.20.0.9", "dev", "uplink")
    reply = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, feature_control={"ip_addrs_no_ipam": True})
    assert reply.document["code"] == 123 and "it exists through uplink" in reply.document["msg"], reply
    assert [r["dev"] for r in any_kube_node.host.routes(4) if r["dst"] == "172.20.0.9"] == ["uplink"]
    assert any_kube_node.leftovers() == {} and pod_ns.link("eth0") is None


def test_mac_floating_addresses_and_source_prefixes(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    ask = {
        "hwAddr": "1e:2f:3a:4b:5c:6d",
        "floatingIPs": ["1.2.3.4", "fd00::9"],
        "allowedSourcePrefixes": ["8.8.8.8/32"],
    }
    pod(any_kube_node, ask=ask)
    assert "not enabled: floating_ips" in any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path).document["msg"]
    features = {"feature_control": {"floating_ips": True}}
    reply = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, **features)
    [address] = ips(reply)
    assert reply.document["interfaces"][1]["mac"] == "1e:2f:3a:4b:5c:6d" == pod_ns.link("eth0")["address"]
    spec = endpoint(any_kube_node)["spec"]
    assert spec["ipNATs"] == [{"internalIP": address.removesuffix("/32"), "externalIP": "1.2.3.4"}]
    assert spec["allowSpoofedSourcePrefixes"] == ["8.8.8.8/32"]
    # with both families each has its own, not just the one that the pod got an address of
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, **features).ok
    dual = {"ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"}, **features}
    inside = [
        address.partition("/")[0] for address in ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, **dual))
    ]
    assert endpoint(any_kube_node)["spec"]["ipNATs"] == [
        {"internalIP": internal, "externalIP": external}
        for internal, external in zip(inside, ("1.2.3.4", "fd00::9"), strict=True)
    ]
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, **dual).ok
    assert any_kube_node.leftovers() == {}


MALFORMED = {
    "ipv4pools": "pool4",
    "ipv6pools": '["10.0.0.0/8"]',
    "ipFamilies": '["IPv5"]',
    "ipAddrs": '["10.65.0.300"]',
    "floatingIPs": '["1.2.3.4/64"]',
    "hwAddr": "xx:xx",
    "allowedSourcePrefixes": '["8.8.8.8"]',
}


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_a_malformed_annotation_takes_nothing(name: str, any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node, ask={name: MALFORMED[name]})
    reply = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, feature_control={"floating_ips": True})
    assert reply.document["code"] == 108
    assert f"annotation cni.projectcalico.org/{name} of pod space/web-0: " in reply.document["msg"]
    assert repr(MALFORMED[name]) in reply.document["msg"]
    assert any_kube_node.leftovers() == {} and any_kube_node.affinities() == {}
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok


# -- host-local -------------------------------------------------------------------------------------------------------


@pytest.mark.cnitool
def test_host_local_takes_the_nodes_pod_cidr(any_kube_node: KubeNode, pod_ns: Namespace, tmp_path: Path) -> None:
    from tests.conftest import LAB_CACHE

    ipam = {
        "type": "host-local",
        "dataDir": str(tmp_path / "leases"),
        "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]],
    }
    any_kube_node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    pod(any_kube_node)
    first, second = ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, ipam=ipam))
    assert first.startswith("10.244.1.") and second.startswith("fd44:1::")
    assert any_kube_node.taken() == {} and endpoint(any_kube_node)["spec"]["ipNetworks"] == [first, second]
    leases = [p.name for p in (tmp_path / "leases").rglob("*") if p.name[:1].isdigit() or p.name.startswith("fd44")]
    assert len(leases) == 2
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, ipam=ipam).ok
    assert not [p for p in (tmp_path / "leases").rglob("*") if p.name in leases]
    assert any_kube_node.leftovers() == {}


@pytest.mark.cnitool
def test_routes_of_host_local_and_a_family_without_pod_cidr(
    any_kube_node: KubeNode, pod_ns: Namespace, tmp_path: Path
) -> None:
    """Its routes take the place of the default ones, unless those are wanted too; a node may have one family only."""
    from tests.conftest import LAB_CACHE

    any_kube_node.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    pod(any_kube_node)
    ipam = {
        "type": "host-local",
        "dataDir": str(tmp_path / "leases"),
        "subnet": "usePodCidrIPv6",
        "routes": [{"dst": "fd00:aa::/64"}],
    }
    gateway = "fe80::ecee:eeff:feee:eeee"
    for changes, wanted in (({}, {"fd00:aa::/64"}), ({"include_default_routes": True}, {"fd00:aa::/64", "default"})):
        reply = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, ipam=ipam, **changes)
        [address] = ips(reply)
        assert address.startswith("fd44:1::") and endpoint(any_kube_node)["spec"]["ipNetworks"] == [address]
        assert {route["dst"] for route in pod_ns.routes(6) if route.get("gateway") == gateway} == wanted
        assert any_kube_node.pod_call(
            "CHECK", "web-0", C1, pod_ns.path, prevResult=reply.document, ipam=ipam, **changes
        ).ok
        assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, ipam=ipam, **changes).ok
        assert any_kube_node.leftovers() == {}
    any_kube_node.kube.create_node("single", spec={"podCIDR": "10.244.2.0/24", "podCIDRs": ["10.244.2.0/24"]})
    both = {"type": "host-local", "dataDir": str(tmp_path / "leases")}
    both["ranges"] = [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]]
    refused = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, ipam=both, nodename="single")
    assert refused.document["code"] == 7
    assert "cannot use usePodCidrIPv6: node single has no IPv6 podCIDR" in refused.document["msg"]
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, ipam=both, nodename="single").ok
    assert not [path for path in (tmp_path / "leases").rglob("*") if path.name[:2] in ("10", "fd")]
    assert any_kube_node.leftovers() == {}


# -- an API server that is gone ---------------------------------------------------------------------------------------


def test_without_the_api_server(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node)
    uid = any_kube_node.kube.read_pod(any_kube_node.namespace, "web-0")["metadata"]["uid"]
    assert any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path).ok
    any_kube_node.relay.close()
    # of a pod that is not the one remembered, or a server could do without
    failed = any_kube_node.pod_call("ADD", "web-0", C2, pod_ns.path, ifname="eth1", uid="another")
    assert not failed.ok and "no connection to 127.0.0.1" in failed.document["msg"]
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, uid=uid).ok
    assert pod_ns.link("eth0") is None
    any_kube_node.relay.open()
    if any_kube_node.datastore.type == "kubernetes":
        assert any_kube_node.intents()
        pod(any_kube_node, "next")
        assert any_kube_node.pod_call("ADD", "next", C2, pod_ns.path).ok
        assert any_kube_node.pod_call("DEL", "next", C2, pod_ns.path).ok
    assert any_kube_node.leftovers() == {}


def test_another_beginning_of_interface_names(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    any_kube_node.environ["FELIX_INTERFACEPREFIX"] = "pod,cali"
    pod(any_kube_node)
    added = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)
    assert added.document["interfaces"][0]["name"] == "pode71244c6ddd"
    assert ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path)) == ips(added)
    assert any_kube_node.pod_call("CHECK", "web-0", C1, pod_ns.path, prevResult=added.document).ok
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert any_kube_node.host.link("pode71244c6ddd") is None and any_kube_node.taken() == {}
