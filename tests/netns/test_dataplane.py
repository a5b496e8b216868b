"""ADD's kernel side in real namespaces: families, options, repetition, repair. ``ip -j`` is the judge."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network
from typing import Any

import pytest

from cni_calico.errors import KernelError, LinkConflict, RouteConflict
from cni_calico.kernel.netlink import socket as rtnl
from cni_calico.plugin.network.plan import PodPlan
from tests.deadlines import until
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace
from tests.netns.network import DUAL, PLAN, V4, V6, add, add_then_fail, differences, links_only, with_addresses

pytestmark = pytest.mark.netns

NAME = PLAN.host_ifname
ONLY_V4, ONLY_V6 = replace(PLAN, addresses=(V4,)), replace(PLAN, addresses=(V6,))
OTHER = replace(PLAN, host_ifname="cali00000000000", mac=None)


def is_whole(host: Namespace, pod: Namespace, plan: PodPlan) -> bool:
    found = host.call(differences, plan, pod.path)
    assert found == ()
    return True


def host_routes(host: Namespace) -> dict[str, str]:
    """Destination -> interface of the host routes."""
    routes = host.routes(4) + host.routes(6)
    return {route["dst"]: route.get("dev", "") for route in routes if route["dst"] in (str(V4), str(V6))}


# -- families and options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [ONLY_V4, ONLY_V6, PLAN], ids=["v4", "v6", "dual"])
def test_addresses_and_routes(host_ns: Namespace, pod_ns: Namespace, plan: PodPlan) -> None:
    host_ns.call(add, plan, pod_ns.path)
    assert pod_ns.addresses("eth0") == {f"{a}/{a.max_prefixlen}" for a in plan.addresses}
    assert host_routes(host_ns) == {str(address): NAME for address in plan.addresses}
    assert [entry["ifname"] for entry in pod_ns.ip("link", "show")] == ["lo", "eth0"]
    assert is_whole(host_ns, pod_ns, plan)


@pytest.mark.parametrize("command", ["ping -c1 -W5 10.65.104.0", "ping -c1 -W5 fd00:65::6800"])
def test_the_host_reaches_the_pod(host_ns: Namespace, pod_ns: Namespace, command: str) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    assert host_ns.run(*command.split(), check=False).returncode == 0


@pytest.mark.parametrize("target", ["192.0.2.10", "2001:db8::10"])
def test_the_pod_reaches_beyond_its_gateway(host_ns: Namespace, pod_ns: Namespace, target: str) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    assert pod_ns.run("ping", "-c1", "-W5", target, check=False).returncode == 0


def test_the_pods_address_is_usable_at_once(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    flags = [i for e in pod_ns.ip("addr", "show", "dev", "eth0") for i in e["addr_info"] if i["scope"] == "global"]
    assert [info["local"] for info in flags if info.get("tentative")] == []


def test_mtu_and_queues(host_ns: Namespace, pod_ns: Namespace) -> None:
    plan = replace(PLAN, mtu=8900, num_queues=3)
    host_ns.call(add, plan, pod_ns.path)
    for link in (host_ns.link(NAME), pod_ns.link("eth0")):
        assert link is not None
        assert (link["mtu"], link["num_tx_queues"], link["num_rx_queues"]) == (8900, 3, 3)


def test_the_kernel_may_choose_the_mac(host_ns: Namespace, pod_ns: Namespace) -> None:
    plan = replace(PLAN, mac=None)
    mac, _, _ = host_ns.call(add, plan, pod_ns.path)
    link = pod_ns.link("eth0")
    assert link is not None
    assert link["address"] == mac
    assert host_ns.call(add, plan, pod_ns.path)[:2] == (mac, False)


@pytest.mark.parametrize("include", [False, True])
def test_routes_of_an_ipam(host_ns: Namespace, pod_ns: Namespace, include: bool) -> None:
    plan = replace(ONLY_V4, extra_routes=(ip_network("10.0.0.0/8"),), include_default_routes=include)
    host_ns.call(add, plan, pod_ns.path)
    found = {route["dst"]: route.get("gateway") for route in pod_ns.routes(4)}
    default = {"default": "169.254.1.1"} if include else {}
    assert found == {"169.254.1.1": None, "10.0.0.0/8": "169.254.1.1", **default}
    assert is_whole(host_ns, pod_ns, plan)


@pytest.mark.parametrize("allow", [False, True])
def test_forwarding_in_the_pod(host_ns: Namespace, pod_ns: Namespace, allow: bool) -> None:
    pod_ns.set_sysctl("ipv4/ip_forward", "0" if allow else "1")
    pod_ns.set_sysctl("ipv6/conf/all/forwarding", "0" if allow else "1")
    host_ns.call(add, replace(PLAN, allow_ip_forwarding=allow), pod_ns.path)
    wanted = "1" if allow else "0"
    assert (pod_ns.sysctl("ipv4/ip_forward"), pod_ns.sysctl("ipv6/conf/all/forwarding")) == (wanted, wanted)
    assert pod_ns.sysctl("ipv4/conf/eth0/forwarding") == wanted


def test_ipv6_that_the_runtime_disabled(host_ns: Namespace, pod_ns: Namespace) -> None:
    for name in ("all", "default", "lo"):
        pod_ns.set_sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")
        host_ns.set_sysctl(f"ipv6/conf/{name}/disable_ipv6", "1")
    host_ns.set_sysctl("ipv6/conf/default/addr_gen_mode", "1")  # no link-local address of its own
    host_ns.call(add, PLAN, pod_ns.path)
    assert [pod_ns.sysctl(f"ipv6/conf/{n}/disable_ipv6") for n in ("all", "default", "lo", "eth0")] == ["0"] * 4
    # the pod's gateway is there although the node's default would have made another address, or none
    until(lambda: "fe80::ecee:eeff:feee:eeee" in host_ns.run("ip", "-6", "addr", "show", NAME).stdout, "link-local")
    assert is_whole(host_ns, pod_ns, PLAN)


def test_ipv4_only_leaves_disabled_ipv6_alone(host_ns: Namespace, pod_ns: Namespace) -> None:
    pod_ns.set_sysctl("ipv6/conf/all/disable_ipv6", "1")
    host_ns.call(add, ONLY_V4, pod_ns.path)
    assert pod_ns.sysctl("ipv6/conf/eth0/disable_ipv6") == "1"
    assert is_whole(host_ns, pod_ns, ONLY_V4)


def test_interface_names_with_dots(host_ns: Namespace, pod_ns: Namespace) -> None:
    plan = replace(PLAN, host_ifname="cali.1", pod_ifname="eth.0")
    host_ns.call(add, plan, pod_ns.path)
    assert is_whole(host_ns, pod_ns, plan)


def _count_of_dumps(plan: PodPlan, pod_path: str) -> int:
    dumps: list[Any] = []
    whole = rtnl.Rtnl._dump

    def counted(*arguments: Any) -> list[bytes]:
        dumps.append(arguments[1].doing)
        return whole(*arguments)

    rtnl.Rtnl._dump = counted
    add(plan, pod_path)
    return len(dumps)


def test_a_first_add_lists_nothing(host_ns: Namespace, pod_ns: Namespace) -> None:
    """Lists grow with the number of pods on the node; the ordinary ADD must not."""
    assert host_ns.call(_count_of_dumps, PLAN, pod_ns.path) == 0


# -- repetition and repair --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [ONLY_V4, ONLY_V6, PLAN], ids=["v4", "v6", "dual"])
def test_repeated_add_keeps_the_link(host_ns: Namespace, pod_ns: Namespace, plan: PodPlan) -> None:
    assert host_ns.call(add, plan, pod_ns.path)[1:] == (True, [])
    before = host_ns.link(NAME)
    assert host_ns.call(add, plan, pod_ns.path)[1:] == (False, [])
    after = host_ns.link(NAME)
    assert before is not None
    assert after is not None
    assert after["ifindex"] == before["ifindex"]
    assert is_whole(host_ns, pod_ns, plan)


DAMAGES: list[tuple[str, str]] = [
    ("host", f"link set {NAME} down"),
    ("host", f"link set {NAME} address 02:00:00:00:00:01"),
    ("host", f"link set {NAME} mtu 1400"),
    ("host", f"route del {V4}"),
    ("host", f"-6 route del {V6}"),
    ("pod", "link set eth0 down"),
    ("pod", "link set eth0 mtu 1400"),
    ("pod", "link set eth0 address 02:00:00:00:00:02"),
    ("pod", f"addr del {V4}/32 dev eth0"),
    ("pod", f"addr del {V6}/128 dev eth0"),
    ("pod", "route del default"),
    ("pod", "-6 route del default"),
    ("pod", "route replace 169.254.1.1 dev eth0 proto static scope link src 10.65.104.0"),
    ("pod", "route replace default dev eth0 scope link"),
    ("pod", "neigh replace 169.254.1.1 lladdr 02:00:00:00:00:03 dev eth0"),
    ("pod", "neigh del 169.254.1.1 dev eth0"),
]


@pytest.mark.parametrize(("side", "command"), DAMAGES, ids=[" ".join(damage) for damage in DAMAGES])
def test_repeated_add_repairs(host_ns: Namespace, pod_ns: Namespace, side: str, command: str) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    (host_ns if side == "host" else pod_ns).do(*command.split())
    assert host_ns.call(add, PLAN, pod_ns.path)[1] is False
    assert is_whole(host_ns, pod_ns, PLAN)


def test_repeated_add_repairs_every_sysctl(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(add, PLAN, pod_ns.path)
    for name, value in (("route_localnet", "0"), ("proxy_arp", "0"), ("forwarding", "0")):
        host_ns.set_sysctl(f"ipv4/conf/{NAME}/{name}", value)
    host_ns.set_sysctl(f"ipv4/neigh/{NAME}/proxy_delay", "80")
    for name, value in (("accept_ra", "1"), ("accept_dad", "1"), ("proxy_ndp", "0"), ("forwarding", "0")):
        host_ns.set_sysctl(f"ipv6/conf/{NAME}/{name}", value)
    pod_ns.set_sysctl("ipv4/ip_forward", "1")
    assert len(host_ns.call(differences, PLAN, pod_ns.path)) == 9
    host_ns.call(add, PLAN, pod_ns.path)
    assert is_whole(host_ns, pod_ns, PLAN)


def test_half_made_networks_are_finished(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(links_only, PLAN, pod_ns.path)
    assert host_ns.call(differences, PLAN, pod_ns.path) != ()
    assert host_ns.call(add, PLAN, pod_ns.path)[1:] == (False, [])
    assert is_whole(host_ns, pod_ns, PLAN)


def test_the_addresses_of_an_earlier_attempt_go(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(add, with_addresses("10.65.7.7", "fd00:65::7"), pod_ns.path)
    host_ns.call(add, PLAN, pod_ns.path)
    assert pod_ns.addresses("eth0") == {f"{V4}/32", f"{V6}/128"}
    gone = {"10.65.7.7", "fd00:65::7"}
    assert [route for route in host_ns.routes(4) + host_ns.routes(6) if route["dst"] in gone] == []
    assert is_whole(host_ns, pod_ns, PLAN)


def test_undo_leaves_nothing(host_ns: Namespace, pod_ns: Namespace) -> None:
    before = host_ns.routes(4), host_ns.routes(6), len(host_ns.ip("link", "show"))
    host_ns.call(add_then_fail, PLAN, pod_ns.path)
    assert (host_ns.routes(4), host_ns.routes(6), len(host_ns.ip("link", "show"))) == before
    assert pod_ns.link("eth0") is None


def test_undo_of_a_repeated_add_keeps_what_was_there(host_ns: Namespace, pod_ns: Namespace) -> None:
    """A running container must not lose its network because a second ADD failed."""
    host_ns.call(add, ONLY_V4, pod_ns.path)
    host_ns.call(add_then_fail, PLAN, pod_ns.path)
    assert is_whole(host_ns, pod_ns, ONLY_V4)
    assert pod_ns.addresses("eth0") == {f"{V4}/32"}
    assert host_routes(host_ns) == {str(V4): NAME}


# -- what is in the way -----------------------------------------------------------------------------------------------


def test_a_leftover_host_interface_is_replaced(
    host_ns: Namespace, pod_ns: Namespace, make_pod_ns: MakeNamespace
) -> None:
    """The old sandbox of a pod still lives; its interface has the name that the new sandbox's must have."""
    old = make_pod_ns("old")
    host_ns.call(add, PLAN, old.path)
    _, created, notes = host_ns.call(add, PLAN, pod_ns.path)
    assert (created, notes) == (True, [f"warning: replacing interface {NAME}, left over from an earlier attachment"])
    assert old.link("eth0") is None
    assert is_whole(host_ns, pod_ns, PLAN)


def test_the_interface_of_another_attachment_is_not(
    host_ns: Namespace, pod_ns: Namespace, make_pod_ns: MakeNamespace
) -> None:
    other = make_pod_ns("other")
    host_ns.call(add, PLAN, other.path)

    def add_politely(plan: PodPlan, path: str) -> None:
        add(plan, path, may_replace=False)

    with pytest.raises(LinkConflict, match=f"cannot create interface {NAME}: it exists and belongs to another"):
        host_ns.call(add_politely, PLAN, pod_ns.path)
    assert is_whole(host_ns, other, PLAN)
    assert pod_ns.link("eth0") is None


def test_an_interface_that_is_no_veth_is_never_replaced(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.do("link", "add", NAME, "type", "bridge")
    with pytest.raises(LinkConflict, match=NAME):
        host_ns.call(add, PLAN, pod_ns.path)
    assert host_ns.link(NAME) is not None
    assert pod_ns.link("eth0") is None


def test_a_host_interface_under_an_earlier_name_is_replaced(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.call(add, OTHER, pod_ns.path)
    assert host_ns.call(add, PLAN, pod_ns.path)[1] is True
    assert host_ns.link(OTHER.host_ifname) is None
    assert is_whole(host_ns, pod_ns, PLAN)


@pytest.mark.parametrize("kind", ["bridge", "veth in the pod", "veth to the host"])
def test_the_pods_interface_of_another_plugin_is_left_alone(host_ns: Namespace, pod_ns: Namespace, kind: str) -> None:
    if kind == "bridge":
        pod_ns.do("link", "add", "eth0", "type", "bridge")
    elif kind == "veth in the pod":
        pod_ns.do("link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
    else:
        host_ns.do("link", "add", "vethother", "type", "veth", "peer", "name", "eth0", "netns", pod_ns.name)
    before = pod_ns.link("eth0")
    with pytest.raises(LinkConflict, match="cannot create interface eth0 in the pod"):
        host_ns.call(add, PLAN, pod_ns.path)
    assert pod_ns.link("eth0") == before
    assert host_ns.link(NAME) is None


def test_a_stale_route_is_repaired(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.do("route", "add", str(V4), "dev", "uplink", "proto", "80")
    host_ns.do("-6", "route", "add", str(V6), "via", "2001:db8::1", "metric", "32", "proto", "80")  # better than ours
    _, _, notes = host_ns.call(add, PLAN, pod_ns.path)
    assert notes == [
        f"warning: removing the route {address}/{address.max_prefixlen} through uplink: "
        f"the address is now assigned to {NAME}"
        for address in DUAL
    ]
    assert host_routes(host_ns) == {str(V4): NAME, str(V6): NAME}
    assert is_whole(host_ns, pod_ns, PLAN)


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize(("protocol", "owned"), [("80", False), ("boot", True), ("bird", True)])
def test_a_route_of_others_stays(
    host_ns: Namespace, pod_ns: Namespace, version: int, protocol: str, owned: bool
) -> None:
    """Also when IPAM says that the address is ours: an administrator's route, or BIRD's."""
    address = V4 if version == 4 else V6
    host_ns.do(f"-{version}", "route", "add", str(address), "dev", "uplink", "proto", protocol)
    before = host_ns.routes(version)

    def add_as(plan: PodPlan, path: str) -> None:
        add(plan, path, owned=None if owned else ())

    with pytest.raises(RouteConflict, match=f"{address}/.* through {NAME}: it exists through uplink"):
        host_ns.call(add_as, PLAN, pod_ns.path)
    assert host_ns.routes(version) == before
    assert host_ns.link(NAME) is None


@pytest.mark.parametrize("prefix", ["cali", "tap"])
def test_a_living_pods_route_stays(
    host_ns: Namespace, pod_ns: Namespace, make_pod_ns: MakeNamespace, prefix: str
) -> None:
    """A datastore that was lost gives out the addresses of living pods again, whatever their interfaces are called."""
    living = replace(PLAN, host_ifname=f"{prefix}living", mac=None)
    living_pod = make_pod_ns("living")
    host_ns.call(add, living, living_pod.path)
    with pytest.raises(RouteConflict, match=f"through {NAME}: it exists through {prefix}living"):
        host_ns.call(add, PLAN, pod_ns.path)
    assert is_whole(host_ns, living_pod, living) and host_ns.link(NAME) is None
    host_ns.do("link", "set", f"{prefix}living", "down")
    host_ns.do("route", "add", str(V4), "dev", "lo", "proto", "80")
    host_ns.call(add, PLAN, pod_ns.path)
    assert is_whole(host_ns, pod_ns, PLAN)


@pytest.mark.parametrize("metric", ["1024", "700"])
def test_a_living_pods_route_stays_that_the_agent_made(
    host_ns: Namespace, pod_ns: Namespace, make_pod_ns: MakeNamespace, metric: str
) -> None:
    """It has a metric: the kernel would take ours beside it, and prefer it."""
    living = replace(ONLY_V4, host_ifname="caliliving", mac=None)
    host_ns.call(add, living, make_pod_ns("living").path)
    host_ns.do("route", "add", str(V4), "dev", "caliliving", "scope", "link", "metric", metric)
    host_ns.do("route", "del", str(V4), "dev", "caliliving", "metric", "0")
    before = host_ns.routes(4)
    with pytest.raises(RouteConflict, match=f"through {NAME}: it exists through caliliving"):
        host_ns.call(add, ONLY_V4, pod_ns.path)
    assert host_ns.routes(4) == before and host_ns.link(NAME) is None
    host_ns.do("link", "set", "caliliving", "down")
    host_ns.call(add, ONLY_V4, pod_ns.path)
    assert host_routes(host_ns) == {str(V4): NAME}


@pytest.mark.parametrize("kind", ["blackhole", "unreachable"])
@pytest.mark.parametrize("version", [4, 6])
def test_a_route_without_interface_is_repaired(host_ns: Namespace, pod_ns: Namespace, kind: str, version: int) -> None:
    address = V4 if version == 4 else V6
    host_ns.do(f"-{version}", "route", "add", kind, str(address), "proto", "80")
    host_ns.call(add, PLAN, pod_ns.path)
    assert host_routes(host_ns) == {str(V4): NAME, str(V6): NAME}
    assert is_whole(host_ns, pod_ns, PLAN)


def test_a_route_with_a_next_hop_object_is_repaired(host_ns: Namespace, pod_ns: Namespace) -> None:
    host_ns.do("nexthop", "add", "id", "7", "via", "192.0.2.1", "dev", "uplink")
    host_ns.do("route", "add", str(V4), "nhid", "7", "proto", "80")
    host_ns.call(add, ONLY_V4, pod_ns.path)
    assert host_routes(host_ns) == {str(V4): NAME}


@pytest.mark.parametrize("version", [4, 6])
def test_the_hosts_own_address_is_never_a_pods(host_ns: Namespace, pod_ns: Namespace, version: int) -> None:
    address = V4 if version == 4 else V6
    host_ns.do("addr", "add", f"{address}/{address.max_prefixlen}", "dev", "uplink")
    with pytest.raises(RouteConflict, match="the address is this host's own, on interface"):
        host_ns.call(add, PLAN, pod_ns.path)
    assert f"{address}/{address.max_prefixlen}" in host_ns.addresses("uplink")
    assert host_ns.link(NAME) is None


def test_a_host_that_ignores_routes_without_carrier(host_ns: Namespace, pod_ns: Namespace) -> None:
    """The look-up does not see our route before the pod's end is up; it is there all the same."""
    for family in ("ipv4", "ipv6"):
        for name in ("all", "default"):
            host_ns.set_sysctl(f"{family}/conf/{name}/ignore_routes_with_linkdown", "1")
    assert host_ns.call(add, PLAN, pod_ns.path)[2] == []
    assert is_whole(host_ns, pod_ns, PLAN)


def test_another_network_of_the_pod_has_the_default_route(host_ns: Namespace, pod_ns: Namespace) -> None:
    pod_ns.do("link", "add", "net1", "type", "veth", "peer", "name", "net1b")
    pod_ns.do("link", "set", "net1", "up")
    pod_ns.do("route", "add", "default", "dev", "net1")
    with pytest.raises(RouteConflict, match=r"0\.0\.0\.0/0 through eth0 in the pod: it exists through net1"):
        host_ns.call(add, PLAN, pod_ns.path)
    assert pod_ns.routes(4)[0]["dev"] == "net1"
    assert host_ns.link(NAME) is None


def test_the_kernels_words_reach_the_user(host_ns: Namespace, pod_ns: Namespace) -> None:
    with pytest.raises(
        KernelError, match=f"cannot create interface {NAME} .*kernel: Invalid number of transmit queues"
    ):
        host_ns.call(add, replace(PLAN, num_queues=100_000), pod_ns.path)
    assert host_ns.link(NAME) is None
