"""CHECK finds what is done to a pod's network, names it, and changes nothing."""

from __future__ import annotations

import pytest

from cni_calico import faults
from cni_calico.plugin.network.differences import Difference
from cni_calico.plugin.network.plan import PodPlan
from tests.netns.namespaces import Namespace
from tests.netns.network import PLAN, V4, V6, add, differences

pytestmark = pytest.mark.netns

NAME = PLAN.host_ifname
EE = "ee:ee:ee:ee:ee:ee"

DAMAGES: dict[tuple[str, str], tuple[str, str, str, str, str]] = {
    ("host", f"link set {NAME} address 02:00:00:00:00:01"): (
        "host", "link", NAME, f"mac {EE}", "mac 02:00:00:00:00:01"),
    ("host", f"link set {NAME} mtu 1400"): ("host", "link", NAME, "mtu 1500", "mtu 1400"),
    ("host", f"route del {V4}"): ("host", "route", str(V4), f"dev {NAME}", ""),
    ("host", f"-6 route del {V6}"): ("host", "route", str(V6), f"dev {NAME}", ""),
    ("host", f"route replace {V4} dev uplink scope link"): ("host", "route", str(V4), f"dev {NAME}", "dev uplink"),
    ("host", f"-6 route add {V6} via 2001:db8::1 metric 5"): ("host", "route", str(V6), f"dev {NAME}", "dev uplink"),
    ("host", f"route replace blackhole {V4}"): (
        "host", "route", str(V4), f"dev {NAME}", "a route without interface"),
    ("pod", "link set eth0 mtu 1400"): ("pod", "link", "eth0", "mtu 1500", "mtu 1400"),
    ("pod", "route del default"): (
        "pod", "route", "0.0.0.0/0", "0.0.0.0/0 via 169.254.1.1", ""),
    ("pod", "route replace default dev eth0"): (
        "pod", "route", "0.0.0.0/0", "0.0.0.0/0 via 169.254.1.1", "0.0.0.0/0 on link"),
    ("pod", "-6 route del default"): ("pod", "route", "::/0", "::/0 via fe80::ecee:eeff:feee:eeee", ""),
    ("pod", "neigh replace 169.254.1.1 lladdr 02:00:00:00:00:03 nud permanent dev eth0"): (
        "pod", "neighbour", "169.254.1.1", EE, "02:00:00:00:00:03"),
    ("pod", "neigh del 169.254.1.1 dev eth0"): ("pod", "neighbour", "169.254.1.1", EE, ""),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "wanted"), DAMAGES.items(), ids=[" ".join(damage) for damage in DAMAGES])
def test_one_damage(
    host_ns: Namespace, pod_ns: Namespace, damage: tuple[str, str], wanted: tuple[str, str, str, str, str]
) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    side, command = damage
    (host_ns if side == "host" else pod_ns).do(*command.split())
    assert host_ns.call(differences, PLAN, pod_ns.path) == (Difference(*wanted),)


def test_another_mac(host_ns: Namespace, pod_ns: Namespace) -> None:
    """The kernel forgets an interface's neighbours when its MAC changes, permanent ones too."""
    host_ns.call(add, PLAN, pod_ns.path)
    pod_ns.do("link", "set", "eth0", "address", "02:00:00:00:00:02")
    assert host_ns.call(differences, PLAN, pod_ns.path) == (
        Difference("pod", "link", "eth0", "mac f2:06:3f:e2:a3:2a", "mac 02:00:00:00:00:02"),
        Difference("pod", "neighbour", "169.254.1.1", EE, ""),
    )


@pytest.mark.parametrize(
    ("side", "name", "value"),
    [
        ("host", f"ipv4/conf/{NAME}/proxy_arp", "0"),
        ("host", f"ipv4/neigh/{NAME}/proxy_delay", "80"),
        ("host", f"ipv6/conf/{NAME}/accept_ra", "1"),
        ("host", f"ipv6/conf/{NAME}/forwarding", "0"),
        ("pod", "ipv4/ip_forward", "1"),
        ("pod", "ipv6/conf/all/forwarding", "1"),
        ("pod", "ipv6/conf/eth0/accept_dad", "1"),
    ],
)
def test_one_sysctl(host_ns: Namespace, pod_ns: Namespace, side: str, name: str, value: str) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    namespace = host_ns if side == "host" else pod_ns
    before = namespace.sysctl(name)
    namespace.set_sysctl(name, value)
    assert host_ns.call(differences, PLAN, pod_ns.path) == (Difference(side, "sysctl", f"net/{name}", before, value),)


@pytest.mark.parametrize("side", ["host", "pod"])
def test_a_link_that_is_down(host_ns: Namespace, pod_ns: Namespace, side: str) -> None:
    """Its routes went with it; all of it is told."""
    host_ns.call(add, PLAN, pod_ns.path)
    (host_ns if side == "host" else pod_ns).do("link", "set", NAME if side == "host" else "eth0", "down")
    found = {(d.where, d.kind, d.found) for d in host_ns.call(differences, PLAN, pod_ns.path)}
    assert (side, "link", "down") in found
    assert {where for where, _, _ in found} == {side}
    assert {kind for _, kind, _ in found} >= {"link", "route"}


def test_nothing_there(host_ns: Namespace, pod_ns: Namespace) -> None:
    found = host_ns.call(differences, PLAN, pod_ns.path)
    assert [(d.where, d.kind, d.name, d.found) for d in found] == [
        ("host", "link", NAME, ""),
        ("pod", "link", "eth0", ""),
        ("host", "route", str(V4), ""),
        ("host", "route", str(V6), ""),
    ]


def test_ends_of_different_cables(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.do("link", "add", NAME, "type", "veth", "peer", "name", "elsewhere")
    pod_ns.do("link", "add", "eth0", "type", "veth", "peer", "name", "elsewhere")
    joined = [d for d in host_ns.call(differences, PLAN, pod_ns.path) if d.found == "joined elsewhere"]
    assert [(d.where, d.name) for d in joined] == [("host", NAME), ("pod", "eth0")]


def _points_reached(plan: PodPlan, path: str) -> list[str]:
    reached: list[str] = []
    faults.install(lambda point, when: reached.append(point))
    differences(plan, path)
    return reached


def test_changes_nothing(host_ns: Namespace, pod_ns: Namespace) -> None:
    assert host_ns.call(_points_reached, PLAN, pod_ns.path) == []
