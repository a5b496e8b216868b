"""Upstream's names and labels for what address management holds."""

from __future__ import annotations

from ipaddress import ip_network

from cni_calico.controllers.ipam_metrics import IpamNumbers, render_ipam_metrics
from cni_calico.ipam.lost.leaks import BlockFacts, Holding, IdleHandle
from tests.unit.nodeagent.fabric import pool

ONE, TWO, LOST = (ip_network(text) for text in ("10.65.0.0/26", "10.65.0.64/26", "192.0.2.0/26"))


def held(block, ordinal, node):
    return Holding(ordinal, block, f"net.{ordinal}", 1, node, "ns", f"p{ordinal}")


def test_by_pool_and_node():
    lent, mine = held(ONE, 2, "n2"), held(ONE, 1, "n1")
    blocks = {
        ONE: BlockFacts("n1", (mine, lent)),
        TWO: BlockFacts("n2", ()),
        LOST: BlockFacts(None, frozenset((held(LOST, 0, ""),))),
    }
    four = pool("10.65.0.0/16")
    name = four.metadata.name
    numbers = IpamNumbers(blocks, [mine, IdleHandle("h", "1")], (four,), {(name, "n9"): 3})
    lines = {line for line in render_ipam_metrics(numbers).splitlines() if not line.startswith("#")}
    assert lines == {
        f'ipam_allocations_in_use{{ippool="{name}",node="n1"}} 1',
        f'ipam_allocations_in_use{{ippool="{name}",node="n2"}} 1',
        'ipam_allocations_in_use{ippool="no_ippool",node="unknown_node"} 1',
        f'ipam_allocations_borrowed{{ippool="{name}",node="n1"}} 0',
        f'ipam_allocations_borrowed{{ippool="{name}",node="n2"}} 1',
        'ipam_allocations_borrowed{ippool="no_ippool",node="unknown_node"} 0',
        f'ipam_allocations_gc_candidates{{ippool="{name}",node="n1"}} 1',
        f'ipam_allocations_gc_reclamations{{ippool="{name}",node="n9"}} 3',
        f'ipam_blocks{{ippool="{name}",node="n1"}} 1',
        f'ipam_blocks{{ippool="{name}",node="n2"}} 1',
        'ipam_blocks{ippool="no_ippool",node="no_affinity"} 1',
        f'ipam_ippool_size{{ippool="{name}"}} 65536',
        'ipam_allocations_per_node{node="n1"} 1',
        'ipam_allocations_per_node{node="n2"} 1',
        'ipam_allocations_per_node{node="unknown_node"} 1',
        'ipam_allocations_borrowed_per_node{node="n1"} 0',
        'ipam_allocations_borrowed_per_node{node="n2"} 1',
        'ipam_allocations_borrowed_per_node{node="unknown_node"} 0',
        'ipam_blocks_per_node{node="n1"} 1',
        'ipam_blocks_per_node{node="n2"} 1',
        'ipam_blocks_per_node{node="no_affinity"} 1',
    }


def test_every_family_is_named_also_when_it_is_empty():
    names = {line.split()[2] for line in render_ipam_metrics(IpamNumbers()).splitlines() if line.startswith("# TYPE")}
    assert {"ipam_blocks", "ipam_ippool_size", "ipam_allocations_gc_reclamations"} <= names and len(names) == 9
