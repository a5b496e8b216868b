"""A pool that changes between IPIP and VXLAN: when a node goes over, and what stays meanwhile."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.host import PROTO_CALICO, HostRoute
from cni_calico.nodeagent.dataplane.desired import desired_state, with_staying_routes
from cni_calico.nodeagent.dataplane.switching import PATIENCE_S, REST_S, Switching, select_staying
from tests.unit.nodeagent.fabric import BLOCKS, FELIX, INTERFACES, NODES, node, pool, snapshot

CIDR = "10.65.0.0/16"
IPIP, VXLAN, PLAIN = pool(CIDR, ipip="Always"), pool(CIDR, vxlan="Always"), pool(CIDR)
DEVICES = {"ipip": "tunl0", "vxlan": "vxlan.calico"}
FIELDS = {"ipip": "ipv4_ipip_tunnel", "vxlan": "ipv4_vxlan_tunnel"}
WAYS = [(IPIP, VXLAN, "vxlan"), (VXLAN, IPIP, "ipip")]


def nodes(kind, *standing):
    """Those that have not told of their end have no address of that kind."""
    return {name: one if name in standing else replace(one, **{FIELDS[kind]: None}) for name, one in NODES.items()}


def select(switching, wanted, known, up, now, backend="bird"):
    return switching.select(snapshot(wanted, nodes=known), FELIX, backend, up, now)


@pytest.mark.parametrize(("before", "after", "kind"), WAYS)
def test_nobody_goes_over_before_all_stand(before, after, kind):
    switching, up = Switching(), {"eth0", *DEVICES.values()} - {DEVICES[kind]}
    assert select(switching, before, NODES, up, 0).pools == (before,)
    ways = select(switching, after, nodes(kind), up, 1)  # the device is made in this pass
    assert ways.pools == (before,) and ways.coming == (after,) and not ways.leaving
    up |= {DEVICES[kind]}
    assert select(switching, after, nodes(kind, "n1", "n2"), up, 2).pools == (before,)
    ways = select(switching, after, NODES, up, 3)
    assert ways.pools == (after,) and not ways.coming and ways.leaving == (before,)
    assert select(switching, after, NODES, up, 3 + REST_S - 0.1).leaving == (before,)
    ways = select(switching, after, NODES, up, 3 + REST_S)
    assert ways.pools == (after,) and not ways.pending and not ways.overdue


@pytest.mark.parametrize(("before", "after", "kind"), WAYS)
def test_a_node_that_is_down_is_not_waited_for_for_ever(before, after, kind):
    switching, known = Switching(), nodes(kind, "n1", "n2")
    select(switching, before, known, DEVICES.values(), 0)
    assert select(switching, after, known, DEVICES.values(), 5).pools == (before,)
    assert select(switching, after, known, DEVICES.values(), 5 + PATIENCE_S - 0.1).pools == (before,)
    assert select(switching, after, known, DEVICES.values(), 5 + PATIENCE_S).pools == (after,)


def test_without_an_end_of_its_own_a_node_stays_where_it_is_and_says_so():
    switching, known = Switching(), nodes("vxlan", "n2", "n3")
    select(switching, IPIP, known, {"tunl0"}, 0)
    assert not select(switching, VXLAN, known, {"tunl0"}, 1).overdue
    ways = select(switching, VXLAN, known, {"tunl0", "vxlan.calico"}, 1 + 10 * PATIENCE_S)
    assert ways.pools == (IPIP,) and ways.overdue == {VXLAN.metadata.name}


@pytest.mark.parametrize(
    ("before", "after", "felix", "backend"),
    [
        (None, VXLAN, FELIX, "bird"),  # a start
        (PLAIN, VXLAN, FELIX, "bird"),
        (IPIP, PLAIN, FELIX, "bird"),
        (IPIP, pool(CIDR, ipip="CrossSubnet"), FELIX, "bird"),
        (IPIP, VXLAN, replace(FELIX, vxlan_enabled=False), "bird"),  # there will be no device
        (IPIP, VXLAN, FELIX, "none"),
    ],
)
def test_other_changes_are_made_at_once(before, after, felix, backend):
    switching = Switching()
    if before is not None:
        switching.select(snapshot(before), felix, backend, {"tunl0"}, 0)
    ways = switching.select(snapshot(after), felix, backend, {"tunl0"}, 1)
    assert ways.pools == (after,) and not ways.coming


def test_who_changes_his_mind_leaves_open_what_others_may_use_already():
    switching, up = Switching(), DEVICES.values()
    select(switching, IPIP, nodes("vxlan", "n1"), up, 0)
    assert select(switching, VXLAN, nodes("vxlan", "n1"), up, 1).pools == (IPIP,)
    ways = select(switching, IPIP, nodes("vxlan", "n1"), up, 2)
    assert ways.pools == (IPIP,) and ways.leaving == (VXLAN,) and not ways.coming


@given(
    st.lists(st.tuples(st.sampled_from([IPIP, VXLAN, PLAIN]), st.sets(st.sampled_from(list(NODES))), st.floats(0, 20)))
)
def test_what_is_used_has_its_device(steps):
    """Whatever changes, and however often: what is used now, or may still be used by others, is asked for."""
    switching, now, last = Switching(), 0.0, None
    for wanted, standing, later in steps:
        now += later
        ways = select(switching, wanted, nodes("vxlan", *standing), set(DEVICES.values()), now)
        (used,) = ways.pools
        assert used == wanted or ways.coming == (wanted,)
        kinds = [used, *ways.coming, *ways.leaving]
        devices = desired_state(
            snapshot(used, nodes=NODES), INTERFACES, FELIX, "bird", (*ways.coming, *ways.leaving)
        ).devices
        assert ("tunl0" in devices) == any(one.ipip_mode != "Never" for one in kinds)
        assert ("vxlan.calico" in devices) == any(one.vxlan_mode != "Never" for one in kinds)
        switched = (
            last is not None and {last.ipip_mode, used.ipip_mode} == {"Always", "Never"} and PLAIN not in (last, used)
        )
        assert not switched or last in ways.leaving
        last = used


def test_routes_stay_until_birds_are_there():
    """VXLAN to IPIP: BIRD's routes have another metric, so that both can be there."""
    before = desired_state(snapshot(VXLAN, blocks=BLOCKS), INTERFACES, FELIX, "bird")
    mine = [replace(route, protocol=PROTO_CALICO) for route in before.routes if "10.65." in str(route)]
    assert len(mine) == 3  # with the blackhole
    after = desired_state(snapshot(IPIP, blocks=BLOCKS), INTERFACES, FELIX, "bird")
    assert not any("10.65." in str(route) for route in after.routes)
    birds = HostRoute(mine[-1].dst, "tunl0", NODES["n3"].ipv4.ip, protocol=12, metric=1024)
    view = snapshot(IPIP, blocks=BLOCKS)
    kept = with_staying_routes(after, view, [VXLAN], INTERFACES, [*mine, birds], FELIX, "bird").routes
    assert kept == after.routes | {route for route in mine if route.dst != birds.dst} and len(kept) == 2 + len(
        after.routes
    )
    assert with_staying_routes(after, view, [VXLAN], INTERFACES, [birds], FELIX, "bird").routes == after.routes


def test_what_the_agent_makes_itself_takes_the_old_routes_place():
    old = HostRoute(BLOCKS[1].cidr, "vxlan.calico", NODES["n2"].ipv4_vxlan_tunnel, onlink=True, protocol=PROTO_CALICO)
    new = HostRoute(BLOCKS[1].cidr, "tunl0", NODES["n2"].ipv4.ip, onlink=True, protocol=PROTO_CALICO)
    assert select_staying([old], [new], [old]) == frozenset()
    assert select_staying([old], [], [old]) == {old}


def test_a_new_node_in_the_old_way_is_asked_too():
    """One that came meanwhile counts as the others."""
    switching = Switching()
    select(switching, IPIP, NODES, DEVICES.values(), 0)
    more = {**NODES, "n4": node("n4", "10.0.0.4/24")}
    assert select(switching, VXLAN, more, DEVICES.values(), 1).pools == (IPIP,)
