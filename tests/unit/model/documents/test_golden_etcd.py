"""Every record that upstream stored in etcd is read and written back field for field."""

import json
import pathlib

import pytest

from cni_calico.model.documents import codec
from cni_calico.model.keys import etcd_path, parse_path
from cni_calico.model.resources import Attribute, Block, Handle, IPAMConfig, IPPool, Node, WorkloadEndpoint

VECTORS = pathlib.Path(__file__).parents[3] / "golden" / "vectors"
DUMPS = sorted(VECTORS.glob("etcd-dump-*.json"))


def records(dump):
    return {path: kv["value"] for path, kv in json.loads(dump.read_text())["kvs"].items()}


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.stem)
def test_every_record_survives_reading_and_writing(dump):
    for path, document in records(dump).items():
        key = parse_path(path)
        assert key is not None, path
        assert etcd_path(key) == path
        assert codec.encode(codec.decode(key, document)) == document, path


@pytest.mark.parametrize("dump", DUMPS, ids=lambda d: d.stem)
def test_every_resource_survives_in_the_general_shape(dump):
    for path, document in records(dump).items():
        if "/resources/" in path:
            assert codec.encode(codec.decode_resource(parse_path(path), document)) == document


def test_all_ten_dumps_are_there():
    assert len(DUMPS) == 10


def read(path, dump="etcd-dump-02-second-add.json"):
    return codec.decode(parse_path(path), records(VECTORS / dump)[path])


def test_block_fields():
    block = read("/calico/ipam/v2/assignment/ipv4/block/10.65.141.64-26")
    assert isinstance(block, Block)
    assert block.node == "vm"
    assert block.allocations[:3] == (0, 1, None)
    assert block.unallocated == tuple(range(2, 64))
    assert block.attributes[1] == Attribute(
        "calnet.cnitool-89a4565a65011185e397", {"node": "vm", "timestamp": "2026-11-20 12:07:04.495907752 +0000 UTC"}
    )
    assert block.sequence_for == {0: 1795176388957943422, 1: 1795176388957943423}
    assert block.affinity_claim_time == "2026-11-20T12:06:28Z"
    assert block.extra == {}


def test_handle_config_and_pool_fields():
    handle = read("/calico/ipam/v2/handle/calnet.cnitool-89a4565a65011185e397")
    assert isinstance(handle, Handle)
    assert {str(k): v for k, v in handle.blocks.items()} == {"10.65.141.64/26": 1, "fd00:65::8d40/122": 1}
    config = read("/calico/ipam/v2/config")
    assert config == IPAMConfig(auto_allocate_blocks=True, extra={"kubeVirtVMAddressPersistence": "Enabled"})
    pool = read("/calico/resources/v3/projectcalico.org/ippools/pool6")
    assert isinstance(pool, IPPool)
    assert (str(pool.cidr), pool.block_size, pool.usable) == ("fd00:65::/112", 122, True)


def test_endpoint_and_node_fields():
    endpoint = read(
        "/calico/resources/v3/projectcalico.org/workloadendpoints/default/vm-cni-cnitool--89a4565a65011185e397-eth0"
    )
    assert isinstance(endpoint, WorkloadEndpoint)
    assert [str(n) for n in endpoint.ip_networks] == ["10.65.141.65/32", "fd00:65::8d40/128"]
    assert endpoint.interface_name == "calicnitool-89a"
    node = read("/calico/resources/v3/projectcalico.org/nodes/vm")
    assert isinstance(node, Node)
    assert node.ipv4 is None
    assert not node.bgp_present
