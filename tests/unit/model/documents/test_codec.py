"""What the codec promises beyond the golden records: errors, old forms, changes that keep what is not ours."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, ip_network

import pytest

from cni_calico.errors import CorruptRecord
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey
from cni_calico.model.resources import (
    Affinity,
    Attribute,
    Block,
    EndpointPort,
    Handle,
    IPAMConfig,
    IPPool,
    Node,
    Resource,
    WorkloadEndpoint,
)

CIDR = IPv4Network("10.0.0.0/30")
KEY = BlockKey(CIDR)


def block_document(**changes):
    document = {
        "cidr": "10.0.0.0/30",
        "affinity": "host:n",
        "allocations": [0, None, 0, None],
        "unallocated": [3, 1],
        "attributes": [{"handle_id": "h", "secondary": {"node": "n"}}],
        "sequenceNumber": 1795176388957943424,
        "sequenceNumberForAllocation": {"0": 1795176388957943423},
        "deleted": False,
    } | changes
    return {k: v for k, v in document.items() if v is not ...}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"allocations": [0, None, 0, 99]}, "allocations[3]: expected an index into attributes or null, got 99"),
        ({"allocations": [0, None, -1, None]}, "allocations[2]: expected an index into attributes or null, got -1"),
        ({"allocations": [0, None, True, None]}, "allocations[2]: expected an index into attributes or null, got true"),
        ({"allocations": [0, None, [], None]}, "allocations[2]: expected an index into attributes or null, got []"),
        ({"allocations": [0, None]}, "allocations: expected one entry for each of 4 addresses"),
        ({"allocations": ...}, "allocations: expected one entry for each of 4 addresses"),
        ({"unallocated": [3, 4]}, "unallocated[1]: expected an ordinal from 0 to 3, got 4"),
        ({"unallocated": [3, 3]}, "unallocated[1]: expected an ordinal that is not listed before, got 3"),
        ({"unallocated": [2]}, "unallocated[0]: expected an ordinal that is free in allocations, got 2"),
        ({"unallocated": {}}, "unallocated: expected a list, got {}"),
        ({"cidr": "10.0.0.1/30"}, 'cidr: expected the network of a block, got "10.0.0.1/30"'),
        ({"cidr": "10.0.0.4/30"}, 'cidr: expected "10.0.0.0/30" as in its key, got "10.0.0.4/30"'),
        ({"sequenceNumberForAllocation": {"x": 1}}, "sequenceNumberForAllocation: expected ordinals as its keys"),
        ({"sequenceNumberForAllocation": {"1" * 5000: 1}}, "sequenceNumberForAllocation: expected ordinals as its"),
        (
            {"sequenceNumberForAllocation": {"1": "a"}},
            'sequenceNumberForAllocation.1: expected a whole number, got "a"',
        ),
        ({"attributes": [{"secondary": {"node": 1}}]}, 'attributes[0].secondary["node"]: expected a text, got 1'),
        ({"attributes": [{"handle_id": 1}]}, "attributes[0].handle_id: expected a text, got 1"),
        ({"affinity": 5}, "affinity: expected a text, got 5"),
    ],
)
def test_wrong_blocks_name_field_and_value(changes, text):
    with pytest.raises(CorruptRecord) as caught:
        codec.decode_block(KEY, block_document(**changes))
    assert str(caught.value).startswith(f"cannot read block 10.0.0.0/30: {text}")


def test_a_value_in_a_message_is_kept_short():
    with pytest.raises(CorruptRecord) as caught:
        codec.decode_block(KEY, block_document(cidr=["x" * 5000]))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("key", "document", "text"),
    [
        (AffinityKey("n", CIDR), {"state": 1}, "affinity of block 10.0.0.0/30 to host n: state: expected a text"),
        (AffinityKey("n", CIDR), {"deleted": "false"}, "deleted: expected true or false"),
        (HandleKey("h"), {"block": {"x": 1}}, "handle h: block: expected blocks in CIDR notation as its keys"),
        (IPAMConfigKey(), {"maxBlocksPerHost": 1.5}, "IPAM configuration: maxBlocksPerHost: expected a whole number"),
        (ResourceKey("IPPool", "p"), {"spec": {}}, "IPPool p: spec.cidr: expected a network in CIDR notation"),
        (ResourceKey("IPPool", "p"), {"metadata": {"name": "q"}}, 'metadata.name: expected "p" as in its key'),
        (ResourceKey("IPPool", "p"), {"kind": "Node"}, 'kind: expected "IPPool", got "Node"'),
        (
            ResourceKey("Node", "n"),
            {"spec": {"bgp": {"ipv4Address": "fd00::1/64"}}},
            "spec.bgp.ipv4Address: expected an",
        ),
        (ResourceKey("Node", "n"), {"spec": {"bgp": {"asNumber": "70000.1"}}}, "expected an AS number"),
        (ResourceKey("Profile", "p"), [], "Profile p: document: expected an object"),
    ],
)
def test_wrong_records_name_record_and_field(key, document, text):
    with pytest.raises(CorruptRecord) as caught:
        codec.decode(key, document)
    assert text in str(caught.value)


class TestOldBlocks:
    def test_affinity_comes_from_host_affinity_and_goes_back_as_it_was(self):
        for affinity in (..., None):
            document = block_document(affinity=affinity, hostAffinity="old", strictAffinity=True)
            block = codec.decode_block(KEY, document)
            assert block.node == "old"
            assert block.extra == {"hostAffinity": "old", "strictAffinity": True}
            assert codec.encode_block(replace(block, sequence_number=7)) == document | {"sequenceNumber": 7}

    def test_a_released_affinity_does_not_come_back_from_host_affinity(self):
        block = codec.decode_block(KEY, block_document(affinity=..., hostAffinity="old"))
        out = codec.encode_block(replace(block, affinity=None))
        assert codec.decode_block(KEY, out).affinity is None
        assert "hostAffinity" not in out

    def test_another_affinity_replaces_host_affinity(self):
        block = codec.decode_block(KEY, block_document(affinity=None, hostAffinity="old"))
        out = codec.encode_block(replace(block, affinity="host:new"))
        assert codec.decode_block(KEY, out).node == "new"
        assert "hostAffinity" not in out

    def test_absent_fields_stay_absent_until_they_are_used(self):
        absent = dict.fromkeys(("sequenceNumber", "sequenceNumberForAllocation", "deleted"), ...)
        block = codec.decode_block(KEY, block_document(**absent))
        assert codec.encode_block(block) == block_document(**absent)
        out = codec.encode_block(replace(block, sequence_number=1, sequence_for={0: 1}))
        assert (out["sequenceNumber"], out["sequenceNumberForAllocation"]) == (1, {"0": 1})
        assert "deleted" not in out

    def test_null_lists_mean_empty(self):
        document = block_document(allocations=[None] * 4, unallocated=[0, 1, 2, 3], attributes=None)
        block = codec.decode_block(KEY, document)
        assert block.attributes == ()
        assert codec.encode_block(block) == document
        taken = replace(block, allocations=(0, None, None, None), attributes=(Attribute("h"),))
        assert codec.encode_block(taken)["attributes"] == [{"handle_id": "h"}]


def test_equal_attributes_compare_equal_whatever_they_were_read_from():
    documents = [{"handle_id": "h"}, {"handle_id": "h", "secondary": {}}, {"handle_id": "h", "secondary": None}]
    block = codec.decode_block(KEY, block_document(allocations=[0, 1, 2, 0], unallocated=[], attributes=documents))
    assert block.attributes[0] == block.attributes[1] == block.attributes[2] == Attribute("h")
    assert codec.encode_block(block)["attributes"] == documents


def test_alternate_owner_stays_when_the_attribute_moves():
    documents = [{"handle_id": "a"}, {"handle_id": "b", "secondary": {"pod": "p"}, "alternateOwnerAttrs": {"pod": "q"}}]
    block = codec.decode_block(
        KEY, block_document(allocations=[0, 1, None, None], unallocated=[2, 3], attributes=documents)
    )
    moved = replace(block, allocations=(None, 0, None, None), unallocated=(2, 3, 0), attributes=block.attributes[1:])
    assert codec.encode_block(moved)["attributes"] == documents[1:]


class TestNewRecords:
    """What upstream writes for the same thing (see the golden dumps)."""

    def test_block(self):
        block = Block(CIDR, "host:n", (None,) * 4, (0, 1, 2, 3), sequence_number=5)
        assert codec.encode(block) == {
            "cidr": "10.0.0.0/30",
            "affinity": "host:n",
            "allocations": [None] * 4,
            "unallocated": [0, 1, 2, 3],
            "attributes": [],
            "sequenceNumber": 5,
            "sequenceNumberForAllocation": {},
            "deleted": False,
        }

    def test_affinity_handle_and_configuration(self):
        assert codec.encode(Affinity("pending")) == {"state": "pending", "deleted": False}
        assert codec.encode(Handle({CIDR: 2})) == {"block": {"10.0.0.0/30": 2}, "deleted": False}
        config = IPAMConfig(auto_allocate_blocks=True, extra={"kubeVirtVMAddressPersistence": "Enabled"})
        assert codec.encode(config) == {"auto_allocate_blocks": True, "kubeVirtVMAddressPersistence": "Enabled"}

    def test_pool_has_its_defaults(self):
        metadata = codec.new_metadata("pool4", uid="u", now="2026-11-20T12:06:00Z")
        assert codec.encode(IPPool(metadata, ip_network("10.65.0.0/16"), 26)) == {
            "apiVersion": "projectcalico.org/v3",
            "kind": "IPPool",
            "metadata": {"name": "pool4", "uid": "u", "creationTimestamp": "2026-11-20T12:06:00Z"},
            "spec": {
                "cidr": "10.65.0.0/16",
                "vxlanMode": "Never",
                "ipipMode": "Never",
                "blockSize": 26,
                "nodeSelector": "all()",
                "allowedUses": ["Workload", "Tunnel"],
                "assignmentMode": "Automatic",
            },
        }

    def test_node_and_profile(self):
        metadata = codec.new_metadata("n", uid="u", now="t")
        assert codec.encode(Node(metadata, status={}))["spec"] == {}
        assert codec.encode(Node(metadata, ipv4=IPv4Interface("10.0.0.1/24")))["spec"] == {
            "bgp": {"ipv4Address": "10.0.0.1/24"}
        }
        assert codec.encode(Node(metadata, bgp_present=True))["spec"] == {"bgp": {}}
        profile = codec.encode(Resource("Profile", metadata, {"labelsToApply": {"n": ""}}))
        assert profile["kind"] == "Profile"
        assert "status" not in profile

    def test_endpoint(self):
        endpoint = WorkloadEndpoint(
            codec.new_metadata("w", uid="u", now="t", namespace="ns", labels={"a": "b"}),
            "k8s",
            "n",
            "eth0",
            "cali1",
            ports=(EndpointPort("http", 80),),
        )
        out = codec.encode(endpoint)
        assert out["metadata"]["labels"] == {"a": "b"}
        assert out["spec"] == {
            "orchestrator": "k8s",
            "node": "n",
            "endpoint": "eth0",
            "interfaceName": "cali1",
            "ports": [{"name": "http", "protocol": "TCP", "port": 80}],
        }


class TestDefaultsOnRead:
    def pool(self, **spec):
        document = {"metadata": {"name": "p"}, "spec": {"cidr": "10.0.0.0/16"} | spec}
        return codec.decode_pool(ResourceKey("IPPool", "p"), document), document

    def test_pool(self):
        pool, document = self.pool()
        assert (pool.block_size, pool.node_selector, pool.allowed_uses) == (26, "all()", ("Workload", "Tunnel"))
        assert (pool.assignment_mode, pool.ipip_mode, pool.vxlan_mode) == ("Automatic", "Never", "Never")
        assert self.pool(cidr="fd00::/64")[0].block_size == 122
        assert codec.encode(pool) == document

    def test_empty_values_mean_the_default_and_stay_as_they_are(self):
        pool, document = self.pool(
            blockSize=0, nodeSelector="", allowedUses=[], assignmentMode="", ipipMode="", vxlanMode=""
        )
        assert pool == replace(self.pool()[0], extra={})
        assert codec.encode(pool) == document

    def test_a_change_writes_only_what_changed(self):
        pool, document = self.pool(later={"x": 1})
        out = codec.encode(replace(pool, disabled=True))
        assert out["spec"] == document["spec"] | {"disabled": True}

    def test_a_field_set_back_to_its_default_is_removed_when_upstream_omits_it(self):
        pool, _ = self.pool(disabled=True, blockSize=28)
        out = codec.encode(replace(pool, disabled=False, block_size=26))
        assert out["spec"] == {"cidr": "10.0.0.0/16", "blockSize": 26}

    def test_pool_that_is_not_allocatable(self):
        document = {
            "spec": {"cidr": "10.0.0.0/16"},
            "status": {"conditions": [{"type": "Allocatable", "status": "False"}]},
        }
        pool = codec.decode_pool(ResourceKey("IPPool", "p"), document)
        assert not pool.usable
        assert codec.encode(pool) == document
        deleted = codec.decode_pool(
            ResourceKey("IPPool", "p"), {"metadata": {"deletionTimestamp": "t"}, "spec": {"cidr": "10.0.0.0/16"}}
        )
        assert not deleted.usable

    def test_affinity_and_configuration(self):
        affinity = codec.decode_affinity(AffinityKey("n", CIDR), {})
        assert affinity.confirmed
        assert codec.encode(affinity) == {}
        config = codec.decode_ipam_config(IPAMConfigKey(), {})
        assert (config.strict_affinity, config.auto_allocate_blocks, config.max_blocks_per_host) == (False, False, 0)
        assert codec.encode(config) == {}
        assert codec.encode(replace(config, max_blocks_per_host=3)) == {"maxBlocksPerHost": 3}


@pytest.mark.parametrize("kind", ["Node", "IPPool", "ClusterInformation", "Profile"])
def test_a_resource_of_another_version_is_refused(kind):
    document = {"apiVersion": "projectcalico.org/v4", "kind": kind, "metadata": {"name": "n"}, "spec": {}}
    with pytest.raises(CorruptRecord, match=f'{kind} n: apiVersion: expected "projectcalico.org/v3"'):
        codec.decode(ResourceKey(kind, "n"), document)


def test_unknown_fields_survive_a_change_at_every_level():
    document = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "Node",
        "later": 1,
        "metadata": {"name": "n", "later": 2, "finalizers": ["f"]},
        "spec": {"later": 3, "bgp": {"ipv4Address": "10.0.0.1/24", "later": 4}, "interfaces": [{"name": "eth0"}]},
        "status": {"later": 5},
    }
    node = codec.decode_node(ResourceKey("Node", "n"), document)
    changed = codec.encode(replace(node, ipv4_ipip_tunnel=IPv4Address("10.65.0.1")))
    document["spec"]["bgp"]["ipv4IPIPTunnelAddr"] = "10.65.0.1"
    assert changed == document

    document = {
        "metadata": {"name": "w", "namespace": "ns"},
        "spec": {"ports": [{"name": "a", "port": 1, "protocol": 6, "later": 1}], "ipNATs": []},
        "status": {"later": 2},
    }
    endpoint = codec.decode_endpoint(ResourceKey("WorkloadEndpoint", "w", "ns"), document)
    assert endpoint.ports[0].protocol == "6"
    changed = codec.encode(replace(endpoint, ports=(*endpoint.ports, EndpointPort("b", 2)), mac="m"))
    assert changed["spec"]["ports"] == [*document["spec"]["ports"], {"name": "b", "protocol": "TCP", "port": 2}]
    assert changed["status"] == {"later": 2}
    assert changed["spec"]["mac"] == "m"


def test_as_numbers():
    def read(value):
        return codec.decode_node(ResourceKey("Node", "n"), {"spec": {"bgp": {"asNumber": value}}}).as_number

    assert [read(v) for v in (64512, "64512", "1.10", None)] == [64512, 64512, 65546, None]
