"""A node is not ready for what pods need now; what nothing needs yet is only degraded."""

from dataclasses import replace

import pytest

from cni_calico.nodeagent.dataplane.needs import MASQUERADE, select_unmet
from tests.unit.nodeagent.fabric import BLOCKS, NODES, node, pool, snapshot

IPIP, CROSS = pool("10.65.0.0/16", ipip="Always"), pool("10.65.0.0/16", ipip="CrossSubnet")
LACKING = {"tunl0": "cannot make tunl0: Operation not supported"}
NEAR = {name: NODES[name] for name in ("n1", "n2")}


def test_it_names_the_pool_the_nodes_and_the_way_out():
    (text,) = select_unmet(snapshot(IPIP), LACKING)
    assert text == ("IPPool 10.65.0.0-16 needs tunl0 to reach nodes n2, n3: cannot make tunl0: Operation not supported")
    crowd = {f"m{i}": node(f"m{i}", f"10.0.1.{i}/24") for i in range(1, 9)}
    (text,) = select_unmet(snapshot(IPIP, nodes=NODES | crowd), LACKING)
    assert "nodes m1, m2, m3 and 7 more" in text


@pytest.mark.parametrize(
    ("snap", "needed"),
    [
        (snapshot(CROSS), True),  # n3 is in another subnet
        (snapshot(CROSS, nodes=NEAR), False),
        (snapshot(IPIP, nodes={"n1": NODES["n1"]}), False),  # alone
        (snapshot(IPIP, nodes={"n1": NODES["n1"], "n2": node("n2", v6="fd00::2/64")}), False),
        (snapshot(pool("10.65.0.0/16")), False),
        (snapshot(replace(IPIP, disabled=True)), True),  # blocks of it are in use
        (snapshot(replace(IPIP, disabled=True), blocks=BLOCKS[:1]), False),
        (snapshot(IPIP, blocks=()), True),  # pods may come any moment
        (snapshot(IPIP, nodes={"n2": NODES["n2"]}), False),  # this node's record is told about elsewhere
    ],
)
def test_a_tunnel_is_needed_while_a_node_is_reached_through_it(snap, needed):
    assert bool(select_unmet(snap, LACKING)) is needed
    assert not select_unmet(snap, {})


def test_the_families_are_told_apart():
    pools = (pool("10.65.0.0/16", "Always"), pool("fd65::/64", "Always"))
    (text,) = select_unmet(snapshot(*pools), {"vxlan-v6.calico": "this node has no tunnel address for it yet"})
    assert text.startswith(
        f"IPPool {pools[1].metadata.name} needs vxlan-v6.calico to reach nodes n2, n3: this node has no tunnel"
    )


@pytest.mark.parametrize(("blocks", "needed"), [(BLOCKS, True), (BLOCKS[1:], False)])
def test_masquerading_is_needed_where_this_node_has_a_block(blocks, needed):
    lacking = {MASQUERADE[4]: "cannot run nft"}
    nat = pool("10.65.0.0/16", nat_outgoing=True)
    found = select_unmet(snapshot(nat, blocks=blocks), lacking)
    assert bool(found) is needed
    for text in found:
        assert text.startswith(f"IPPool {nat.metadata.name} has natOutgoing") and "cannot run nft; install nft" in text
        assert text.endswith("or set the pool's natOutgoing to false")
    assert not select_unmet(snapshot(replace(nat, nat_outgoing=False)), lacking)
