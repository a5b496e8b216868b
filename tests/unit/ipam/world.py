"""A store with pools, nodes and settings to allocate from, and what is true of it at any time."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

from cni_calico.datastore.interface import Write
from cni_calico.ipam.allocator import Allocator, AssignRequest
from cni_calico.model.documents.codec import decode, encode, new_metadata
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey, parse_path
from cni_calico.model.resources import IPAMConfig, IPPool, IPReservation, Resource
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore

START_NS = 1_795_176_388_000_000_000
SECOND = 1_000_000_000


class World:
    """``max_commit`` 1 is a store without transactions."""

    def __init__(self, *, max_commit: int = 60) -> None:
        self.store = MemoryStore(max_commit=max_commit)
        self.now_ns = START_NS
        self.slept = 0
        self._read: tuple = (-1, {})

    def clock(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept += 1

    def allocator(self, store=None, view=None) -> Allocator:
        return Allocator(store or self.store, view, clock=self.clock, rng=lambda: 0.5, sleep=self.sleep)

    def put(self, key, record) -> None:
        self.store.elsewhere(Write.put(key, encode(record)))

    def pool(self, name: str, cidr: str, block_size: int, **fields) -> None:
        pool = IPPool(new_metadata(name, uid="u", now="2026-11-20T12:06:00Z"), ip_network(cidr), block_size, **fields)
        self.put(ResourceKey("IPPool", name), pool)

    def node(self, name: str, **labels: str) -> None:
        metadata = new_metadata(name, uid="u", now="2026-11-20T12:06:00Z", labels=labels)
        self.put(ResourceKey("Node", name), Resource("Node", metadata))

    def reserve(self, *cidrs: str) -> None:
        metadata = new_metadata("reserved", uid="u", now="2026-11-20T12:06:00Z")
        self.put(ResourceKey("IPReservation", "reserved"), IPReservation(metadata, tuple(map(ip_network, cidrs))))

    def config(self, **fields) -> None:
        self.put(IPAMConfigKey(), IPAMConfig(**{"auto_allocate_blocks": True, **fields}))

    # -- what is there --------------------------------------------------------------------------------------------

    def records(self) -> dict:
        if self._read[0] == self.store.revision:
            return self._read[1]
        found: dict = {}
        self._read = (self.store.revision, found)
        for path, document in self.store.documents().items():
            key = parse_path(path)
            found[key] = decode(key, document)
        return found

    def blocks(self) -> dict:
        return {key.cidr: record for key, record in self.records().items() if isinstance(key, BlockKey)}

    def blocks_of(self, node: str, family: int) -> list:
        return [cidr for cidr, block in self.blocks().items() if block.node == node and cidr.version == family]

    def handles(self) -> dict:
        return {key.handle_id: record for key, record in self.records().items() if isinstance(key, HandleKey)}

    def affinities(self) -> dict:
        return {(k.node, k.cidr): record for k, record in self.records().items() if isinstance(k, AffinityKey)}

    def held(self) -> dict:
        """Addresses by handle, from the blocks."""
        held: dict = {}
        for block in self.blocks().values():
            for ordinal, index in enumerate(block.allocations):
                if index is not None:
                    held.setdefault(block.attributes[index].handle_id, set()).add(block.cidr[ordinal])
        return held

    def require_consistent(self, *, crashed: bool = False) -> None:
        """Blocks well-formed (decoding them proves it) and, unless somebody crashed, in agreement with the rest."""
        blocks, held, handles = self.blocks(), self.held(), self.handles()
        for block in blocks.values():
            free = {o for o, index in enumerate(block.allocations) if index is None}
            assert set(block.unallocated) == free
            assert set(range(len(block.attributes))) == {i for i in block.allocations if i is not None}
            assert not (block.empty and block.affinity is None), block.cidr
        counts = {
            handle_id: {
                cidr: sum(address in cidr for address in addresses if address.version == cidr.version)
                for cidr in {c for c in blocks for a in addresses if a.version == c.version and a in c}
            }
            for handle_id, addresses in held.items()
        }
        for handle_id, count in counts.items():  # never an address without its handle, crash or not
            assert handle_id in handles, f"{handle_id} holds {held[handle_id]} without a handle"
            for cidr, number in count.items():
                assert handles[handle_id].blocks.get(cidr, 0) >= number
        if crashed:
            return
        assert {handle_id: dict(handle.blocks) for handle_id, handle in handles.items()} == counts
        owned = {(block.node, cidr) for cidr, block in blocks.items() if block.node}
        assert {key for key, affinity in self.affinities().items() if affinity.confirmed} == owned
        assert set(self.affinities()) == owned


def request(handle_id: str, node: str = "n1", num4: int = 1, num6: int = 0, **fields) -> AssignRequest:
    return AssignRequest(node=node, handle_id=handle_id, attributes={"node": node}, num4=num4, num6=num6, **fields)


def texts(assigned) -> list[str]:
    return [str(item.address) for item in assigned]


__all__ = ["SECOND", "START_NS", "World", "ip_address", "ip_network", "request", "soon", "texts"]
