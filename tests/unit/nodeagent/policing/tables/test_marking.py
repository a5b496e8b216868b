"""What marks packets follows who asks for it, the pools and the mesh, and leaves nothing behind."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.keys import ResourceKey
from cni_calico.netfilter.rules import RETURN, AddressInSet, NftRule, SetDscp
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.optional import OptionalFeature
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.standing import select_standing
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.mesh import MESH, MESH_SOURCE
from cni_calico.policy.wanted import Members, WantedChanges, WantedEndpoint, WantedHost, WantedHostClass

SETTINGS = FilterSettings()
POOLS = frozenset(map(ip_network, ("10.65.0.0/16", "192.0.2.7/32", "fd00::/64")))
ADDRESSES = [ip_address(f"10.65.0.{i}").packed for i in range(4)] + [ip_address("fd00::1").packed]


def endpoint(name: str, dscp: int | None, *addresses: bytes) -> WantedEndpoint:
    return WantedEndpoint(ResourceKey("WorkloadEndpoint", name, "ns"), f"cali{name}", "c", addresses, dscp=dscp)


def changes(*ends: WantedEndpoint | WantedHost) -> WantedChanges:
    return WantedChanges(
        endpoints={one.key: one for one in ends if isinstance(one, WantedEndpoint)},
        host_classes={"": WantedHostClass("")},
        hosts={one.key: one for one in ends if isinstance(one, WantedHost)},
    )


def marks(goal: Goal, family: int = 4) -> dict[str, int]:
    """By the set of sources, what packets get."""
    chain = goal.tables.of[FILTER[family]].chains.get("dscp")
    found = {}
    for rule in chain.rules if chain else ():
        for action in rule.actions:
            if isinstance(action, SetDscp):
                source = next(test for test in rule.tests if isinstance(test, AddressInSet) and test.is_source)
                found[source.name] = action.value
    return found


def test_nothing_without_anybody_who_asks() -> None:
    goal = Goal(SETTINGS)
    before = {table: dict(one.sets) for table, one in goal.tables.of.items()}
    goal.use_pools(POOLS)
    goal.update(changes(endpoint("a", None, ADDRESSES[0])))
    assert {table: dict(one.sets) for table, one in goal.tables.of.items()} == before and not marks(goal)


def test_only_what_goes_out_of_all_pools_and_of_this_host() -> None:
    goal = Goal(SETTINGS)
    goal.use_pools(POOLS)
    host = WantedHost(ResourceKey("HostEndpoint", "h"), "eth0", "", (ip_address("198.51.100.1").packed,), dscp=46)
    goal.update(changes(endpoint("a", 0, ADDRESSES[0], ADDRESSES[4]), host))
    first, *others = goal.tables.of[FILTER[4]].chains["dscp"].rules
    assert first.actions == (RETURN,)
    outside = (AddressInSet(False, "dscp-pools", negated=True), AddressInSet(False, "dscp-pools/n", negated=True))
    assert others == [
        NftRule((AddressInSet(True, "dscp-of-0"), *outside), (SetDscp(0),)),
        NftRule((AddressInSet(True, "dscp-of-46"), *outside), (SetDscp(46),)),
    ]
    table = goal.tables.of[FILTER[4]]
    assert table.elements["dscp-of-0"] == {ADDRESSES[0]} and table.elements["dscp-pools"] == {
        ip_address("192.0.2.7").packed
    }
    assert goal.tables.of[FILTER[6]].elements["dscp-of-0"] == {ADDRESSES[4]}
    goal.use_pools(frozenset((ip_network("172.16.0.0/12"),)))
    assert table.elements["dscp-pools"] == set() and len(table.elements["dscp-pools/n"]) == 1
    standing = select_standing(table, SETTINGS)  # it needs no policy
    assert "dscp" in standing.chains and {"dscp-of-0", "dscp-of-46", "dscp-pools/n"} <= standing.sets.keys()
    goal.configure(replace(SETTINGS, ipv6=False))
    assert marks(goal) and not marks(goal, 6)


ASKED = st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from((0, 10, 46)), st.sets(st.sampled_from(ADDRESSES)))


@given(st.lists(st.tuples(ASKED, st.booleans()), max_size=12))
def test_any_changes_are_as_one_step(steps: list[tuple[tuple[str, int | None, set[bytes]], bool]]) -> None:
    goal, there = Goal(SETTINGS), dict[ResourceKey, WantedEndpoint]()
    for (name, dscp, addresses), present in steps:
        one = endpoint(name, dscp, *addresses)
        goal.update(WantedChanges(endpoints={one.key: one if present else None}))
        there.pop(one.key, None)
        there |= {one.key: one} if present else {}
        naive: dict[str, set[bytes]] = {}
        for each in there.values():
            if each.dscp is not None and each.addresses:
                naive.setdefault(f"dscp-of-{each.dscp}", set()).update(each.addresses)
        for family, table in FILTER.items():
            held = {n: set(e) for n, e in goal.tables.of[table].elements.items() if n.startswith("dscp-of-")}
            size = 4 if family == 4 else 16
            assert held == {n: {a for a in e if len(a) == size} for n, e in naive.items()}
            assert marks(goal, family) == {n: int(n.rpartition("-")[2]) for n in naive}


def test_the_mesh_is_marked_while_its_pods_are_known() -> None:
    settings = replace(SETTINGS, mesh_dscp=23)
    goal = Goal(settings)
    assert not marks(goal)
    goal.update(WantedChanges(sets_made={MESH: Members(frozenset(ADDRESSES))}))
    assert marks(goal) == marks(goal, 6) == {MESH: 23}
    goal.configure(SETTINGS)
    assert not marks(goal)
    goal.update(WantedChanges(sets_removed=frozenset((MESH,))))
    assert not any(name.startswith("dscp") for name in goal.tables.of[FILTER[4]].sets)


def test_a_kernel_without_it_has_the_rest() -> None:
    goal = Goal(SETTINGS)
    goal.update(changes(endpoint("a", 46, ADDRESSES[0])))
    goal.lack(OptionalFeature.DSCP, "no xt_DSCP")
    assert not marks(goal) and "from-workloads" in goal.tables.of[FILTER[4]].chains
    goal.forgive()
    assert marks(goal) == {"dscp-of-46": 46}


def test_what_is_not_clear_is_said() -> None:
    goal = Goal(SETTINGS)
    key, other = ResourceKey("HostEndpoint", "h"), ResourceKey("HostEndpoint", "i")
    goal.update(changes(WantedHost(key, "eth0", "", not_dscp="'AF99'"), WantedHost(other, "eth1", "", dscp=10)))
    assert goal.left_out() == [
        "the packets of HostEndpoint h get no DSCP: the annotation says 'AF99'",
        "the packets of HostEndpoint i get no DSCP: it has no expectedIPs",
    ]


def test_who_is_in_the_mesh() -> None:
    label, inherited = "istio.io/dataplane-mode", "pcns.istio.io/dataplane-mode"
    pod = {"projectcalico.org/orchestrator": "k8s"}
    for labels, inside in (
        ({label: "ambient"}, True),
        ({inherited: "ambient"}, True),
        ({inherited: "ambient", label: "none"}, False),
        ({inherited: "ambient", label: "ambient"}, True),
        ({inherited: "sidecar"}, False),
        ({label: "ambient", "projectcalico.org/orchestrator": "cni"}, False),
        ({}, False),
    ):
        assert MESH_SOURCE.selector.matches({**pod, **labels}) is inside
