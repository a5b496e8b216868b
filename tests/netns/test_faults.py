"""At every request and every setting: a failure is undone, a kill is cleaned up by DEL or finished by another ADD."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cni_calico import faults
from cni_calico.errors import CalicoError
from cni_calico.plugin.network.plan import PodPlan
from tests.netns.namespaces import Killed, Namespace
from tests.netns.network import PLAN, V4, V6, add, add_then_fail, differences, links_only, remove

pytestmark = pytest.mark.netns

WAYS = [(when, action) for when in ("before", "after") for action in ("fail", "kill")]
NEEDED = {
    "netlink.link-create",
    "netlink.link-set",
    "netlink.addr-add",
    "netlink.route-add",
    "netlink.neigh-set",
    "sysctl.write",
}


def _reached(function: Callable[..., Any], *arguments: Any) -> list[str]:
    points: list[str] = []
    faults.install(lambda point, when: points.append(point) if when == "before" else None)
    function(*arguments)
    return points


def steps(host: Namespace, function: Callable[..., Any], plan: PodPlan, pod: Namespace) -> list[tuple[str, int]]:
    """Each effect of the function: its point, and the how-manieth of that point it is."""
    seen: Counter[str] = Counter()
    found = []
    for point in host.call(_reached, function, plan, pod.path):
        seen[point] += 1
        found.append((point, seen[point]))
    return found


def snapshot(host: Namespace, pod: Namespace) -> list[Any]:
    """Interfaces, addresses and routes of both sides."""
    return [(ns.ip("addr", "show"), ns.routes(4), ns.routes(6), ns.ip("neigh", "show")) for ns in (host, pod)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_failed_add_leaves_nothing(host_ns: Namespace, pod_ns: Namespace, when: str) -> None:
    empty = snapshot(host_ns, pod_ns)
    every = steps(host_ns, add_then_fail, PLAN, pod_ns)
    assert {point for point, _ in every} == NEEDED | {"netlink.link-delete"}
    for point, nth in every:
        if point == "netlink.link-delete":
            continue  # the undo itself
        with pytest.raises(CalicoError, match="injected"):
            host_ns.call(add, PLAN, pod_ns.path, fault=f"{point}:{when}:{nth}:fail")
        assert snapshot(host_ns, pod_ns) == empty, (point, nth)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("then", ["DEL", "ADD"])
def test_a_killed_add_can_be_cleaned_up_or_finished(
    host_ns: Namespace, pod_ns: Namespace, when: str, then: str
) -> None:
    empty = snapshot(host_ns, pod_ns)
    every = steps(host_ns, add, PLAN, pod_ns)
    host_ns.call(remove, PLAN, pod_ns.path)
    for point, nth in every:
        with pytest.raises(Killed):
            host_ns.call(add, PLAN, pod_ns.path, fault=f"{point}:{when}:{nth}:kill")
        if then == "ADD":
            host_ns.call(add, PLAN, pod_ns.path)
            assert host_ns.call(differences, PLAN, pod_ns.path) == (), (point, nth)
        host_ns.call(remove, PLAN, pod_ns.path)
        assert snapshot(host_ns, pod_ns) == empty, (point, nth)


def damage(host: Namespace, pod: Namespace) -> None:
    """Give a repeated ADD something to do at every step it has."""
    name = PLAN.host_ifname
    host.do("link", "set", name, "mtu", "1400", "address", "02:00:00:00:00:01")
    host.do("route", "replace", str(V4), "dev", "uplink", "scope", "link", "proto", "80")
    host.do("-6", "route", "del", str(V6))
    host.set_sysctl(f"ipv4/conf/{name}/proxy_arp", "0")
    pod.do("link", "set", "eth0", "mtu", "1400")
    pod.do("addr", "del", f"{V4}/32", "dev", "eth0")
    pod.do("addr", "add", "10.65.7.7/32", "dev", "eth0")
    pod.do("route", "replace", "default", "dev", "eth0")


@pytest.mark.parametrize(("when", "action"), WAYS)
def test_an_interrupted_repair_is_finished_by_the_next(
    host_ns: Namespace, pod_ns: Namespace, when: str, action: str
) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    damage(host_ns, pod_ns)
    every = steps(host_ns, add, PLAN, pod_ns)
    assert {point for point, _ in every} == NEEDED | {"netlink.addr-del", "netlink.route-del"}
    index = host_ns.link(PLAN.host_ifname)
    for point, nth in every:
        damage(host_ns, pod_ns)
        with pytest.raises((CalicoError, Killed), match=r"injected|signal 9"):
            host_ns.call(add, PLAN, pod_ns.path, fault=f"{point}:{when}:{nth}:{action}")
        host_ns.call(add, PLAN, pod_ns.path)
        assert host_ns.call(differences, PLAN, pod_ns.path) == (), (point, nth)
        link = host_ns.link(PLAN.host_ifname)
        assert link is not None
        assert index is not None
        assert link["ifindex"] == index["ifindex"], (point, nth)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_healthy_network_survives_a_failing_repeated_add(host_ns: Namespace, pod_ns: Namespace, when: str) -> None:
    """Also when the answer to the creation is lost, and nobody can say whether the interface is a new one."""
    plan = replace(PLAN, addresses=(V4,))
    host_ns.call(add, plan, pod_ns.path)
    for point, nth in steps(host_ns, add, plan, pod_ns):
        with pytest.raises(CalicoError, match="injected"):
            host_ns.call(add, plan, pod_ns.path, fault=f"{point}:{when}:{nth}:fail")
        assert host_ns.call(differences, plan, pod_ns.path) == (), (point, nth)


@pytest.mark.parametrize("state", [add, links_only])
@pytest.mark.parametrize(("when", "action"), WAYS)
def test_an_interrupted_del_is_finished_by_the_next(
    host_ns: Namespace, pod_ns: Namespace, state: Callable[..., Any], when: str, action: str
) -> None:
    empty = snapshot(host_ns, pod_ns)
    host_ns.call(state, PLAN, pod_ns.path)
    every = steps(host_ns, remove, PLAN, pod_ns)
    assert every == [("netlink.link-delete", 1)]
    for point, nth in every:
        host_ns.call(state, PLAN, pod_ns.path)
        with pytest.raises((CalicoError, Killed), match=r"injected|signal 9"):
            host_ns.call(remove, PLAN, pod_ns.path, fault=f"{point}:{when}:{nth}:{action}")
        host_ns.call(remove, PLAN, pod_ns.path)
        assert snapshot(host_ns, pod_ns) == empty
