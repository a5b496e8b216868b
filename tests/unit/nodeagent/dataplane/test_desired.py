"""The data plane as a function of the snapshot: tunnels, routes, blackholes, neighbours, MTUs, masquerading."""

from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ipam.pools import pool_of
from cni_calico.model.host import ForwardingEntry, HostInterface, HostRoute, NeighbourEntry
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Attribute, Block
from cni_calico.nodeagent.context.felix import FelixSettings, parse_felix
from cni_calico.nodeagent.dataplane.desired import desired_state, with_routes_in_doubt
from cni_calico.nodeagent.dataplane.encapsulation import derived_mac
from cni_calico.nodeagent.dataplane.endpoints import desired_endpoint_settings
from cni_calico.nodeagent.dataplane.routes import decide_writer
from cni_calico.nodeagent.view.snapshot import reduce_block
from cni_calico.plugin.network.plan import PodPlan, desired_host_sysctls
from tests.unit.nodeagent.fabric import BLOCKS, FELIX, INTERFACES, NODES, block, node, pool, snapshot, workload

VXLAN4, CROSS4 = pool("10.65.0.0/16", "Always"), pool("10.65.0.0/16", "CrossSubnet")
VXLAN6, CROSS6 = pool("fd65::/64", "Always"), pool("fd65::/64", "CrossSubnet")
IPIP, IPIP_CROSS = pool("10.65.0.0/16", ipip="Always"), pool("10.65.0.0/16", ipip="CrossSubnet")
PLAIN = pool("10.65.0.0/16")
UNREAD = frozenset({ResourceKey("IPPool", "odd")})
OURS = replace(FELIX, program_cluster_routes="Enabled")


def state(snap, felix=FELIX, backend="bird", interfaces=INTERFACES):
    return desired_state(snap, interfaces, felix, backend)


def routes(snap, felix=FELIX, backend="bird", protocol=80):
    return sorted(str(r) for r in state(snap, felix, backend).routes if r.protocol == protocol)


# -- routes -----------------------------------------------------------------------------------------------------------


def test_vxlan_always():
    assert routes(snapshot(VXLAN4)) == [
        "10.65.2.0/26 via 10.65.2.0 dev vxlan.calico onlink",
        "10.65.3.0/26 via 10.65.3.0 dev vxlan.calico onlink",
        "blackhole 10.65.1.0/26",
    ]


def test_vxlan_cross_subnet():
    assert routes(snapshot(CROSS4)) == [
        "10.65.2.0/26 via 10.0.0.2 dev eth0",
        "10.65.3.0/26 via 10.65.3.0 dev vxlan.calico onlink",
        "blackhole 10.65.1.0/26",
    ]


def test_both_families():
    assert routes(snapshot(VXLAN4, CROSS6)) == [
        "10.65.2.0/26 via 10.65.2.0 dev vxlan.calico onlink",
        "10.65.3.0/26 via 10.65.3.0 dev vxlan.calico onlink",
        "blackhole 10.65.1.0/26",
        "blackhole fd65::1:0/122",
        "fd65::2:0/122 via fd00::2 dev eth0",
        "fd65::3:0/122 via fd65::3:0 dev vxlan-v6.calico onlink",
    ]


def test_ipip_and_plain_routes_are_birds_unless_told_otherwise():
    for pools in (IPIP, IPIP_CROSS, PLAIN):
        assert routes(snapshot(pools)) == []
    assert routes(snapshot(IPIP), OURS) == [
        "10.65.2.0/26 via 10.0.0.2 dev tunl0 onlink",
        "10.65.3.0/26 via 10.0.9.3 dev tunl0 onlink",
        "blackhole 10.65.1.0/26",
    ]
    assert routes(snapshot(IPIP_CROSS), OURS)[:2] == [
        "10.65.2.0/26 via 10.0.0.2 dev eth0",
        "10.65.3.0/26 via 10.0.9.3 dev tunl0 onlink",
    ]
    assert routes(snapshot(PLAIN), OURS) == ["10.65.2.0/26 via 10.0.0.2 dev eth0", "blackhole 10.65.1.0/26"]


def test_without_bird_the_agent_makes_all_routes_and_without_networking_none():
    assert routes(snapshot(IPIP), backend="vxlan") == routes(snapshot(IPIP), OURS)
    none = state(snapshot(VXLAN4, endpoints=[workload("w", "calia", "10.65.1.5/32")]), backend="none")
    assert [str(r) for r in none.routes] == ["10.65.1.5/32 dev calia"]
    assert not none.devices and not none.neighbours and not none.forwarding


def test_an_address_held_outside_its_block_has_its_own_route():
    lent = (block("10.65.1.0/26", "n1", n2="10.65.1.20"), block("10.65.2.0/26", "n2", n3="10.65.2.9", n1="10.65.2.8"))
    assert routes(snapshot(VXLAN4, blocks=lent)) == [
        "10.65.1.20/32 via 10.65.2.0 dev vxlan.calico onlink",
        "10.65.2.0/26 via 10.65.2.0 dev vxlan.calico onlink",
        "10.65.2.9/32 via 10.65.3.0 dev vxlan.calico onlink",
        "blackhole 10.65.1.0/26",
    ]


def test_who_cannot_be_reached_gets_no_route_and_hurts_nobody():
    nodes = {
        **NODES,
        "n3": node("n3", "10.0.9.3/24"),  # no tunnel address yet
        "n4": node("n4"),  # no address
    }
    blocks = (*BLOCKS, block("10.65.4.0/26", "n4"), block("10.65.5.0/26", "gone"), block("10.99.0.0/26", "n2"))
    assert routes(snapshot(VXLAN4, nodes=nodes, blocks=blocks)) == [
        "10.65.2.0/26 via 10.65.2.0 dev vxlan.calico onlink",
        "blackhole 10.65.1.0/26",
    ]


def test_a_block_of_nobody_and_a_block_of_one_address():
    blocks = (block("10.65.7.0/26", None, n2="10.65.7.1"), block("10.65.1.77/32", "n1"))
    assert routes(snapshot(VXLAN4, blocks=blocks)) == ["10.65.7.1/32 via 10.65.2.0 dev vxlan.calico onlink"]


def test_the_narrowest_pool_decides():
    inner = pool("10.65.2.0/24")
    assert pool_of((VXLAN4, inner), ip_network("10.65.2.0/26")) is inner
    assert pool_of((VXLAN4, inner), ip_network("10.65.3.0/26")) is VXLAN4
    assert pool_of((VXLAN4, inner), ip_network("fd65::/122")) is None


def test_workloads():
    endpoints = [workload("a", "calia", "10.65.1.5/32", "fd65::1:5/128"), workload("b", "calib", "10.65.1.6/32")]
    found = state(snapshot(endpoints=endpoints))
    assert sorted(map(str, found.routes)) == ["10.65.1.5/32 dev calia", "fd65::1:5/128 dev calia"]
    assert {route.scope for route in found.routes if route.dst.version == 4} == {"link"}
    assert ((("ipv4", "conf", "calia", "proxy_arp"), "1")) in found.settings
    assert not any("calib" in path for path, _ in found.settings)  # its interface is not there


@pytest.mark.parametrize(("v4", "v6"), [(True, True), (True, False), (False, True)])
def test_interface_settings_are_the_plugins(v4, v6):
    addresses = [ip_address("10.65.1.5")] * v4 + [ip_address("fd65::5")] * v6
    plan = PodPlan("calia", "eth0", 1500, tuple(addresses))
    endpoint = workload("a", "calia", *map(str, addresses))
    assert desired_endpoint_settings({"calia": endpoint}) == list(desired_host_sysctls(plan))


@pytest.mark.parametrize(
    ("felix", "bird", "backend", "agent_makes", "said"),
    [
        ("Disabled", True, "bird", False, ""),
        ("Enabled", False, "bird", True, ""),
        ("Enabled", True, "bird", True, "BIRD does not"),
        ("Disabled", False, "bird", True, "nobody else would"),
        ("Disabled", None, "bird", False, ""),  # not known yet: nothing changes hands
        ("Enabled", None, "bird", True, ""),
        ("Disabled", False, "vxlan", False, ""),  # there is no BIRD
    ],
)
def test_who_makes_the_routes_to_other_nodes(felix, bird, backend, agent_makes, said):
    found, contradiction = decide_writer(replace(FELIX, program_cluster_routes=felix), bird, backend)
    assert (found.program_cluster_routes == "Enabled") == agent_makes
    assert said in contradiction and bool(contradiction) == bool(said)


# -- devices ----------------------------------------------------------------------------------------------------------


def test_vxlan_device():
    device = state(snapshot(VXLAN4)).devices["vxlan.calico"]
    assert (device.vni, device.port, device.parent, device.mtu) == (4096, 4789, "eth0", 1450)
    assert (str(device.local), str(device.address)) == ("10.0.0.1", "10.65.1.0")
    assert device.mac == derived_mac("n1", 4)
    v6 = state(snapshot(VXLAN6)).devices["vxlan-v6.calico"]
    assert (v6.mtu, str(v6.local), v6.mac) == (1430, "fd00::1", derived_mac("n1", 6))


def test_macs():
    # echo -n n1 | sha1sum; echo -n n1-v6 | sha1sum
    import hashlib

    expected = hashlib.sha1(b"n1", usedforsecurity=False).digest()[:5].hex(":")
    assert derived_mac("n1", 4) == f"66:{expected}"
    stored = {**NODES, "n1": replace(NODES["n1"], vxlan_tunnel_mac="66:AA:bb:cc:dd:ee")}
    assert state(snapshot(VXLAN4, nodes=stored)).devices["vxlan.calico"].mac == "66:aa:bb:cc:dd:ee"


def test_vteps():
    found = state(snapshot(CROSS4))
    assert NeighbourEntry("vxlan.calico", ip_address("10.65.3.0"), derived_mac("n3", 4)) in found.neighbours
    assert ForwardingEntry("vxlan.calico", derived_mac("n3", 4), ip_address("10.0.9.3")) in found.forwarding
    assert len(found.neighbours) == len(found.forwarding) == 2


def test_ipip_device():
    device = state(snapshot(IPIP)).devices["tunl0"]
    assert (device.kind, device.mtu, str(device.address)) == ("ipip", 1480, "10.65.1.1")
    assert "tunl0" not in state(snapshot(pool("fd65::/64"))).devices


def test_parameters_of_devices():
    felix = replace(FELIX, vxlan_mtu=1400, vxlan_mtu_v6=1380, vxlan_port=8472, vxlan_vni=77, mtu_v4_ipip=1300)
    devices = state(snapshot(VXLAN4, VXLAN6, pool("10.66.0.0/16", ipip="Always")), felix).devices
    assert (devices["vxlan.calico"].mtu, devices["vxlan.calico"].port, devices["vxlan.calico"].vni) == (1400, 8472, 77)
    assert (devices["vxlan-v6.calico"].mtu, devices["tunl0"].mtu) == (1380, 1300)
    assert state(snapshot(VXLAN4), replace(FELIX, vxlan_enabled=False)).devices == {}
    assert "vxlan.calico" in state(snapshot(PLAIN), replace(FELIX, vxlan_enabled=True)).devices


@pytest.mark.parametrize(
    ("own", "why"),
    [
        (node("n1", None, "fd00::1/64", "10.65.1.0"), "this node has no IPv4 address"),
        (node("n1", "10.0.0.99/24", vtep="10.65.1.0"), "no interface of this host holds the node's address 10.0.0.99"),
    ],
)
def test_what_keeps_a_device_from_being_made_is_told(own, why):
    found = state(snapshot(VXLAN4, nodes={**NODES, "n1": own}))
    assert found.devices == {}
    assert found.problems == (f"cannot make vxlan.calico: {why}",)
    assert not any("vxlan" in str(route) for route in found.routes)


def test_no_record_of_this_node():
    found = state(snapshot(VXLAN4, nodes={}, endpoints=[workload("w", "calia", "10.65.1.5/32")]))
    assert [str(route) for route in found.routes] == ["10.65.1.5/32 dev calia"]
    assert found.problems == ("there is no Node n1: run calico-node -startup",)


def test_pools_that_make_no_sense_disturb_no_other():
    """Readable, but stored without calicoctl's checks; the others are used as if these were not there."""
    wrong = replace(pool("fd65::/48", ipip="Always"), block_size=26)
    assert set(state(snapshot(VXLAN4, wrong)).devices) == {"vxlan.calico"}


def test_while_something_cannot_be_read_nothing_is_taken_away():
    """An own record that is there and unreadable is not an own record that is not there."""
    found = state(snapshot(VXLAN4, nodes={}, unread=UNREAD, problems=("Node n1 is wrong",)))
    assert found.additive and found.problems == ("Node n1 is wrong",)
    assert found.mtu == 0  # unknown: the file stays
    complete = state(snapshot(VXLAN4))
    assert not complete.additive and complete.mtu == 1450
    assert state(snapshot(VXLAN4, unread=UNREAD)).routes == complete.routes


@pytest.mark.parametrize(
    ("pools", "mtu"),
    [
        ((PLAIN,), 1500),
        ((IPIP,), 1480),
        ((VXLAN4,), 1450),
        ((CROSS4, VXLAN6), 1430),
        ((pool("fd65::/64", ipip="Always"),), 1500),
    ],
)
def test_the_mtu_of_workloads(pools, mtu):
    assert state(snapshot(*pools)).mtu == mtu


def test_the_mtu_is_that_of_the_nodes_own_card():
    jumbo = {**NODES, "n1": replace(NODES["n1"], ipv4=ip_interface("192.0.2.1/24"), ipv6=None)}
    assert state(snapshot(PLAIN, nodes=jumbo)).mtu == 9000
    assert state(snapshot(VXLAN4, nodes=jumbo)).devices["vxlan.calico"].mtu == 8950


@pytest.mark.parametrize(
    ("pattern", "workloads", "tunnel"),
    [("^eth", 1450, 1450), ("^eth1", 8950, 8950), ("^cali", 1410, 1410), ("^nothing", 1410, 1410)],
)
def test_the_mtu_is_the_smallest_of_the_interfaces_that_a_pattern_chooses(pattern, workloads, tunnel):
    """1460 without any, as upstream has it; of those that are up, and not of workloads, which would shrink theirs."""
    felix = parse_felix({}, None, {"mtuIfacePattern": pattern}).settings
    down = HostInterface(7, "eth7", False, 600)
    found = state(snapshot(VXLAN4), felix, interfaces=(*INTERFACES, down))
    assert (found.mtu, found.devices["vxlan.calico"].mtu) == (workloads, tunnel)


# -- the rest ---------------------------------------------------------------------------------------------------------


def nat(family, *pools, felix=FELIX):
    (found,) = (item for item in state(snapshot(*pools), felix).nat if item.family == family)
    return found


@pytest.mark.parametrize(
    ("override", "plain", "translated"),
    [("", True, True), ("MASQFullyRandom=false", False, True), ("SNATFullyRandom=false", True, False)],
)
def test_which_ports_are_changed_at_random(override, plain, translated):
    for address, random in (("", plain), ("192.0.2.9", translated)):
        felix = parse_felix({}, None, {"featureDetectOverride": override, "natOutgoingAddress": address}).settings
        assert nat(4, PLAIN, felix=felix).random == random


def test_masquerading():
    pools = (pool("10.65.0.0/16", nat_outgoing=True), pool("10.66.0.0/16"), pool("fd65::/64", nat_outgoing=True))
    found = nat(4, *pools)
    assert (tuple(map(str, found.sources)), tuple(map(str, found.exclusions))) == (
        ("10.65.0.0/16",),
        ("10.65.0.0/16", "10.66.0.0/16"),
    )
    assert tuple(map(str, nat(6, *pools).sources)) == ("fd65::/64",)
    disabled = nat(4, pool("10.65.0.0/16", nat_outgoing=True, disabled=True))
    assert disabled.sources  # its workloads are still there


def test_masquerading_parameters():
    felix = replace(
        FELIX, nat_exclusions="IPPoolsAndHostIPs", nat_port_range="1000:2000", nat_address=ip_address("192.0.2.9")
    )
    found = nat(4, pool("10.65.0.0/16", nat_outgoing=True), felix=felix)
    assert tuple(map(str, found.exclusions)) == ("10.0.0.1/32", "10.0.0.2/32", "10.0.9.3/32", "10.65.0.0/16")
    assert found.ports == (1000, 2000)
    assert str(found.to) == "192.0.2.9"


def test_routes_that_may_be_of_an_endpoint_that_cannot_be_read_stay():
    endpoints = [workload("w", "calia", "10.65.1.5/32")]
    desired = state(snapshot(VXLAN4, endpoints=endpoints))
    (known,) = (route for route in desired.routes if route.device == "calia")

    def there(device, dst):
        return replace(known, device=device, dst=ip_network(dst))

    may_be = {there("calib", "10.65.1.6/32"), there("calib", "10.65.1.7/32")}
    others = {
        there("calia", "10.65.1.8/32"),  # its endpoint can be read, and has no such address
        there("calib", "10.65.1.5/32"),  # another's address
        there("calib", "fe80::/64"),
        there("eth0", "10.65.1.9/32"),
    }
    unread = snapshot(VXLAN4, unread=frozenset({ResourceKey("WorkloadEndpoint", "odd", "default")}))
    kept = with_routes_in_doubt(desired, unread, [*may_be, *others, known], FELIX)
    assert kept.routes == desired.routes | may_be
    assert replace(kept, routes=desired.routes) == desired


def test_a_route_to_an_address_that_nobody_confirms_stays_and_is_not_made():
    desired = state(snapshot(VXLAN4))
    there = HostRoute(ip_network("192.0.2.9/32"), "calia", scope="link")
    default = HostRoute(ip_network("0.0.0.0/0"), "calia")
    unproven = {"calia": frozenset({there.dst, default.dst, ip_network("192.0.2.10/32")})}
    kept = with_routes_in_doubt(desired, snapshot(unproven=unproven), [there, default], FELIX)
    assert kept.routes - desired.routes == {there}


def test_only_single_addresses_are_routed_to_workloads():
    claims = workload("w", "calia", "10.65.1.5/32", "0.0.0.0/0", "10.0.0.0/24", "::/0")
    assert [str(r.dst) for r in state(snapshot(endpoints=[claims])).routes if r.device == "calia"] == ["10.65.1.5/32"]


def test_masquerading_is_partial_while_what_it_is_made_from_cannot_be_read():
    def is_partial(*kinds, felix=FELIX):
        unread = frozenset(ResourceKey(kind, "odd") for kind in kinds)
        return {item.partial for item in state(snapshot(VXLAN4, unread=unread), felix).nat}

    assert is_partial() == is_partial("Node", "WorkloadEndpoint") == {False}
    assert is_partial("IPPool") == is_partial("FelixConfiguration") == {True}
    assert is_partial("Node", felix=replace(FELIX, nat_exclusions="IPPoolsAndHostIPs")) == {True}


def test_without_ipv6_support_there_is_no_ipv6():
    found = state(
        snapshot(VXLAN4, VXLAN6, endpoints=[workload("w", "calia", "10.65.1.5/32", "fd65::1:5/128")]),
        FelixSettings(ipv6_support=False),
    )
    assert all(route.dst.version == 4 for route in found.routes)
    assert set(found.devices) == {"vxlan.calico"}
    assert [item.family for item in found.nat] == [4]
    assert not any(path[:3] == ("ipv6", "conf", "all") for path, _ in found.settings)


def test_forwarding_may_be_left_to_the_administrator():
    assert (("ipv4", "ip_forward"), "1") in state(snapshot()).settings
    assert state(snapshot(), replace(FELIX, ip_forwarding="Disabled")).settings == ()


@given(st.permutations(list(NODES)), st.permutations(BLOCKS), st.permutations((CROSS4, VXLAN6, pool("10.66.0.0/16"))))
def test_the_order_of_things_does_not_matter(names, blocks, pools):
    nodes = {name: NODES[name] for name in names}
    assert state(snapshot(*pools, nodes=nodes, blocks=blocks)) == state(snapshot(CROSS4, VXLAN6, pool("10.66.0.0/16")))


# -- blocks -----------------------------------------------------------------------------------------------------------


def test_a_block_is_reduced_to_what_routing_needs():
    attributes = (
        Attribute("net.a", {"node": "n1", "pod": "p"}),
        Attribute("net.b", {"node": "n2"}),
        Attribute(None, {}),
    )
    full = Block(ip_network("10.65.1.0/29"), "host:n1", (0, 1, None, 2, 9, None, None, None), (2, 5, 6, 7), attributes)
    assert reduce_block(full) == block("10.65.1.0/29", "n1", n2="10.65.1.1")
    assert reduce_block(replace(full, deleted=True)) is None
    assert reduce_block(replace(full, affinity="virtual:load-balancer")).node is None


# -- encryption -------------------------------------------------------------------------------------------------------


def test_parameters_that_cannot_be_read_take_no_encryption_away():
    interfaces = (*INTERFACES, HostInterface(10, "wireguard.cali", True, 1440, kind="wireguard"))
    found = state(snapshot(PLAIN), interfaces=interfaces)
    assert [one.enabled for one in found.encryption] == [False, False] and found.guard_is_off
    unread = frozenset({ResourceKey("FelixConfiguration", "default")})
    found = state(replace(snapshot(PLAIN), unread=unread), interfaces=interfaces)
    assert not found.encryption and not found.guard_is_off
    enabled = replace(FELIX, wireguard_enabled=True)  # by a variable
    found = state(replace(snapshot(PLAIN), unread=unread), enabled, interfaces=interfaces)
    assert [one.family for one in found.encryption] == [4]


def test_without_its_node_it_is_not_known_that_encryption_is_not_mandatory():
    """What selects the node by labels may say so."""
    others = {name: each for name, each in NODES.items() if name != "n1"}
    assert not state(snapshot(PLAIN, nodes=others)).guard_is_off
