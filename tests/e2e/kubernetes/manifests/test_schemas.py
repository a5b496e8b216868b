"""The API server itself refuses records that would break addresses or routes: every kind, good ones beside bad ones."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.errors import RecordRefused
from cni_calico.model.access import CRD_ROOT
from cni_calico.model.keys import CONTROLLERS_DEFAULT, HandleKey, HandleList
from manifests import kinds
from tests.e2e.kubernetes.cluster import Cluster
from tests.fixtures.kubernetes import NAMESPACE

pytestmark = pytest.mark.kubernetes

GOOD: dict[str, dict[str, Any]] = {
    "ipamblocks": {
        "cidr": "10.65.0.0/30",
        "affinity": "host:n1",
        "allocations": [0, None, None, None],
        "unallocated": [1, 2, 3],
        "attributes": [{"handle_id": "net.c1", "secondary": {"node": "n1"}}],
        "sequenceNumber": 1795176388000000000,
        "sequenceNumberForAllocation": {"0": 1795176388000000000},
        "strictAffinity": False,
        "deleted": False,
    },
    "blockaffinities": {"cidr": "fd00::/122", "node": "n1", "state": "confirmed", "type": "host", "deleted": "false"},
    "ipamhandles": {"handleID": "net.C1", "block": {"10.65.0.0/30": 1}, "deleted": False},
    "ipamconfigs": {"strictAffinity": True, "autoAllocateBlocks": True, "maxBlocksPerHost": 4},
    "ippools": {"cidr": "fd00:1::/64", "blockSize": 122, "vxlanMode": "Always", "allowedUses": ["Workload", "Tunnel"]},
    "ipreservations": {"reservedCIDRs": ["10.0.0.0/30", "10.0.0.9", "fd00::/120"]},
    "clusterinformations": {"clusterGUID": "0" * 32, "datastoreReady": True},
    "bgpconfigurations": {"asNumber": 64512, "serviceClusterIPs": [{"cidr": "10.96.0.0/12"}], "listenPort": 179},
    "bgppeers": {"peerIP": "10.0.0.1:1179", "asNumber": 4200000000, "nodeSelector": "all()"},
    "bgpfilters": {"exportV4": [{"action": "Accept", "cidr": "10.0.0.0/8", "matchOperator": "In"}]},
    "felixconfigurations": {"vxlanVNI": 4096, "vxlanEnabled": None, "healthPort": 9099},
    "globalnetworkpolicies": {"order": 10.5, "types": ["Ingress"], "ingress": [{"action": "Deny"}]},
    "globalnetworksets": {"nets": ["10.0.0.0/8", "192.0.2.1"]},
    "hostendpoints": {"node": "n1", "expectedIPs": ["192.0.2.1"]},
    "kubecontrollersconfigurations": {
        "controllers": {"node": {"leakGracePeriod": "1h15m0.5s", "syncLabels": "Enabled"}, "policy": {}},
        "healthChecks": "Enabled",
    },
    "networkpolicies": {"order": None, "selector": "all()", "types": ["Egress"], "egress": [{"action": "Log"}]},
    "networksets": {"nets": ["fd00::/64", "2001:db8::1"]},
    "stagedglobalnetworkpolicies": {"stagedAction": "Set", "selector": "all()", "ingress": [{"action": "Deny"}]},
    "stagedkubernetesnetworkpolicies": {"podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"]},
    "stagednetworkpolicies": {"stagedAction": "Delete"},
    "tiers": {"order": None, "defaultAction": "Pass"},
    "caliconodestatuses": {"node": "n1", "classes": ["BGP"], "updatePeriodSeconds": 10},
}

BAD: list[tuple[str, dict[str, Any]]] = [
    ("ipamblocks", {"cidr": "10.65.0.0"}),
    ("ipamblocks", {"cidr": None}),
    ("ipamblocks", {"allocations": "none"}),
    ("ipamblocks", {"allocations": [-1, None, None, None]}),
    ("ipamblocks", {"allocations": [0.5, None, None, None]}),
    ("ipamblocks", {"unallocated": [0, 1, 2, 3, 4]}),
    ("ipamblocks", {"unallocated": [70000]}),
    ("ipamblocks", {"attributes": [{"handle_id": 5}]}),
    ("ipamblocks", {"sequenceNumber": "1"}),
    ("ipamblocks", {"affinityClaimTime": "yesterday"}),
    ("blockaffinities", {"cidr": "fd00::/129"}),
    ("blockaffinities", {"state": "taken"}),
    ("blockaffinities", {"deleted": False}),
    ("blockaffinities", {"node": None}),
    ("blockaffinities", {"type": "guest"}),
    ("ipamhandles", {"block": {"10.65.0.0/30": -1}}),
    ("ipamhandles", {"handleID": None}),
    ("ipamconfigs", {"maxBlocksPerHost": -1}),
    ("ipamconfigs", {"strictAffinity": "true"}),
    ("ippools", {"cidr": "fd00:1::/130"}),
    ("ippools", {"blockSize": 26}),
    ("ippools", {"cidr": "10.0.0.0/28", "blockSize": 24}),
    ("ippools", {"vxlanMode": "always"}),
    ("ippools", {"ipipMode": "Always"}),
    ("ippools", {"assignmentMode": "Sometimes"}),
    ("ippools", {"allowedUses": ["LoadBalancer"]}),
    ("ippools", {"allowedUses": ["LoadBalancer", "Workload"], "vxlanMode": "Never"}),
    ("ipreservations", {"reservedCIDRs": ["10.0.0.0/33"]}),
    ("ipreservations", {"reservedCIDRs": "10.0.0.0/30"}),
    ("clusterinformations", {"datastoreReady": "false"}),
    ("bgpconfigurations", {"asNumber": 4294967296}),
    ("bgpconfigurations", {"serviceClusterIPs": [{"cidr": "10.96.0.0/40"}]}),
    ("bgpconfigurations", {"listenPort": 70000}),
    ("bgppeers", {"node": "n1"}),
    ("bgppeers", {"peerSelector": "all()"}),
    ("bgppeers", {"sourceAddress": "Mine"}),
    ("bgppeers", {"peerSelector": "all()", "peerIP": None}),
    ("bgppeers", {"localWorkloadSelector": "all()"}),
    ("bgppeers", {"localWorkloadSelector": "all()", "peerIP": None, "asNumber": None}),
    ("bgpconfigurations", {"nodeToNodeMeshEnabled": False, "nodeMeshMaxRestartTime": "2m"}),
    ("bgpfilters", {"exportV4": [{"action": "Accept", "cidr": "10.0.0.0/8"}]}),
    ("bgpfilters", {"exportV4": [{"action": "Maybe"}]}),
    ("bgpfilters", {"exportV4": [{"action": "Accept", "prefixLength": {"min": 8}}]}),
    ("bgpfilters", {"importV4": [{"action": "Reject", "operations": [{"setPriority": {"value": 5}}]}]}),
    ("felixconfigurations", {"vxlanVNI": 16777216}),
    ("felixconfigurations", {"floatingIPs": "yes"}),
    ("felixconfigurations", {"routeTableRange": {"min": 1, "max": 9}, "routeTableRanges": [{"min": 1, "max": 9}]}),
    ("globalnetworkpolicies", {"types": ["Sideways"]}),
    ("globalnetworkpolicies", {"ingress": [{"action": "Drop"}]}),
    ("globalnetworkpolicies", {"preDNAT": True, "doNotTrack": True, "applyOnForward": True}),
    ("globalnetworkpolicies", {"preDNAT": True, "applyOnForward": True, "types": ["Ingress", "Egress"]}),
    ("globalnetworkpolicies", {"preDNAT": True, "applyOnForward": True, "egress": [{"action": "Deny"}]}),
    ("globalnetworkpolicies", {"doNotTrack": True}),
    ("globalnetworkpolicies", {"ingress": [{"action": "Deny", "protocol": "TCP", "http": {"methods": ["GET"]}}]}),
    ("globalnetworkpolicies", {"ingress": [{"action": "Allow", "http": {"methods": ["GET"]}}]}),
    ("globalnetworkpolicies", {"ingress": [{"action": "Deny", "source": {"services": {"name": "s"}, "ports": [80]}}]}),
    ("networkpolicies", {"egress": [{"action": "Deny", "protocol": "ICMP", "icmp": {"code": 1}}]}),
    (
        "networkpolicies",
        {"egress": [{"action": "Deny", "destination": {"services": {"name": "s"}, "notPorts": ["http"]}}]},
    ),
    ("globalnetworksets", {"nets": ["ten"]}),
    ("networkpolicies", {"types": ["egress"]}),
    ("networkpolicies", {"order": "first"}),
    ("networkpolicies", {"egress": [{"action": "Accept"}]}),
    ("networksets", {"nets": ["fd00::/129"]}),
    ("networksets", {"nets": "fd00::/64"}),
    ("stagedglobalnetworkpolicies", {"stagedAction": "Try"}),
    ("stagedkubernetesnetworkpolicies", {"policyTypes": ["ingress"]}),
    ("stagednetworkpolicies", {"types": ["egress"]}),
    ("kubecontrollersconfigurations", {"controllers": {"node": {"leakGracePeriod": 15}}}),
    ("kubecontrollersconfigurations", {"controllers": {"node": {"leakGracePeriod": "15 minutes"}}}),
    ("kubecontrollersconfigurations", {"controllers": "node"}),
    ("hostendpoints", {"expectedIPs": ["192.0.2.1/24"]}),
    ("hostendpoints", {"node": None}),
    ("hostendpoints", {"expectedIPs": []}),
    ("tiers", {"defaultAction": "Allow"}),
    ("caliconodestatuses", {"classes": ["Weather"]}),
]

FIXED = [
    ("ipamblocks", {"cidr": "10.65.0.4/30"}),
    ("blockaffinities", {"cidr": "fd00::40/122"}),
    ("blockaffinities", {"node": "n2"}),
    ("ipamhandles", {"handleID": "net.c1"}),
    ("ippools", {"cidr": "fd00:2::/64"}),
    ("ippools", {"blockSize": 124}),
    ("ippools", {"blockSize": None}),
]


FILLED_IN: dict[str, dict[str, Any]] = {
    "bgpconfigurations": {"logSeverityScreen": "Info", "serviceLoadBalancerAggregation": "Enabled"},
    "felixconfigurations": {"nftablesMode": "Auto"},
    "globalnetworkpolicies": {"tier": "default"},
    "ippools": {"assignmentMode": "Automatic"},
    "kubecontrollersconfigurations": {"healthChecks": "Enabled"},
    "networkpolicies": {"tier": "default"},
    "stagedglobalnetworkpolicies": {"stagedAction": "Set", "tier": "default"},
    "stagedkubernetesnetworkpolicies": {"stagedAction": "Set"},
    "stagednetworkpolicies": {"stagedAction": "Set", "tier": "default"},
    "tiers": {"defaultAction": "Deny"},
}  # by upstream's definitions (v3.32)

# a short name or the plural -> the headings of kubectl get
COLUMNS = {
    "ippools": "NAME CIDR VXLAN IPIP NAT ALLOCATABLE AGE",
    "tiers": "NAME ORDER DEFAULTACTION STATUS",
    "kcc": "NAME AGE",
    "kccs": "NAME AGE",
    "caliconetworkpolicy": "NAME TIER ORDER",
    "gnp": "NAME TIER ORDER AGE",
    "cgnp": "NAME TIER ORDER AGE",
    "snp": "NAME TIER ORDER",
    "scnp": "NAME TIER ORDER",
    "sgnp": "NAME TIER ORDER",
    "sknp": "NAME AGE",
    "gns": "NAME AGE",
    "networksets": "NAME AGE",
    "hep": "NAME NODE INTERFACE",
    "heps": "NAME NODE INTERFACE",
    "bgpconfig": "NAME AGE",
    "bgpconfigs": "NAME AGE",
    "bgppeers": "NAME NODE SELECTOR NODE LOCAL ASN PEER SELECTOR PEER IP PEER ASN",
    "caliconodestatuses": "NAME NODE CLASSES",
    "clusterinfo": "NAME VERSION READY TYPES",
    "clusterinfos": "NAME VERSION READY TYPES",
    "ipamconfigs": "NAME STRICTAFFINITY MAXBLOCKSPERHOST AUTOALLOCATEBLOCKS",
    "affinity": "NAME CIDR NODE TYPE",
    "affinities": "NAME CIDR NODE TYPE",
    "ipamblocks": "NAME CIDR AFFINITY CLAIMTIME",
    "ipamhandles": "NAME ID",
}


def kind_of(plural: str) -> kinds.Kind:
    [kind] = [kind for kind in kinds.KINDS if kind.plural == plural]
    return kind


def path_of(plural: str) -> str:
    return f"{CRD_ROOT}/namespaces/{NAMESPACE}/{plural}" if kind_of(plural).namespaced else f"{CRD_ROOT}/{plural}"


def resource(plural: str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A good record with fields changed, None takes one away."""
    kind = kind_of(plural)
    spec = {**copy.deepcopy(GOOD[plural]), **(changes or {})}
    for name, value in (changes or {}).items():
        if value is None:
            del spec[name]
    metadata = {"name": "one", **({"namespace": NAMESPACE} if kind.namespaced else {})}
    return {"apiVersion": "crd.projectcalico.org/v1", "kind": kind.kind, "metadata": metadata, "spec": spec}


def test_every_kind_is_in_the_table() -> None:
    assert set(GOOD) == {plural for plural, _ in BAD} == {kind.plural for kind in kinds.KINDS}


@pytest.mark.parametrize("plural", sorted(GOOD))
def test_good_records_are_taken_as_they_are(plural: str, kube: Cluster) -> None:
    made = kube.request("POST", path_of(plural), resource(plural))
    stored = {name: value for name, value in GOOD[plural].items() if value is not None}
    filled_in = {name: value for name, value in FILLED_IN.get(plural, {}).items() if name not in stored}
    assert {name: value for name, value in made["spec"].items() if value is not None} == stored | filled_in
    made["spec"]["aFieldOfANewerRelease"] = {"kept": [1]}
    again = kube.request("PUT", f"{path_of(plural)}/one", made)
    assert again["spec"]["aFieldOfANewerRelease"] == {"kept": [1]}


def test_defaults_of_sections_that_are_there(kube: Cluster) -> None:
    """Upstream's definitions fill them in only there; an empty section stays empty otherwise."""
    given = {"loadBalancer": {}, "policyMigration": {}, "namespace": {}}
    made = kube.request(
        "POST",
        path_of("kubecontrollersconfigurations"),
        resource("kubecontrollersconfigurations", {"controllers": given}),
    )
    filled_in = {"loadBalancer": {"assignIPs": "AllServices"}, "policyMigration": {"enabled": "Enabled"}}
    assert made["spec"]["controllers"] == given | filled_in


@pytest.mark.parametrize(("plural", "changes"), BAD, ids=lambda value: value if isinstance(value, str) else str(value))
def test_bad_ones_are_refused_by_name(plural: str, changes: dict[str, Any], kube: Cluster) -> None:
    with pytest.raises(RecordRefused, match=r"spec") as caught:
        kube.request("POST", path_of(plural), resource(plural, changes))
    assert '"one" is invalid' in str(caught.value)


@pytest.mark.parametrize(("plural", "changes"), FIXED, ids=str)
def test_what_identifies_a_record_stays(plural: str, changes: dict[str, Any], kube: Cluster) -> None:
    made = kube.request("POST", path_of(plural), resource(plural))
    changed = {**resource(plural, changes), "metadata": made["metadata"]}
    with pytest.raises(RecordRefused, match=r"cannot be changed"):
        kube.request("PUT", f"{path_of(plural)}/one", changed)


def test_a_pool_without_a_block_size_is_only_given_that_of_its_blocks(kube: Cluster) -> None:
    """27 over the /26 blocks that it has would be two owners of an address."""
    path = path_of("ippools")
    for name, cidr, refused, taken in (
        ("four", "10.0.0.0/16", 27, 26),
        ("six", "fd00::/64", 126, 122),
        ("small", "10.1.0.0/28", None, 28),
    ):
        body = resource("ippools", {"cidr": cidr, "blockSize": None, "vxlanMode": None, "allowedUses": None})
        body["metadata"]["name"] = name
        made = kube.request("POST", path, body)
        if refused:
            with pytest.raises(RecordRefused, match="blockSize cannot be changed"):
                kube.request("PUT", f"{path}/{name}", {**made, "spec": {**made["spec"], "blockSize": refused}})
        changed = kube.request("PUT", f"{path}/{name}", {**made, "spec": {**made["spec"], "blockSize": taken}})
        assert changed["spec"]["blockSize"] == taken


@pytest.mark.parametrize(
    ("plural", "name", "spec"),
    [
        ("tiers", "kube-admin", {"order": 1000, "defaultAction": "Deny"}),
        ("tiers", "default", {"order": 1000000, "defaultAction": "Pass"}),
        ("felixconfigurations", "default", {"nodeSelector": "all()"}),
        ("felixconfigurations", "node.n1", {"nodeSelector": "all()"}),
    ],
)
def test_what_a_record_of_that_name_cannot_have(plural: str, name: str, spec: dict[str, Any], kube: Cluster) -> None:
    for given, refused in ((name, True), ("another", False)):
        body = {**resource(plural), "metadata": {"name": given}, "spec": spec}
        if refused:
            with pytest.raises(RecordRefused, match=f'"{name}" is invalid'):
                kube.request("POST", path_of(plural), body)
        else:
            kube.request("POST", path_of(plural), body)


@pytest.mark.parametrize(
    ("plural", "changes"),
    [
        ("globalnetworkpolicies", {"preDNAT": True, "applyOnForward": True}),
        ("globalnetworkpolicies", {"doNotTrack": True, "applyOnForward": True, "egress": [{"action": "Deny"}]}),
        ("globalnetworkpolicies", {"preDNAT": False, "doNotTrack": False, "applyOnForward": False}),
        *(
            ("networkpolicies", {"ingress": [rule]})
            for rule in (
                {
                    "action": "Allow",
                    "protocol": "TCP",
                    "http": {"methods": ["GET"]},
                    "source": {"ports": ["80:90", 443]},
                },
                {"action": "Allow", "protocol": 6, "http": {"paths": [{"exact": "/"}]}},
                {"action": "Deny", "protocol": "ICMPv6", "icmp": {"type": 1, "code": 0}, "notICMP": {"type": 2}},
                {"action": "Allow", "source": {"services": {"name": "s", "namespace": "n"}, "ports": []}},
            )
        ),
        ("ippools", {"allowedUses": ["LoadBalancer"], "vxlanMode": "Never"}),
        ("bgppeers", {"localWorkloadSelector": "all()", "peerIP": None}),
        ("bgppeers", {"peerSelector": "all()", "peerIP": "", "asNumber": None}),
        ("hostendpoints", {"interfaceName": "*", "expectedIPs": None}),
    ],
    ids=str,
)
def test_what_belongs_together_is_taken(plural: str, changes: dict[str, Any], kube: Cluster) -> None:
    kube.request("POST", path_of(plural), resource(plural, changes))


def test_long_lists_come_in_pages(
    kube: Cluster, kube_store: KubernetesStore, soon: Deadline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of one moment, and the watch that follows misses nothing."""
    monkeypatch.setattr("cni_calico.datastore.kubernetes.pages.PAGE", 4)
    value = {"block": {"10.65.0.0/30": 1}, "deleted": False}
    for number in range(10):
        kube_store.commit([Write.create(HandleKey(f"net.{number}"), value)], soon)
    since = len(kube.audited())
    listing = kube_store.list(HandleList(), soon)
    assert [item.key.handle_id for item in listing.items] == [f"net.{number}" for number in range(10)]
    pages = [event["requestURI"] for event in kube.audited(since) if event["verb"] == "list"]
    assert len(pages) == 3 and all("limit=4" in page for page in pages) and "continue=" in pages[-1]
    kube_store.commit([Write.create(HandleKey("net.late"), value)], soon)
    with kube_store.watch(HandleList(), listing.revision) as watch:
        assert [event.key.handle_id for event in watch.next(10)] == ["net.late"]


def test_names_and_columns_of_kubectl(kube: Cluster) -> None:
    """Those of upstream's definitions; one call per list would take half a minute."""
    for plural in GOOD:
        kube.request("POST", path_of(plural), resource(plural))
    for name, headings in COLUMNS.items():
        plural = next(kind.plural for kind in kinds.KINDS if name in (kind.plural, *kind.short))
        assert columns_of(kube, path_of(plural)) == headings, name
    printed = kube.kubectl("get", "kcc,gnp,hep,affinity,caliconetworkpolicy", "-n", NAMESPACE, "--no-headers")
    assert "default" in printed and "fd00::/122" in printed


def columns_of(kube: Cluster, path: str) -> str:
    """The headings that the API server gives to kubectl."""
    api = kube.api()
    try:
        accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
        table = api.send(ApiRequest("GET", path, "list as a table", accept=accept), Deadline.after(20)).document
    finally:
        api.close()
    return " ".join(column["name"] for column in table["columnDefinitions"]).upper()


def test_a_status_that_is_a_subresource_is_written_with_its_record(kube: Cluster, kube_store: KubernetesStore) -> None:
    """As upstream's controllers write it, and as our store does; a write of the record alone leaves it."""
    path = f"{path_of('kubecontrollersconfigurations')}/default"
    made = resource("kubecontrollersconfigurations")
    made["metadata"]["name"] = "default"
    made = kube.request("POST", path_of("kubecontrollersconfigurations"), made)
    answered = kube.request("PUT", f"{path}/status", {**made, "status": {"environmentVars": {"A": "1"}}})
    assert answered["status"] == {"environmentVars": {"A": "1"}}
    found = kube_store.get(CONTROLLERS_DEFAULT, Deadline.after(20))
    assert found is not None and found.value["status"] == {"environmentVars": {"A": "1"}}
    changed = {**found.value, "spec": {"healthChecks": "Disabled"}, "status": {"environmentVars": {"B": "2"}}}
    kube_store.commit([Write.update(found, changed)], Deadline.after(20))
    stored = kube.request("GET", path)
    assert (stored["spec"]["healthChecks"], stored["status"]) == ("Disabled", {"environmentVars": {"B": "2"}})
    late = {**changed, "status": {"environmentVars": {"C": "3"}}}
    with pytest.raises(CommitConflict):
        kube_store.commit([Write.update(found, late)], Deadline.after(20))
