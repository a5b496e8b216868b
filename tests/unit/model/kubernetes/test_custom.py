"""The Kubernetes forms: names, labels, annotations, and that arbitrary objects only raise CorruptRecord."""

import copy
import hashlib
import json
import pathlib
from ipaddress import ip_network

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey
from cni_calico.model.kubernetes import custom as crd
from cni_calico.model.kubernetes import nodes as crd_nodes
from cni_calico.model.kubernetes import pods as crd_pods

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"
DUMP = json.loads((VECTORS / "k8s-06-agents.json").read_text()) | {
    "pods": json.loads((VECTORS / "k8s-03-borrowed.json").read_text())["pods"]
}
CIDR = ip_network("10.65.99.0/26")


class TestNames:
    def test_places(self):
        assert crd.place_of(BlockKey(ip_network("fd00:65::6800/122"))).name == "fd00-65--6800-122"
        assert crd.place_of(HandleKey("Net.ABC")) == crd.Place("IPAMHandle", "ipamhandles", "net.abc")
        assert crd.place_of(IPAMConfigKey()).name == "default"
        assert crd.place_of(ResourceKey("NetworkSet", "s", "ns")) == crd.Place("NetworkSet", "networksets", "s", "ns")

    def test_a_long_affinity_name_is_cut_and_stays_unique(self):
        assert crd.affinity_name("n" * 237, CIDR) == "n" * 237 + "-10-65-99-0-26"
        names = {crd.affinity_name("n" * 238 + end, CIDR) for end in "ab"}
        assert len(names) == 2
        for name in names:
            assert len(name) == 252
            assert name.startswith("n" * 220)
        whole = hashlib.sha256(b"n" * 240 + b"+10-65-99-0-26").hexdigest()
        assert crd.affinity_name("n" * 240, CIDR).endswith("-10-65-99-0-26-" + whole[:11])

    def test_hostname_hash_is_upstreams(self):
        assert crd.hostname_hash("node1") == "7DS2CCNJGGLTHBDQLLFO6SX24SY2YDDEG3W2VN556FA2W4DLLV5A"


CR_UID = "c775b595-dc59-4ea0-b81b-7ea52accdd39"


class TestIdentities:
    def test_a_uid_is_turned_byte_by_byte_and_back(self):
        assert crd.turned("01000000-0000-4100-8001-000000000080") == "80000000-0000-4100-8080-000000000001"
        assert crd.turned(crd.turned(CR_UID)) == CR_UID != crd.turned(CR_UID)
        for text in ("", "x", None, 7, "0" * 32, CR_UID + "0"):
            assert crd.turned(text) == text

    @given(st.uuids())
    def test_a_turned_uid_is_one_of_the_same_kind(self, uid):
        shown = crd.turned(str(uid))
        assert crd.turned(shown) == str(uid)
        assert (shown[14], shown[19]) == (str(uid)[14], str(uid)[19])

    def test_owners_of_calicos_are_stored_under_the_uid_of_their_custom_resource(self):
        tier = {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": "t", "uid": crd.turned(CR_UID)}
        other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "c", "uid": CR_UID}
        key = ResourceKey("NetworkSet", "s", "ns")
        document = {"metadata": {"name": "s", "namespace": "ns", "ownerReferences": [tier, other]}, "spec": {}}
        obj = crd.object_of(key, document)
        stored = json.loads(obj["metadata"]["annotations"][crd.METADATA])["ownerReferences"]
        assert stored == [{**tier, "apiVersion": "crd.projectcalico.org/v1", "uid": CR_UID}, other]
        assert crd.document_of(obj)["metadata"]["ownerReferences"] == [tier, other]

    def test_owners_that_an_older_version_stored_as_they_were_are_turned_with_the_next_write(self):
        tier = {"apiVersion": "projectcalico.org/v3", "kind": "Tier", "name": "t", "uid": crd.turned(CR_UID)}
        note = json.dumps({"creationTimestamp": None, "ownerReferences": [tier]})
        metadata = {"name": "s", "namespace": "ns", "uid": CR_UID, "annotations": {crd.METADATA: note}}
        obj = {"apiVersion": "crd.projectcalico.org/v1", "kind": "NetworkSet", "metadata": metadata, "spec": {}}
        key, document = crd.read_object(obj)
        assert document["metadata"]["ownerReferences"] == [tier]
        assert document["metadata"]["uid"] == crd.turned(CR_UID)
        written = crd.object_of(key, document, obj)
        assert written["metadata"]["uid"] == CR_UID
        [owner] = json.loads(written["metadata"]["annotations"][crd.METADATA])["ownerReferences"]
        assert owner == {**tier, "apiVersion": "crd.projectcalico.org/v1", "uid": CR_UID}


class TestIpam:
    def test_deleted_of_an_affinity_is_a_text(self):
        key = AffinityKey("n", CIDR)
        obj = crd.object_of(key, {"state": "pendingDeletion", "deleted": True})
        assert obj["spec"]["deleted"] == "true"
        assert crd.read_object(obj) == (key, {"state": "pendingDeletion", "deleted": True})

    def test_virtual_affinities_keep_their_type(self):
        key = AffinityKey("lb", CIDR, "virtual")
        obj = crd.object_of(key, {"state": "confirmed", "deleted": False})
        assert obj["spec"]["type"] == "virtual"
        assert obj["metadata"]["labels"]["projectcalico.org/affinity-type"] == "virtual"
        assert crd.key_of(obj) == key

    def test_a_block_without_affinity_has_no_null_in_the_resource(self):
        obj = crd.object_of(BlockKey(CIDR), {"cidr": str(CIDR), "affinity": None, "affinity_claim_time": "t"})
        assert obj["spec"] == {"cidr": str(CIDR), "affinityClaimTime": "t", "strictAffinity": False}

    def test_configuration_names(self):
        document = {"strict_affinity": True, "auto_allocate_blocks": True, "maxBlocksPerHost": 3, "later": 1}
        obj = crd.object_of(IPAMConfigKey(), document)
        assert obj["spec"] == {"strictAffinity": True, "autoAllocateBlocks": True, "maxBlocksPerHost": 3, "later": 1}
        assert crd.document_of(obj) == document

    def test_an_update_keeps_what_the_server_and_others_wrote(self):
        old = {"metadata": {"resourceVersion": "7", "uid": "u", "finalizers": ["f"], "labels": {"x": "y"}}}
        made = crd.object_of(HandleKey("h"), {"block": {}, "deleted": False}, old)
        assert {k: made["metadata"][k] for k in ("resourceVersion", "uid", "finalizers")} == {
            "resourceVersion": "7",
            "uid": "u",
            "finalizers": ["f"],
        }


class TestLabelsAndAnnotations:
    KEY = ResourceKey("IPPool", "p")
    DOCUMENT = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "IPPool",
        "metadata": {
            "name": "p",
            "creationTimestamp": "t",
            "labels": {"b": "2", "a": "1", "projectcalico.org/x": "y"},
            "annotations": {"note": "n", "projectcalico.org/z": "w"},
        },
        "spec": {"cidr": "10.0.0.0/16"},
    }

    def test_users_labels_live_in_the_annotation_and_ours_in_both(self):
        obj = crd.object_of(self.KEY, self.DOCUMENT)
        assert obj["metadata"]["labels"] == {"projectcalico.org/x": "y"}
        assert set(obj["metadata"]["annotations"]) == {"projectcalico.org/metadata", "projectcalico.org/z"}
        assert obj["metadata"]["annotations"]["projectcalico.org/metadata"] == (
            '{"creationTimestamp":"t","labels":{"a":"1","b":"2","projectcalico.org/x":"y"},'
            '"annotations":{"note":"n","projectcalico.org/z":"w"}}'
        )
        assert crd.document_of(obj) == self.DOCUMENT

    def test_labels_of_older_versions_are_read_too(self):
        obj = {
            "kind": "IPPool",
            "metadata": {"name": "p", "creationTimestamp": "real", "labels": {"old": "1"}, "annotations": {"o": "2"}},
            "spec": {},
        }
        metadata = crd.document_of(obj)["metadata"]
        assert metadata == {
            "name": "p",
            "creationTimestamp": "real",
            "labels": {"old": "1"},
            "annotations": {"o": "2"},
        }

    def test_policies_are_stored_under_their_tier(self):
        key = ResourceKey("GlobalNetworkPolicy", "allow")
        obj = crd.object_of(key, {"metadata": {"name": "allow"}, "spec": {"tier": "default"}})
        assert obj["metadata"]["name"] == "default.allow"
        assert crd.key_of(obj) == key

    def test_uid_and_resource_version_are_never_sent_from_the_document(self):
        document = copy.deepcopy(self.DOCUMENT)
        document["metadata"].update(uid="u", resourceVersion="5")
        obj = crd.object_of(self.KEY, document)
        assert not {"uid", "resourceVersion"} & set(obj["metadata"])
        assert "u" not in json.loads(obj["metadata"]["annotations"]["projectcalico.org/metadata"])


class TestNodes:
    def node(self, annotations=None, **rest):
        return {
            "kind": "Node",
            "metadata": {"name": "n", "labels": {"k": "v"}, "annotations": annotations or {}},
        } | rest

    def test_every_annotation_goes_both_ways(self):
        annotations = {
            "projectcalico.org/" + name: value
            for name, value in {
                "IPv4Address": "10.0.0.1/24",
                "IPv6Address": "fd00::1/64",
                "IPv4IPIPTunnelAddr": "10.65.0.1",
                "ASNumber": "64513",
                "RouteReflectorClusterID": "1.0.0.1",
                "IPv4VXLANTunnelAddr": "10.65.0.2",
                "IPv6VXLANTunnelAddr": "fd00:65::2",
                "VXLANTunnelMACAddr": "66:00:00:00:00:01",
                "VXLANTunnelMACAddrV6": "66:00:00:00:00:02",
                "labels": '{"mine":"1"}',
                "annotations": '{"note":"2"}',
                "Interfaces": '[{"name":"eth0","addresses":["10.0.0.1"]}]',
                "WireguardPublicKey": "key=",
            }.items()
        }
        obj = self.node(annotations | {"other": "kept"})
        key, document = crd_nodes.read_node(obj)
        node = codec.decode(key, document)
        assert (node.as_number, str(node.ipv6_vxlan_tunnel), node.vxlan_tunnel_mac_v6) == (
            64513,
            "fd00:65::2",
            "66:00:00:00:00:02",
        )
        assert node.metadata.labels == {"mine": "1", "k": "v"}
        kept = obj["metadata"]["annotations"]
        assert crd_nodes.node_annotations(codec.encode(node), kept) == kept

    def test_a_field_that_goes_takes_its_annotation_along(self):
        obj = self.node({"projectcalico.org/IPv4Address": "10.0.0.1/24", "other": "kept"})
        document = crd_nodes.read_node(obj)[1]
        del document["spec"]["bgp"]
        assert crd_nodes.node_annotations(document, obj["metadata"]["annotations"]) == {"other": "kept"}

    def test_labels_of_the_kubernetes_node_are_not_written_back(self):
        obj = self.node()
        document = crd_nodes.read_node(obj)[1]
        document["metadata"]["labels"]["new"] = "1"
        assert crd_nodes.node_annotations(document, {}) == {"projectcalico.org/labels": '{"new":"1"}'}

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("IPv4Address", "10.0.0.1"),
            ("IPv4Address", "fd00::1/64"),
            ("ASNumber", "x"),
            ("VXLANTunnelMACAddr", "zz"),
            ("Interfaces", "{"),
            ("labels", "[]"),
        ],
    )
    def test_an_annotation_that_cannot_be_read_is_left_out(self, name, value):
        bad, good = self.node({"projectcalico.org/" + name: value}), self.node()
        assert crd_nodes.read_node(bad)[1] == crd_nodes.read_node(good)[1]

    def test_an_own_address_is_written_with_its_prefix(self):
        bgp = {"ipv4Address": "10.0.0.1", "ipv6Address": "fd00::1", "ipv4IPIPTunnelAddr": "10.1.1.1"}
        written = crd_nodes.node_annotations({"spec": {"bgp": bgp}}, {})
        assert written == {
            "projectcalico.org/IPv4Address": "10.0.0.1/32",
            "projectcalico.org/IPv6Address": "fd00::1/128",
            "projectcalico.org/IPv4IPIPTunnelAddr": "10.1.1.1",
        }

    def test_host_local_pod_cidr_gives_the_tunnel_address(self):
        obj = self.node(spec={"podCIDR": "10.244.1.0/24"})
        assert crd_nodes.read_node(obj, use_pod_cidr=True)[1]["spec"]["bgp"] == {"ipv4IPIPTunnelAddr": "10.244.1.1"}
        assert "bgp" not in crd_nodes.read_node(obj)[1]["spec"]


class TestPods:
    def pod(self, annotations=None, spec=None, status=None, **metadata):
        return {
            "kind": "Pod",
            "metadata": {"name": "p", "namespace": "ns", "annotations": annotations or {}} | metadata,
            "spec": {"nodeName": "n"} | (spec or {}),
            "status": status or {},
        }

    def networks(self, **pod):
        return crd_pods.read_pod(self.pod(**pod))[1]["spec"].get("ipNetworks", [])

    def test_addresses_come_from_the_status_before_the_annotations(self):
        both = {crd_pods.POD_IP: "10.0.0.3/32", crd_pods.POD_IPS: "10.0.0.2/32,fd00::2/128"}
        assert self.networks(annotations=both, status={"podIP": "10.0.0.1"}) == ["10.0.0.1/32"]
        status = {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}
        assert self.networks(annotations=both, status=status) == ["10.0.0.1/32", "fd00::1/128"]
        assert self.networks(annotations=both) == ["10.0.0.2/32", "fd00::2/128"]
        assert self.networks(annotations={crd_pods.POD_IP: "10.0.0.3/32"}) == ["10.0.0.3/32"]

    def test_an_annotation_names_single_addresses(self):
        for text in ("0.0.0.0/0", "fd00::/32", "10.0.0.0/24"):
            assert self.networks(annotations={crd_pods.POD_IPS: f"{text},10.0.0.3/32"}) == ["10.0.0.3/32"]
            assert self.networks(annotations={crd_pods.POD_IP: text}) == []

    def test_a_pod_that_lost_its_addresses_has_none(self):
        status = {"podIP": "10.0.0.1"}
        assert self.networks(status=status | {"phase": "Failed"}) == []
        gone = {"annotations": {crd_pods.POD_IP: ""}, "status": status}
        assert self.networks(**gone, deletionTimestamp="t") == []
        assert self.networks(**gone) == ["10.0.0.1/32"]

    def test_pods_without_an_endpoint(self):
        assert crd_pods.read_pod(self.pod(spec={"hostNetwork": True})) is None
        assert crd_pods.read_pod(self.pod(spec={"nodeName": ""})) is None

    def test_floating_addresses_and_ports(self):
        ports = [
            {"containerPort": 1},
            {"containerPort": 2, "name": "b", "protocol": "UDP"},
            {"containerPort": 3, "hostPort": 30, "hostIP": "10.0.0.9"},
            {"containerPort": 4, "name": "odd", "protocol": "XYZ"},
        ]
        spec = crd_pods.read_pod(
            self.pod(
                annotations={crd_pods.FLOATING_IPS: '["172.16.0.1", "fd00::9"]'},
                spec={"containers": [{"ports": ports}]},
                status={"podIP": "10.0.0.1"},
            )
        )[1]["spec"]
        assert spec["ipNATs"] == [{"internalIP": "10.0.0.1", "externalIP": "172.16.0.1"}]
        assert spec["ports"] == [
            {"name": "b", "protocol": "UDP", "port": 2},
            {"name": "", "protocol": "TCP", "port": 3, "hostPort": 30, "hostIP": "10.0.0.9"},
        ]

    def test_a_malformed_annotation_names_itself_and_its_value(self):
        with pytest.raises(CorruptRecord) as caught:
            crd_pods.read_pod(self.pod(annotations={crd_pods.SOURCE_PREFIXES: "10.0.0.0/8"}))
        assert "Pod ns/p" in str(caught.value)
        assert crd_pods.SOURCE_PREFIXES in str(caught.value)
        assert '"10.0.0.0/8"' in str(caught.value)


def test_profiles():
    key, document = crd_pods.read_namespace({"metadata": {"name": "ns", "labels": {"a": "b"}}})
    assert key == ResourceKey("Profile", "kns.ns")
    assert document["spec"]["labelsToApply"] == {"pcns.a": "b", "pcns.projectcalico.org/name": "ns"}
    assert document["spec"]["egress"][0]["action"] == "Allow"
    key, document = crd_pods.read_service_account({"metadata": {"name": "sa", "namespace": "ns"}})
    assert key == ResourceKey("Profile", "ksa.ns.sa")
    assert document["spec"] == {"labelsToApply": {"pcsa.projectcalico.org/name": "sa"}}


READERS = {"nodes": crd_nodes.read_node, "pods": crd_pods.read_pod}
OBJECTS = [(READERS.get(plural, crd.read_object), obj) for plural, objs in DUMP.items() for obj in objs]
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-1, 3), st.sampled_from(["", "x", "[", '["x"]', "10.0.0.1", "{}"])),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)),
    max_leaves=4,
)


def places(value, at=()):
    yield at
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:2] if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*at, key))


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_real_objects_with_one_value_changed(data):
    read, obj = data.draw(st.sampled_from(OBJECTS))
    obj = copy.deepcopy(obj)
    at = data.draw(st.sampled_from(sorted(places(obj), key=repr)))
    value = data.draw(values)
    parent = obj
    for step in at[:-1]:
        parent = parent[step]
    if at:
        parent[at[-1]] = value
    try:
        found = read(obj)
    except CorruptRecord:
        return
    if found is not None:
        try:
            codec.decode(*found)
        except CorruptRecord:
            pass
