"""The consistency checks: upstream's stored states are sound, and each way of breaking one is found as what it is."""

import copy
import json
import pathlib
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.errors import CorruptRecord
from cni_calico.ipam.block import addresses_of
from cni_calico.ipam.consistency import Inconsistency, Records, check_records
from cni_calico.model.documents import codec
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, ResourceKey, parse_path
from cni_calico.model.kubernetes import custom as crd
from cni_calico.model.kubernetes import nodes as crd_nodes
from cni_calico.model.kubernetes import pods as crd_pods
from cni_calico.model.resources import Affinity, Handle

VECTORS = pathlib.Path(__file__).parents[2] / "golden" / "vectors"
ETCD = sorted(VECTORS.glob("etcd-dump-*.json"))
KUBERNETES = sorted(VECTORS.glob("k8s-*.json"))


def gather(pairs):
    found = Records({}, {}, {}, [], [], [], [])
    for key, document in pairs:
        try:
            record = codec.decode(key, document)
        except CorruptRecord as e:
            found.corrupt.append((codec.describe(key), str(e)))
            continue
        if isinstance(key, BlockKey):
            found.blocks[key.cidr] = record
        elif isinstance(key, HandleKey):
            found.handles[key.handle_id] = record
        elif isinstance(key, AffinityKey):
            found.affinities[key] = record
        elif isinstance(key, ResourceKey):
            lists = {"WorkloadEndpoint": found.endpoints, "Node": found.nodes, "IPPool": found.pools}
            lists.get(key.kind, []).append(record)
    return found


def of_etcd(dump):
    return gather((parse_path(path), kv["value"]) for path, kv in json.loads(dump.read_text())["kvs"].items())


def of_kubernetes(dump):
    content = json.loads(dump.read_text())
    readers = {"nodes": crd_nodes.read_node, "pods": crd_pods.read_pod}
    found = (readers.get(plural, crd.read_object)(obj) for plural, objs in content.items() for obj in objs)
    return gather(filter(None, found))


@pytest.mark.parametrize("dump", ETCD, ids=lambda d: d.stem)
def test_what_upstream_left_in_etcd_is_sound(dump):
    assert check_records(of_etcd(dump)).findings == ()


@pytest.mark.parametrize("dump", KUBERNETES, ids=lambda d: d.stem)
def test_what_upstream_left_in_kubernetes_is_sound(dump):
    assert check_records(of_kubernetes(dump)).findings == ()


@pytest.fixture
def records():
    return copy.deepcopy(of_etcd(VECTORS / "etcd-dump-07-add-borrowed-ip.json"))


BLOCK = ip_network("10.65.141.64/26")
HANDLE = "calnet.cnitool-a6a677acb8bc88c337ae"


def found(records, *, but=()):
    return {(finding.problem, finding.subject) for finding in check_records(records).findings} - set(but)


def test_leaked_address_and_what_it_belongs_to(records):
    records.endpoints[:] = [e for e in records.endpoints if "a6a677acb8bc88c337ae" not in e.metadata.name]
    report = check_records(records)
    (finding,) = report.findings
    assert (finding.problem, finding.address, finding.block, finding.handle_id, finding.node) == (
        Inconsistency.LEAKED,
        ip_address("10.65.141.64"),
        BLOCK,
        HANDLE,
        "vm",
    )
    (allocation,) = [a for a in report.allocations if not a.in_use]
    assert (allocation.ordinal, allocation.sequence_number) == (0, 1795176388957943422)
    assert report.of(Inconsistency.LEAKED) == report.findings


def test_addresses_of_services_and_load_balancers_are_in_use(records):
    records.endpoints.clear()
    block = records.blocks[BLOCK]
    held = replace(block.attributes[0], secondary={"service": "ns/web"})
    records.blocks[BLOCK] = replace(block, attributes=(held, block.attributes[1]))
    leaked = {finding.address for finding in check_records(records).of(Inconsistency.LEAKED)}
    assert ip_address("10.65.141.64") not in leaked
    assert ip_address("10.65.141.65") in leaked
    for cidr, one in records.blocks.items():
        records.blocks[cidr] = replace(one, affinity="virtual:load-balancer")
    assert check_records(records).of(Inconsistency.LEAKED) == ()


def test_tunnel_addresses_are_in_use(records):
    endpoint = next(e for e in records.endpoints if "a6a677acb8bc88c337ae" in e.metadata.name)
    records.endpoints.remove(endpoint)
    node = records.nodes[0]
    for change in (
        {"ipv4_ipip_tunnel": ip_address("10.65.141.64")},
        {"ipv4_vxlan_tunnel": ip_address("10.65.141.64")},
        {"extra": {"wireguard": {"interfaceIPv4Address": "10.65.141.64", "interfaceIPv6Address": "x"}}},
    ):
        records.nodes[0] = replace(node, **change)
        assert found(records) == set(), change


def test_address_used_twice(records):
    records.endpoints.append(
        replace(records.endpoints[0], metadata=replace(records.endpoints[0].metadata, name="twin"))
    )
    address = str(records.endpoints[0].ip_networks[0].network_address)
    assert found(records) == {(Inconsistency.DOUBLE, address)}


def test_addresses_in_use_that_nobody_allocated(records):
    networks = (ip_network("10.65.9.9/32"), ip_network("192.0.2.1/32"))
    records.endpoints.append(replace(records.endpoints[0], ip_networks=networks))
    assert found(records) == {(Inconsistency.UNALLOCATED, "10.65.9.9"), (Inconsistency.OUTSIDE_POOLS, "192.0.2.1")}


def test_handles_that_do_not_fit(records):
    handle = records.handles.pop(HANDLE)
    assert found(records) == {(Inconsistency.MISSING_HANDLE, HANDLE)}
    records.handles[HANDLE] = replace(handle, blocks={BLOCK: 2})
    assert found(records) == {(Inconsistency.HANDLE_COUNT, HANDLE)}
    records.handles[HANDLE] = replace(handle, blocks={BLOCK: 1, ip_network("10.65.0.0/26"): 1})
    assert found(records) == {(Inconsistency.HANDLE_COUNT, HANDLE)}
    records.handles[HANDLE] = handle
    records.handles["gone"] = Handle({ip_network("10.65.0.0/26"): 1})
    records.handles["empty"] = Handle({})
    assert found(records) == {(Inconsistency.LEAKED_HANDLE, "gone"), (Inconsistency.LEAKED_HANDLE, "empty")}


def test_handles_of_kubernetes_are_in_lower_case(records):
    block = records.blocks[BLOCK]
    upper = replace(block.attributes[0], handle_id=HANDLE.upper())
    records.blocks[BLOCK] = replace(block, attributes=(upper, block.attributes[1]))
    assert addresses_of(records.blocks[BLOCK], HANDLE.upper())
    assert found(records) == set()


def test_address_without_handle(records):
    block = records.blocks[BLOCK]
    nameless = replace(block.attributes[0], handle_id=None)
    records.blocks[BLOCK] = replace(block, attributes=(nameless, block.attributes[1]))
    assert found(records) == {(Inconsistency.NO_HANDLE_ID, "10.65.141.64"), (Inconsistency.LEAKED_HANDLE, HANDLE)}


def test_blocks_and_affinities_that_do_not_fit(records):
    key = AffinityKey("vm", BLOCK)
    block, affinity = records.blocks[BLOCK], records.affinities.pop(key)
    assert found(records) == {(Inconsistency.NO_AFFINITY, f"block {BLOCK}")}
    records.affinities[key] = Affinity("pendingDeletion")
    assert found(records) == {(Inconsistency.UNFINISHED, f"affinity of {BLOCK} to vm")}
    records.affinities[key] = affinity
    records.blocks[BLOCK] = replace(block, affinity=None)
    assert found(records) == {(Inconsistency.WRONG_AFFINITY, f"affinity of {BLOCK} to vm")}
    records.blocks[BLOCK] = block
    records.affinities[AffinityKey("nodeb", BLOCK)] = affinity
    assert found(records) == {
        (Inconsistency.TWO_AFFINITIES, f"block {BLOCK}"),
        (Inconsistency.WRONG_AFFINITY, f"affinity of {BLOCK} to nodeb"),
    }
    del records.affinities[AffinityKey("nodeb", BLOCK)]
    free = ip_network("10.65.0.0/26")
    records.affinities[AffinityKey("stranger", free)] = affinity
    subject = f"affinity of {free} to stranger"
    assert found(records) == {(Inconsistency.NO_BLOCK, subject), (Inconsistency.UNKNOWN_NODE, subject)}


def test_lost_ordinals_and_blocks_outside_pools(records):
    block = records.blocks[BLOCK]
    records.blocks[BLOCK] = replace(block, unallocated=block.unallocated[:-2])
    assert found(records) == {(Inconsistency.LOST_ORDINAL, f"block {BLOCK}")}
    records.blocks[BLOCK] = block
    records.pools[:] = [pool for pool in records.pools if pool.cidr.version == 6]
    report = check_records(records)
    assert {finding.block for finding in report.of(Inconsistency.BLOCK_OUTSIDE_POOLS)} == {
        cidr for cidr in records.blocks if cidr.version == 4
    }


def test_corrupt_records_are_named(records):
    records.corrupt.append(("block 10.0.0.0/26", "cannot read block 10.0.0.0/26: ..."))
    assert found(records) == {(Inconsistency.CORRUPT, "block 10.0.0.0/26")}
