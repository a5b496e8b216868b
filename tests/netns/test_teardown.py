"""DEL's kernel side: whatever is left is removed, whatever is gone is fine, what is not ours stays."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from ipaddress import ip_address

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import TeardownIncomplete
from cni_calico.kernel import netns
from cni_calico.plugin.network.host import Host
from cni_calico.plugin.network.ownership import Claim
from cni_calico.plugin.network.plan import PodPlan
from cni_calico.plugin.network.teardown import LinkRemoval, PodEnds, remove_links_together, remove_pod_network
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.network import PLAN, add, differences, remove

pytestmark = pytest.mark.netns

NAME = PLAN.host_ifname
SIGNED = replace(PLAN, digests=("this",), owner="k8s/space/web-0")


def snapshot(host: Namespace, pod: Namespace) -> object:
    return [(ns.ip("link", "show"), ns.routes(4), ns.routes(6)) for ns in (host, pod)]


def test_leaves_neither_interface_nor_route(host_ns: Namespace, pod_ns: Namespace) -> None:
    before = snapshot(host_ns, pod_ns)
    host_ns.call(add, PLAN, pod_ns.path)
    assert snapshot(host_ns, pod_ns) != before
    for _ in range(3):
        host_ns.call(remove, PLAN, pod_ns.path)
        assert snapshot(host_ns, pod_ns) == before


def test_without_the_namespace(host_ns: Namespace, pod_ns: Namespace) -> None:
    before = snapshot(host_ns, pod_ns)
    host_ns.call(add, PLAN, pod_ns.path)
    host_ns.call(remove, PLAN, None)
    assert snapshot(host_ns, pod_ns) == before


def test_by_the_pods_end_when_the_hosts_name_is_another(host_ns: Namespace, pod_ns: Namespace) -> None:
    before = snapshot(host_ns, pod_ns)
    host_ns.call(add, SIGNED, pod_ns.path)
    host_ns.do("link", "set", NAME, "down")
    host_ns.do("link", "set", NAME, "name", "renamed")
    host_ns.call(remove, PLAN, pod_ns.path)
    assert pod_ns.link("eth0") is not None  # a record names another interface
    host_ns.call(remove, PLAN, pod_ns.path, Claim(SIGNED.digests))
    assert snapshot(host_ns, pod_ns) == before


def test_both_when_they_are_not_one_cable(host_ns: Namespace, pod_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    before = snapshot(host_ns, pod_ns)
    other = replace(SIGNED, host_ifname="calixxxxxxxxxxx", addresses=(ip_address("10.65.9.9"),))
    host_ns.call(add, PLAN, make_pod_ns("gone").path)
    host_ns.call(add, other, pod_ns.path)
    host_ns.call(remove, PLAN, pod_ns.path, Claim(SIGNED.digests))
    assert snapshot(host_ns, pod_ns) == before


def _remove_pod_side(path: str) -> None:
    fd = netns.open_netns(path)
    with Host() as host:
        remove_pod_network(host, PodEnds("", "eth0", fd), Deadline.after(20), Claim())
    os.close(fd)


def test_a_new_sandboxs_interface_stays(host_ns: Namespace, pod_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    """The late DEL of an old sandbox: its name is the new sandbox's now."""
    new = make_pod_ns("new")
    host_ns.call(add, PLAN, new.path)
    host_ns.call(_remove_pod_side, pod_ns.path)
    assert host_ns.call(differences, PLAN, new.path) == ()


def test_interfaces_of_other_kinds_stay(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.do("link", "add", NAME, "type", "bridge")
    pod_ns.do("link", "add", "eth0", "type", "bridge")
    with pytest.raises(TeardownIncomplete, match=f"cannot delete interface {NAME}: it is a bridge interface"):
        host_ns.call(remove, PLAN, pod_ns.path)
    assert host_ns.link(NAME) is not None
    assert pod_ns.link("eth0") is not None


def _remove_with_everything_failing(plan: PodPlan, path: str) -> None:
    fd = netns.open_netns(path)
    with Host() as host:
        remove_pod_network(host, PodEnds(plan.host_ifname, plan.pod_ifname, fd), Deadline.after(-1), Claim())


def test_every_failure_is_told(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    with pytest.raises(TeardownIncomplete) as caught:
        host_ns.call(_remove_with_everything_failing, PLAN, pod_ns.path)
    assert caught.value.message.count("the deadline of this call has passed") == 2
    assert f"interface {NAME}:" in caught.value.message
    assert "interface eth0:" in caught.value.message


# -- many at once -----------------------------------------------------------------------------------------------------


def remove_together(names: Sequence[str]) -> None:
    with Host() as host:
        remove_links_together(host, [LinkRemoval(name, Claim()) for name in names], Deadline.after(20))


def add_many(host: Namespace, make_pod_ns: MakeNamespace, count: int) -> list[tuple[PodPlan, Namespace]]:
    made = []
    for i in range(count):
        plan = replace(PLAN, host_ifname=f"cali{i:011}", addresses=(ip_address(f"10.65.8.{i}"),), mac=None)
        made.append((plan, make_pod_ns(f"pod{i}")))
        host.call(add, plan, made[-1][1].path)
    return made


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_together(host_ns: Namespace, make_pod_ns: MakeNamespace, count: int) -> None:
    made = add_many(host_ns, make_pod_ns, 6)
    names = [plan.host_ifname for plan, _ in made[:count]]
    host_ns.call(remove_together, [*names, "calinosuchone"])
    for i, (plan, pod) in enumerate(made):
        assert (pod.link("eth0") is None) == (i < count)
        assert (host_ns.link(plan.host_ifname) is None) == (i < count)
    for plan, pod in made[count:]:
        assert host_ns.call(differences, plan, pod.path) == ()


def test_together_leaves_what_is_no_pods(host_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    made = add_many(host_ns, make_pod_ns, 2)
    host_ns.do("link", "add", "calibridge", "type", "bridge")
    with pytest.raises(TeardownIncomplete, match="cannot delete interface calibridge"):
        host_ns.call(remove_together, ["calibridge", *(plan.host_ifname for plan, _ in made)])
    assert host_ns.link("calibridge") is not None
    assert [host_ns.link(plan.host_ifname) for plan, _ in made] == [None, None]


def _remove_with_a_stranger_in_the_group(names: Sequence[str], stranger: str) -> int:
    """os.urandom always answers the same here, and the stranger is in the group that follows from it."""
    from cni_calico.plugin.network import teardown

    class Same:
        def __getattr__(self, name: str) -> object:
            return (lambda count: bytes(count)) if name == "urandom" else getattr(os, name)

    teardown.os = Same()
    os.system(f"ip link set {stranger} group 65537")
    remove_together(names)
    return 65537


def test_a_stranger_in_the_group_is_spared(host_ns: Namespace, make_pod_ns: MakeNamespace) -> None:
    made = add_many(host_ns, make_pod_ns, 2)
    host_ns.call(_remove_with_a_stranger_in_the_group, [plan.host_ifname for plan, _ in made], "unused1")
    assert host_ns.link("unused1") is not None
    assert [host_ns.link(plan.host_ifname) for plan, _ in made] == [None, None]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["netlink.link-set", "netlink.link-delete"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_together_with_faults(host_ns: Namespace, make_pod_ns: MakeNamespace, point: str, when: str, nth: int) -> None:
    """A group that cannot be deleted is deleted one by one; what fails is told, and repeating finishes it."""
    made = add_many(host_ns, make_pod_ns, 3)
    names = [plan.host_ifname for plan, _ in made]
    try:
        host_ns.call(remove_together, names, fault=f"{point}:{when}:{nth}:fail")
    except TeardownIncomplete as e:
        assert "injected" in e.message
    host_ns.call(remove_together, names)
    assert [host_ns.link(name) for name in names] == [None, None, None]
