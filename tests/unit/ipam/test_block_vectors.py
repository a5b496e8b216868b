"""The history that upstream stored, replayed: the block computed here is the block stored there.

One difference is known and harmless: upstream's release by handle leaves the sequence number of a freed ordinal behind.
"""

import json
from pathlib import Path

import pytest

from cni_calico.ipam.block import allocate, allocate_address, new_block, next_write, release_handle
from cni_calico.model.documents.codec import decode_block, encode_block
from cni_calico.model.keys import BlockKey, parse_path

VECTORS = Path(__file__).parents[2] / "golden" / "vectors"
FIRST, SECOND = "calnet.cnitool-a6a677acb8bc88c337ae", "calnet.cnitool-89a4565a65011185e397"


def stored(step, path):
    [file] = VECTORS.glob(f"etcd-dump-{step}-*.json")
    document = json.loads(file.read_text())["kvs"][f"/calico/ipam/v2/assignment/{path}"]["value"]
    return document, decode_block(parse_path(f"/calico/ipam/v2/assignment/{path}"), document)


def same(block, step, path):
    """Whether the stored document is ours, except sequence numbers of free ordinals."""
    document, _ = stored(step, path)
    taken = [str(o) for o, index in enumerate(document["allocations"]) if index is not None]
    kept = {o: n for o, n in document["sequenceNumberForAllocation"].items() if o in taken}
    assert encode_block(block) == {**document, "sequenceNumberForAllocation": kept}
    return block


def who(step, path, handle_id):
    [found] = [a for a in stored(step, path)[1].attributes if a.handle_id == handle_id]
    return found.secondary


def created(step, path, node, *, writes):
    document, block = stored(step, path)
    return new_block(block.cidr, node, document["sequenceNumber"] - writes, document["affinity_claim_time"])


def test_first_block_from_first_add_to_last_del():
    path = "ipv4/block/10.65.141.64-26"
    block = created("01", path, "vm", writes=1)
    block, given = allocate(block, 1, FIRST, who("01", path, FIRST))
    assert [str(address) for address in given] == ["10.65.141.64"]
    block = same(next_write(block), "01", path)
    block, _ = allocate(block, 1, SECOND, who("02", path, SECOND))
    block = same(next_write(block), "02", path)
    for _ in range(12):  # ADDs and DELs between the dumps 07 and 08
        block = next_write(allocate(block, 1, "calnet.other", {"node": "vm"})[0])
        block = next_write(release_handle(block, "calnet.other")[0])
    block, given = release_handle(block, FIRST)
    assert [str(address) for address in given] == ["10.65.141.64"]
    block = same(next_write(block), "08", path)
    same(next_write(release_handle(block, SECOND)[0]), "09", path)


def test_second_family():
    path = "ipv6/block/fd00:65::8d40-122"
    block = created("02", path, "vm", writes=1)
    block = same(next_write(allocate(block, 1, SECOND, who("02", path, SECOND))[0]), "02", path)
    block = next_write(allocate(block, 1, "calnet.other", {"node": "vm"})[0])
    block = same(next_write(release_handle(block, "calnet.other")[0]), "08", path)
    same(next_write(release_handle(block, SECOND)[0]), "09", path)


def test_explicit_and_borrowed_address():
    path, handle_id = "ipv4/block/10.65.200.0-26", "calnet.dddddddddddddddddddd4"
    block = created("06", path, "vm", writes=1)
    block = allocate_address(block, block.cidr[7], handle_id, who("06", path, handle_id))
    block = same(next_write(block), "06", path)
    same(next_write(release_handle(block, handle_id)[0]), "09", path)

    path, third, borrower = "ipv4/block/10.65.248.128-26", "calnet.ccccccccccccccc3", "calnet.eeeeeeeeeeeeeeeeeee5"
    block = created("03", path, "nodeb", writes=1)
    block = same(next_write(allocate(block, 1, third, who("03", path, third))[0]), "03", path)
    block = allocate_address(block, block.cidr[5], borrower, who("07", path, borrower))
    block = same(next_write(block), "07", path)
    block = next_write(release_handle(block, borrower)[0])
    same(next_write(release_handle(block, third)[0]), "09", path)


def kubernetes(step, name):
    [file] = VECTORS.glob(f"k8s-{step}-*.json")
    [found] = [o for o in json.loads(file.read_text())["ipamblocks"] if o["metadata"]["name"] == name]
    spec = dict(found["spec"])
    spec["affinity_claim_time"] = spec.pop("affinityClaimTime")
    from ipaddress import ip_network

    return decode_block(BlockKey(ip_network(spec["cidr"])), spec)


def comparable(block):
    taken = {o for o, index in enumerate(block.allocations) if index is not None}
    kept = {o: n for o, n in block.sequence_for.items() if o in taken}
    return {**encode_block(block), "sequenceNumberForAllocation": {str(o): n for o, n in sorted(kept.items())}}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("10-65-104-0-26", (("04", [("del", "dual")]), ("05", [("del", "hw-src")]))),
        ("fd00-65--6800-122", (("04", [("del", "dual")]), ("05", [("del", "hw-src")]))),
        ("fd00-65--a680-122", (("05", [("del", "ipfamilies-dual")]),)),
        (
            "10-65-99-0-26",
            (
                ("03", [("add", "borrowed", 20)]),
                ("04", [("del", "plain")]),
                ("05", [("del", p) for p in ("borrowed", "hostport", "ipaddrs", "ipfamilies-dual")]),
            ),
        ),
    ],
)
def test_kubernetes_history(name, changes):
    block = kubernetes("02", name)
    for step, events in changes:
        wanted = kubernetes(step, name)
        for event in events:
            if event[0] == "add":
                [who] = [a for a in wanted.attributes if a.secondary["pod"] == event[1]]
                block = allocate_address(block, block.cidr[event[2]], who.handle_id, who.secondary)
            else:
                [who] = [a for a in block.attributes if a.secondary["pod"] == event[1]]
                block, _ = release_handle(block, who.handle_id)
            block = next_write(block)
        if step == "05" and name == "10-65-99-0-26":  # four DELs in whatever order they came
            assert sorted(block.unallocated) == sorted(wanted.unallocated)
            assert (block.empty, block.sequence_number) == (wanted.empty, wanted.sequence_number)
        else:
            assert comparable(block) == comparable(wanted)
