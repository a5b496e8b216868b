"""What pods of Kubernetes may ask for and what may happen to them, as a table on real objects: good and malformed.

One node, the pods of a real API server; the records are there too, or in another datastore under Kubernetes. Whatever
is refused takes nothing, whatever is given is given back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cni_calico.model.qos import BOUNDS
from tests.conftest import LAB_CACHE
from tests.e2e.calls.test_settings import gate
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import POD_PREFIX, KubeNode, node_on
from tests.e2e.kubernetes.pods import C1, C2, endpoint, ips, pod
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.kubernetes, pytest.mark.netns]

MAC = "02:00:00:00:00:11"
QOS = "qos.projectcalico.org/"
DUAL = {"type": "calico-ipam", "assign_ipv6": "true"}
V6 = {"type": "calico-ipam", "assign_ipv4": "false", "assign_ipv6": "true"}


@dataclass(frozen=True)
class Case:
    """``ask`` are annotations of the pod, ``above`` of its namespace, without their prefix; ``conf`` changes the
    configuration. ``given`` are beginnings of the addresses, ``refused`` a part of the error and ``code`` its code.
    """

    ask: dict[str, Any] = field(default_factory=dict)
    above: dict[str, Any] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    refused: str = ""
    code: int = 0


FEATURES = {"feature_control": {"ip_addrs_no_ipam": True, "floating_ips": True}}
CASES = {
    # families
    "as the configuration says": Case(given=("10.65.",)),
    "both, by the configuration": Case(conf={"ipam": DUAL}, given=("10.65.", "fd00:65:")),
    "only IPv6, by the configuration": Case(conf={"ipam": V6}, given=("fd00:65:",)),
    "only IPv6, by the pod": Case({"ipFamilies": ["IPv6"]}, conf={"ipam": DUAL}, given=("fd00:65:",)),
    "the pod's families over the namespace's": Case(
        {"ipFamilies": ["IPv4"]}, {"ipFamilies": ["IPv6"]}, given=("10.65.",)
    ),
    "the namespace's families": Case(above={"ipFamilies": ["IPv6"]}, given=("fd00:65:",)),
    "families that are none": Case({"ipFamilies": ["IPv4", 6]}, refused="ipFamilies of pod", code=108),
    # pools
    "a pool by name": Case({"ipv4pools": ["side4"]}, given=("10.70.",)),
    "a pool by CIDR": Case({"ipv4pools": ["10.70.0.0/24"]}, given=("10.70.",)),
    "the pod's pools over the namespace's": Case({"ipv4pools": ["side4"]}, {"ipv4pools": ["pool4"]}, given=("10.70.",)),
    "the namespace's pools": Case(above={"ipv4pools": ["side4"]}, given=("10.70.",)),
    "a malformed namespace that does not count": Case({"ipv4pools": ["side4"]}, {"ipv4pools": "x"}, given=("10.70.",)),
    "a malformed namespace": Case(above={"ipv4pools": "x"}, refused="ipv4pools of namespace", code=108),
    "a malformed list of families in the namespace": Case(
        above={"ipFamilies": "IPv4"}, refused="of namespace", code=108
    ),
    "an unknown pool": Case({"ipv4pools": ["nowhere"]}, refused='error parsing pool "nowhere"', code=112),
    "an unknown CIDR": Case({"ipv4pools": ["10.99.0.0/16"]}, refused="(10.99.0.0/16) does not exist, or", code=112),
    "an IPv6 pool by name": Case({"ipv6pools": ["side6"]}, conf={"ipam": V6}, given=("fd00:70:",)),
    "the pod's IPv6 pools, by CIDR, over the namespace's": Case(
        {"ipv6pools": ["fd00:70::/112"]}, {"ipv6pools": ["pool6"]}, conf={"ipam": V6}, given=("fd00:70:",)
    ),
    "the namespace's IPv6 pools, beside the pod's IPv4 ones": Case(
        {"ipv4pools": ["side4"]}, {"ipv6pools": ["side6"]}, conf={"ipam": DUAL}, given=("10.70.", "fd00:70:")
    ),
    "a malformed namespace's IPv6 pools": Case(
        above={"ipv6pools": '["side6"'}, conf={"ipam": V6}, refused="ipv6pools of namespace", code=108
    ),
    "an unknown IPv6 CIDR": Case(
        {"ipv6pools": ["fd00:99::/112"]}, conf={"ipam": V6}, refused="(fd00:99::/112) does not exist, or", code=112
    ),
    "a pool of the other family": Case({"ipv4pools": ["fd00:65::/112"]}, refused="expected IPv4 pools", code=108),
    # addresses
    "an address": Case({"ipAddrs": ["10.65.9.9"]}, given=("10.65.9.9/32",)),
    "an address of each family": Case({"ipAddrs": ["fd00:65::9", "10.65.9.9"]}, given=("fd00:65::9", "10.65.9.9")),
    "two of one family": Case({"ipAddrs": ["10.65.9.9", "10.65.9.10"]}, refused="one IPv4 address, one", code=108),
    "an address outside of the pools": Case(
        {"ipAddrs": ["172.20.0.1"]}, refused="The provided IP address is not in a configured pool", code=115
    ),
    "past IPAM": Case({"ipAddrsNoIpam": ["172.20.0.9"]}, conf=FEATURES, given=("172.20.0.9/32",)),
    "past IPAM, malformed": Case({"ipAddrsNoIpam": "172.20.0.9"}, conf=FEATURES, refused="ipAddrsNoIpam", code=108),
    "past IPAM, where that is off": Case(
        {"ipAddrsNoIpam": ["172.20.0.9"]}, refused="requested feature is not enabled: ip_addrs_no_ipam", code=109
    ),
    "through and past IPAM": Case(
        {"ipAddrs": ["10.65.9.9"], "ipAddrsNoIpam": ["10.65.9.9"]},
        conf=FEATURES,
        refused="can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
        code=108,
    ),
    "an address of another IPAM's": Case(
        {"ipAddrs": ["10.65.9.9"]},
        conf={"ipam": {"type": "host-local", "subnet": "usePodCidr"}},
        refused="not compatible with configured IPAM: host-local",
        code=108,
    ),
    # the rest
    "a MAC with dashes": Case({"hwAddr": "02-00-00-00-00-09"}, given=("10.65.",)),
    "a MAC that is none": Case({"hwAddr": "02:00:00:00:00"}, refused="hwAddr of pod", code=108),
    "a floating address": Case({"floatingIPs": ["192.0.2.7"]}, conf=FEATURES, given=("10.65.",)),
    "a floating address with a mask": Case({"floatingIPs": ["192.0.2.7/24"]}, conf=FEATURES, refused="IPs", code=108),
    "a floating address, where that is off": Case(
        {"floatingIPs": ["192.0.2.7"]}, refused="requested feature is not enabled: floating_ips", code=109
    ),
    "source prefixes": Case({"allowedSourcePrefixes": ["192.0.2.0/24", "2001:db8::/32"]}, given=("10.65.",)),
    "source prefixes that are addresses": Case({"allowedSourcePrefixes": ["192.0.2.1"]}, refused="CIDR", code=108),
    "empty annotations": Case({"ipAddrs": "", "hwAddr": "", "floatingIPs": ""}, given=("10.65.",)),
    "nothing is read without policy": Case({"ipAddrs": "x", "hwAddr": "x"}, conf={"policy": {}}, given=("10.65.",)),
    "no podCIDR of that family": Case(
        conf={"nodename": "bare", "ipam": {"type": "host-local", "subnet": "UsePodCIDR"}},
        refused="cannot use UsePodCIDR: node bare has no IPv4 podCIDR",
        code=7,
    ),
}


SLOWER = ("local", "kubernetes served", "etcd", "etcd served")


@pytest.fixture(params=["kubernetes", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SLOWER)])
def asked(request: pytest.FixtureRequest, kube: Cluster, host_ns: Namespace, tmp_path: Path) -> Iterator[KubeNode]:
    """The node of the table."""
    with node_on(request.param, kube, host_ns, tmp_path) as made:
        yield made


def annotations(ask: dict[str, Any]) -> dict[str, str]:
    return {POD_PREFIX + name: value if isinstance(value, str) else json.dumps(value) for name, value in ask.items()}


@pytest.mark.slow_on("an IPv6 pool by name", "an unknown IPv6 CIDR")  # as IPv4's
@pytest.mark.parametrize("name", CASES)
def test_what_a_pod_asks_for(name: str, asked: KubeNode, pod_ns: Namespace) -> None:
    case = CASES[name]
    asked.apply("IPPool", "side4", {"cidr": "10.70.0.0/24", "blockSize": 28, "nodeSelector": "!all()"})
    asked.apply("IPPool", "side6", {"cidr": "fd00:70::/112", "blockSize": 124, "nodeSelector": "!all()"})
    if case.above:
        asked.namespace = "asking-" + str(list(CASES).index(name))
        asked.kube.ensure_namespace(asked.namespace, annotations=annotations(case.above))
    if case.conf.get("nodename"):
        asked.kube.create_node(case.conf["nodename"])
    asked.kube.create_pod(
        asked.namespace, "web-0", case.conf.get("nodename", "node1"), annotations=annotations(case.ask)
    )
    conf = dict(case.conf)
    if conf.get("ipam", {}).get("type") == "host-local":
        asked.environ["CNI_PATH"] = str(LAB_CACHE / "cni" / "bin")
    reply = asked.pod_call("ADD", "web-0", C1, pod_ns.path, **conf)
    if case.refused:
        assert not reply.ok and case.refused in reply.document["msg"], reply.document
        assert reply.document["code"] == case.code
        assert asked.leftovers() == {} and asked.taken() == {}
        assert pod_ns.link("eth0") is None
        assert asked.pod_call("DEL", "web-0", C1, pod_ns.path, **conf).ok
        return
    found = ips(reply)
    assert len(found) == len(case.given)
    assert all(address.startswith(start) for address, start in zip(found, case.given, strict=True)), found
    assert pod_ns.addresses("eth0") == set(found) and endpoint(asked)["spec"]["ipNetworks"] == found
    assert ips(asked.pod_call("ADD", "web-0", C1, pod_ns.path, **conf)) == found
    assert asked.pod_call("CHECK", "web-0", C1, pod_ns.path, prevResult=reply.document, **conf).ok
    assert asked.pod_call("DEL", "web-0", C1, pod_ns.path, **conf).ok
    assert asked.leftovers() == {}


# -- quality of service -----------------------------------------------------------------------------------------------


QOS_NAMES = {
    "dscp",
    *(
        way + name
        for way in ("ingress", "egress")
        for name in ["Bandwidth", "Burst", "Peakrate", "Minburst", "PacketRate", "PacketBurst", "MaxConnections"]
    ),
}


def test_quality_of_service_is_accepted_and_stored(any_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Every name; what means nothing is left out and told, as upstream does, and what is too much counts as the most
    there is: the pod gets its network.
    """
    assert set(BOUNDS) == QOS_NAMES
    good = dict.fromkeys(QOS_NAMES, "20k") | {"ingressBandwidth": "1M", "egressMinburst": "2Ki", "dscp": "46"}
    good |= {"egressPeakrate": "30.5k", "ingressPeakrate": "1.5M"}
    bad = dict.fromkeys(QOS_NAMES, "a few") | {"ingressBandwidth": "0", "egressPacketRate": "1K", "dscp": "99"}
    bad |= {"egressBurst": "-5k", "ingressBurst": "1_000", "ingressColour": "1000"}
    bad |= {"egressBandwidth": "", "ingressPacketRate": "NaN", "ingressMaxConnections": '["1k", "2k"]'}
    good |= {"ingressMaxConnections": "1" + "0" * 30, "egressMaxConnections": "9" * 100_000}
    wanted = dict.fromkeys(QOS_NAMES, 20000) | {"ingressBandwidth": 1000000, "egressMinburst": 2048, "dscp": 46}
    wanted |= {"egressPeakrate": 30500, "ingressPeakrate": 1500000}
    wanted |= dict.fromkeys(("ingressMaxConnections", "egressMaxConnections"), BOUNDS["ingressMaxConnections"][1])
    for name, asked, container in (("good", good, C1), ("bad", bad, C2)):
        annotated = {QOS + key: value for key, value in asked.items()}
        any_kube_node.kube.create_pod(any_kube_node.namespace, name, any_kube_node.nodename, annotations=annotated)
        assert any_kube_node.pod_call("ADD", name, container, make_pod_ns().path).ok
        if any_kube_node.datastore.type == "kubernetes":
            stored = any_kube_node.kube.read_pod(any_kube_node.namespace, name)["metadata"]["annotations"]
            assert annotated.items() <= stored.items()
    controls = {found["spec"]["pod"]: found["spec"].get("qosControls") or {} for found in any_kube_node.endpoints()}
    assert controls == {"good": wanted, "bad": {}}
    log = (any_kube_node.root / "cni.log").read_text()
    assert log.count(f"annotation {QOS}") == len(bad) + 2
    assert log.count("it counts as 4294967295") == 2 and len(max(log.splitlines(), key=len)) < 2000
    for name, value in bad.items():
        if name == "ingressColour":
            assert f"annotation {QOS}{name} is not one that pods have" in log
            continue
        expected = "a number from 0 to 63" if name == "dscp" else "a quantity from {} to {}".format(*BOUNDS[name])
        assert f"annotation {QOS}{name}: expected {expected}" in log and f"got {value!r}; it is left out" in log
    for name, container in (("good", C1), ("bad", C2)):
        assert any_kube_node.pod_call("DEL", name, container).ok
    assert any_kube_node.leftovers() == {}


# -- containers of one pod --------------------------------------------------------------------------------------------


def test_the_late_del_of_a_pods_earlier_sandbox(any_kube_node: KubeNode, make_pod_ns: MakeNamespace) -> None:
    """Same pod, same UID: the endpoint is cleared only by the container it is recorded for."""
    old_ns, new_ns = make_pod_ns(), make_pod_ns()
    pod(any_kube_node)
    [old] = ips(any_kube_node.pod_call("ADD", "web-0", C1, old_ns.path))
    [new] = ips(any_kube_node.pod_call("ADD", "web-0", C2, new_ns.path))
    assert new != old and endpoint(any_kube_node)["spec"]["containerID"] == C2
    for _ in range(2):
        assert any_kube_node.pod_call("DEL", "web-0", C1, old_ns.path).ok
        assert endpoint(any_kube_node)["spec"]["containerID"] == C2 and set(any_kube_node.taken()) == {
            new.removesuffix("/32")
        }
        assert new_ns.addresses("eth0") == {new} and any_kube_node.host.link("calie71244c6ddd") is not None
    stranger = "dd" * 32
    assert any_kube_node.pod_call("DEL", "web-0", stranger).ok
    assert endpoint(any_kube_node)["spec"]["containerID"] == C2 and new_ns.addresses("eth0") == {new}
    assert any_kube_node.pod_call("DEL", "web-0", C2, new_ns.path).ok
    assert any_kube_node.leftovers() == {}


def test_a_runtime_that_names_no_uid(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    pod(any_kube_node)
    [address] = ips(any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, uid=""))
    assert endpoint(any_kube_node)["spec"]["ipNetworks"] == [address]
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, uid="").ok
    assert any_kube_node.leftovers() == {}


def test_a_pod_that_ran_to_its_end(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    """It has its DEL too; its addresses are not its own any more even before that."""
    pod(any_kube_node)
    assert any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path).ok
    path = f"/api/v1/namespaces/{any_kube_node.namespace}/pods/web-0/status"
    any_kube_node.kube.request(
        "PATCH", path, {"status": {"phase": "Succeeded"}}, content_type="application/merge-patch+json"
    )
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert any_kube_node.leftovers() == {}
    if any_kube_node.datastore.type == "kubernetes":
        assert any_kube_node.annotations("web-0") == {"podIP": "", "podIPs": "", "containerID": C1}


def test_a_namespace_that_does_not_exist(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    args = "K8S_POD_NAMESPACE=nowhere;K8S_POD_NAME=web-0;K8S_POD_UID=1"
    reply = any_kube_node.call("ADD", C1, pod_ns.path, args=args)
    assert (
        reply.document["code"] == 11 and "pod nowhere/web-0: it does not exist in Kubernetes" in reply.document["msg"]
    )
    assert any_kube_node.call("DEL", C1, pod_ns.path, args=args).ok
    assert any_kube_node.leftovers() == {}


# -- waiting ----------------------------------------------------------------------------------------------------------


def test_policy_of_a_pod_is_waited_for(any_kube_node: KubeNode, pod_ns: Namespace) -> None:
    waiting = {"policy_setup_timeout_seconds": 1, "endpoint_status_dir": str(any_kube_node.root / "status")}
    pod(any_kube_node)
    assert any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, **waiting).ok
    late = "policy of calnet/" + C1[:12] + "/eth0 is not known to be in force after 1 s"
    assert (any_kube_node.root / "cni.log").read_text().count(late) == 1
    (any_kube_node.root / "status").mkdir()
    (any_kube_node.root / "status" / "k8s space%2Fweb-0 eth0").write_text("{}")
    assert any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, **waiting).ok
    assert (any_kube_node.root / "cni.log").read_text().count(late) == 1
    wrong = any_kube_node.pod_call("ADD", "web-0", C2, pod_ns.path, policy_setup_timeout_seconds=-1)
    assert wrong.document["code"] == 7
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path).ok
    assert any_kube_node.leftovers() == {}


def test_a_gate_that_is_shut(
    any_kube_node: KubeNode,
    pod_ns: Namespace,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Malformed, or shut for as long as its patience lasts, it is told before anything is taken; open, it lets pass."""
    pod(any_kube_node)
    refused = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, readiness_gates=["no url"])
    assert refused.document["code"] == 7 and "Invalid URL set for ReadinessGates" in refused.document["msg"]
    with gate(any_kube_node.host, 503) as shut:
        # only a child of this very process can be made less patient
        if any_kube_node.datastore.type == "local":
            monkeypatch.setattr("cni_calico.plugin.waits.GATE_PATIENCE_S", 0.5)
            late = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, readiness_gates=[shut])
            shown = shut.partition("?")[0] + "?[hidden]"  # a query may have a key in it
            assert late.document["code"] == 130 and f"gate {shown} is not ready" in late.document["msg"]
            assert "status 503" in late.document["msg"]
    assert any_kube_node.leftovers() == {} and any_kube_node.taken() == {} and pod_ns.link("eth0") is None
    with gate(any_kube_node.host, 503, 200) as slow, gate(any_kube_node.host, 200) as fast:
        reply = any_kube_node.pod_call("ADD", "web-0", C1, pod_ns.path, readiness_gates=[slow, fast])
    assert endpoint(any_kube_node)["spec"]["ipNetworks"] == ips(reply)
    assert any_kube_node.pod_call("DEL", "web-0", C1, pod_ns.path, readiness_gates=["http://127.0.0.1:9/"]).ok
    assert any_kube_node.leftovers() == {}


@pytest.mark.parametrize("kind", ["etcd", "etcd served"])
def test_etcd_under_kubernetes_in_short(
    kind: str, kube: Cluster, host_ns: Namespace, make_pod_ns: MakeNamespace, tmp_path: Path
) -> None:
    """Addresses and endpoints in etcd, the pod and its namespace from the API server. (All of it: the slow tests.)"""
    with node_on(kind, kube, host_ns, tmp_path) as made:
        kube.create_pod(
            made.namespace, "web-0", made.nodename, labels={"app": "web"}, annotations=annotations({"hwAddr": MAC})
        )
        pod_ns = make_pod_ns()
        reply = made.pod_call("ADD", "web-0", C1, pod_ns.path)
        [address] = ips(reply)
        assert pod_ns.link("eth0")["address"] == MAC
        found = endpoint(made)
        assert found["metadata"]["name"] == "node1-k8s-web--0-eth0" and found["metadata"]["labels"]["app"] == "web"
        assert found["spec"]["profiles"][0] == "kns.space" and found["spec"]["ipNetworks"] == [address]
        assert made.annotations("web-0") == {"hwAddr": MAC}, "nothing is written to the pod"
        old = kube.read_pod(made.namespace, "web-0")
        kube.delete_pod(old)
        kube.create_pod(made.namespace, "web-0", made.nodename)
        assert made.pod_call("ADD", "web-0", C2, make_pod_ns().path).ok
        assert made.pod_call("DEL", "web-0", C1, pod_ns.path, uid=old["metadata"]["uid"]).ok
        assert endpoint(made)["spec"]["containerID"] == C2 and len(made.taken()) == 1
        assert made.pod_call("DEL", "web-0", C2).ok
        assert made.leftovers() == {}
