"""The agent's loop in a namespace: made, kept, repaired, removed; and nothing foreign touched."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.model.keys import BlockKey, ResourceKey
from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.status.file import since_boot, why_not_ready
from cni_calico.nodeagent.status.policing import Standing
from tests.deadlines import until
from tests.netns.agents import Running, Store, key_of, running
from tests.netns.namespaces import Namespace
from tests.netns.startups import add_card
from tests.unit.nodeagent.fabric import NODES, pool, workload

pytestmark = pytest.mark.netns

POOLS = (pool("10.65.0.0/16", "CrossSubnet", nat_outgoing=True), pool("fd65::/64", "Always"))
MADE = {
    "10.65.1.0/26": ("blackhole", None, None),
    "10.65.2.0/26": ("unicast", "10.0.0.2", "eth0"),
    "10.65.3.0/26": ("unicast", "10.65.3.0", "vxlan.calico"),
    "fd65::1:0/122": ("blackhole", None, None),
    "fd65::2:0/122": ("unicast", "fd65::2:0", "vxlan-v6.calico"),
    "fd65::3:0/122": ("unicast", "fd65::3:0", "vxlan-v6.calico"),
}


def make_store(path: Path) -> Store:
    made = Store(path)
    made.put(*NODES.values(), *POOLS, workload("w", "calia", "10.65.1.5/32", "fd65::1:5/128"))
    for number in (1, 2, 3):
        made.put_block(f"10.65.{number}.0/26", f"n{number}")
        made.put_block(f"fd65::{number}:0/122", f"n{number}")
    return made


@pytest.fixture
def filled_store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store.db")


@pytest.fixture
def agent(host_n1: Namespace, filled_store: Store, tmp_path: Path) -> Iterator[Running]:
    with running(host_n1, filled_store, "n1", tmp_path / "n1", FELIX_ROUTEREFRESHINTERVAL="1") as started:
        yield started


def routes(ns: Namespace) -> dict[str, tuple[Any, Any, Any]]:
    """The agent's: protocol 80."""
    shown = [entry for version in (4, 6) for entry in ns.routes(version) if entry.get("protocol") == "80"]
    return {
        entry["dst"]: (
            entry.get("type", "unicast"),
            entry.get("gateway"),
            entry.get("dev") if entry.get("type", "unicast") == "unicast" else None,
        )
        for entry in shown
    }


def test_a_device_that_waits_for_its_rules_is_left_as_it_is(
    host_n1: Namespace, filled_store: Store, tmp_path: Path
) -> None:
    """Neither removed nor brought up; the one that is up already stays."""
    for number, name in enumerate(("vxlan.calico", "vxlan-v6.calico")):
        link = ("link", "add", name, "type", "vxlan", "id", str(4096 + number), "dstport", "4789")
        host_n1.do(*link, *(("group", "ff02::9", "dev", "eth0") if number else ("dev", "eth0")))
    host_n1.do("link", "set", "vxlan-v6.calico", "up")
    before = {name: host_n1.link(name) for name in ("vxlan.calico", "vxlan-v6.calico")}
    agent = Running(host_n1, filled_store, "n1", tmp_path / "n1", policing=Standing())
    try:
        agent.start().until_synced()
    finally:
        agent.stop(signal.SIGKILL)
    after = {name: host_n1.link(name) for name in before}
    waiting, was = after["vxlan.calico"], before["vxlan.calico"]
    assert waiting is not None and was is not None and waiting["ifindex"] == was["ifindex"]
    assert "UP" not in waiting["flags"] and after["vxlan-v6.calico"] is not None


def test_a_node_without_the_tunnel_that_a_pool_needs_is_not_ready(
    host_n1: Namespace, filled_store: Store, tmp_path: Path
) -> None:
    """This kernel has no IPIP, or is told so."""
    ipip = pool("10.65.0.0/16", ipip="Always")
    filled_store.put(ipip)
    faults = ",".join(f"netlink.tunnel-create:before:{n}:fail" for n in range(1, 300))
    with running(host_n1, filled_store, "n1", tmp_path / "n1", CALICO_FAULT=faults) as agent:
        why = why_not_ready(agent.status(), since_boot())
        assert why.startswith("IPPool 10.65.0.0-16 needs tunl0 to reach nodes n2, n3: cannot make tunl0")
        filled_store.put(replace(ipip, ipip_mode="Never"))
        until(lambda: "tunl0" not in why_not_ready(agent.status(), since_boot()), "it recovers")


def test_a_node_that_cannot_masquerade_is_not_ready(host_n1: Namespace, filled_store: Store, tmp_path: Path) -> None:
    """While it has a block of a pool with natOutgoing; without one nothing needs it."""
    faults = ",".join(f"nft.apply:before:{n}:fail" for n in range(1, 300))
    with running(host_n1, filled_store, "n1", tmp_path / "n1", CALICO_FAULT=faults) as agent:
        why = why_not_ready(agent.status(), since_boot())
        assert "IPPool 10.65.0.0-16 has natOutgoing and there is no masquerading for IPv4" in why
        filled_store.put(replace(POOLS[0], nat_outgoing=False))
        until(lambda: why_not_ready(agent.status(), since_boot()) == "", "it recovers", 30)


def test_a_workload_takes_no_route_from_the_host(host_n1: Namespace, filled_store: Store, tmp_path: Path) -> None:
    """An endpoint whose record claims the world, the host's own neighbour and another workload's address."""
    add_card(host_n1, "calib")
    host_n1.do("route", "add", "192.0.2.7/32", "via", "10.0.0.254")
    host_n1.do("route", "add", "10.65.1.5/32", "dev", "calia")  # as the CNI plugin made it
    filled_store.put(workload("greedy", "calib", "0.0.0.0/0", "192.0.2.7/32", "10.65.1.5/32", "10.65.1.9/32", "::/0"))
    with running(host_n1, filled_store, "n1", tmp_path / "n1", FELIX_ROUTEREFRESHINTERVAL="1") as agent:
        until(lambda: any("192.0.2.7" in text for text in agent.status()["failed"]), "the conflict is told")
        shown = {(entry["dst"], entry.get("dev")) for version in (4, 6) for entry in host_n1.routes(version)}
        assert {("default", "eth0"), ("192.0.2.7", "eth0"), ("10.65.1.9", "calib"), ("10.65.1.5", "calia")} <= shown
        assert {dst for dst, device in shown if device == "calib"} - {"fe80::/64"} == {"10.65.1.9"}


def on_workload(ns: Namespace) -> set[str]:
    """Destinations of the routes on calia that are the workload's."""
    shown = [e for version in (4, 6) for e in ns.ip(f"-{version}", "route", "show", "dev", "calia")]
    return {entry["dst"] for entry in shown if not entry["dst"].startswith(("fe80", "ff00"))}


def vxlan(ns: Namespace) -> dict[str, Any]:
    return ns.link("vxlan.calico") or {"address": "66:11:22:33:44:55", "flags": [], "mtu": 0}


def nft(ns: Namespace) -> str:
    return ns.run("nft", "list", "table", "ip", "calico", check=False).stdout


def test_everything_is_made(host_n1: Namespace, agent: Running) -> None:
    assert routes(host_n1) == MADE
    assert on_workload(host_n1) == {"10.65.1.5", "fd65::1:5"}
    (vxlan,) = host_n1.ip("link", "show", "dev", "vxlan.calico")
    assert (vxlan["mtu"], vxlan["linkinfo"]["info_data"]["id"]) == (1450, 4096)
    assert host_n1.addresses("vxlan.calico") == {"10.65.1.0/32"}
    assert host_n1.addresses("vxlan-v6.calico") == {"fd65::1:0/128"}
    assert {n["dst"] for n in host_n1.ip("neigh", "show", "dev", "vxlan.calico", "nud", "permanent")} == {
        "10.65.2.0",
        "10.65.3.0",
    }
    assert host_n1.sysctl("ipv4/ip_forward") == host_n1.sysctl("ipv6/conf/all/forwarding") == "1"
    assert host_n1.sysctl("ipv4/conf/calia/proxy_arp") == host_n1.sysctl("ipv6/conf/calia/proxy_ndp") == "1"
    assert "masquerade" in nft(host_n1)
    assert (agent.root / "lib" / "mtu").read_text() == "1430"
    assert agent.status()["failed"] == []


def test_pod_cidrs_are_routed_like_blocks(host_n1: Namespace, tmp_path: Path) -> None:
    """Where host-local IPAM gives addresses out of them; a Kubernetes Node tells them so."""
    store = Store(tmp_path / "pods.db")
    for number, node in enumerate(NODES.values(), 1):
        vtep = ip_address(f"10.65.{number}.0")
        status = {"podCIDRs": [f"10.65.{number}.0/24", f"fd65::{number}:0/112", "of no use"]}
        store.put(replace(node, status=status, ipv4_vxlan_tunnel=vtep))
    store.put(*POOLS, workload("w", "calia", "10.65.1.5/32"))
    with running(host_n1, store, "n1", tmp_path / "n1", USE_POD_CIDR="true"):
        assert routes(host_n1) == {
            "10.65.1.0/24": ("blackhole", None, None),
            "10.65.2.0/24": ("unicast", "10.0.0.2", "eth0"),
            "10.65.3.0/24": ("unicast", "10.65.3.0", "vxlan.calico"),
            "fd65::1:0/112": ("blackhole", None, None),
            "fd65::2:0/112": ("unicast", "fd65::2:0", "vxlan-v6.calico"),
            "fd65::3:0/112": ("unicast", "fd65::3:0", "vxlan-v6.calico"),
        }
        assert "10.65.1.5" in on_workload(host_n1)
        moved = replace(NODES["n2"], status={"podCIDRs": ["10.65.22.0/24"]})
        store.put(moved)
        until(lambda: "10.65.22.0/24" in routes(host_n1) and "10.65.2.0/24" not in routes(host_n1), "another pod CIDR")
    with running(host_n1, store, "n1", tmp_path / "n2"):  # of no account without host-local
        until(lambda: routes(host_n1) == {}, "nothing is routed")


def test_a_second_pass_changes_nothing(host_n1: Namespace, agent: Running) -> None:
    lines = until(lambda: "MTU of workloads" in agent.log() and agent.log(), "the first pass").splitlines()
    begun = agent.status()["updated"]
    until(lambda: agent.status()["updated"] > begun + 2.5, "two more full passes")
    assert agent.log().splitlines()[len(lines) :] == []


INTERVALS = ("ROUTE", "INTERFACE", "IPTABLES", "NFTABLES")
TAMPERINGS = {
    "a route is deleted": ("ip route del 10.65.3.0/26", lambda ns: routes(ns) == MADE),
    "a blackhole is deleted": ("ip route del blackhole 10.65.1.0/26", lambda ns: routes(ns) == MADE),
    "a route is replaced": (
        "ip route replace 10.65.2.0/26 via 10.0.0.77 dev eth0 proto 80",
        lambda ns: routes(ns) == MADE,
    ),
    "an IPv6 route is deleted": ("ip -6 route del fd65::3:0/122", lambda ns: routes(ns) == MADE),
    "a route of nobody's": ("ip route add 10.65.99.0/26 via 10.0.0.9 proto 80", lambda ns: routes(ns) == MADE),
    "a workload's route is deleted": (
        "ip route del 10.65.1.5 dev calia",
        lambda ns: on_workload(ns) == {"10.65.1.5", "fd65::1:5"},
    ),
    "the device is removed": (
        "ip link del vxlan.calico",
        lambda ns: routes(ns) == MADE and ns.addresses("vxlan.calico") == {"10.65.1.0/32"},
    ),
    "the device is down": (
        "ip link set vxlan.calico down",
        lambda ns: routes(ns) == MADE and "UP" in vxlan(ns)["flags"],
    ),
    "the MAC is changed": (
        "ip link set vxlan.calico address 66:11:22:33:44:55",
        lambda ns: vxlan(ns)["address"] != "66:11:22:33:44:55",
    ),
    "the MTU is changed": ("ip link set vxlan.calico mtu 1300", lambda ns: vxlan(ns)["mtu"] == 1450),
    "an address is added": (
        "ip addr add 10.65.1.9/32 dev vxlan.calico",
        lambda ns: ns.addresses("vxlan.calico") == {"10.65.1.0/32"},
    ),
    "the address is removed": (
        "ip addr del 10.65.1.0/32 dev vxlan.calico",
        lambda ns: ns.addresses("vxlan.calico") == {"10.65.1.0/32"} and routes(ns) == MADE,
    ),
    "another device of that name": (
        # until it was quicker than the agent, which makes a device that goes at once
        "sh -c 'until ip link add vxlan.calico type bridge 2>/dev/null; do ip link del vxlan.calico; done'",
        lambda ns: vxlan(ns).get("linkinfo", {}).get("info_kind") == "vxlan" and routes(ns) == MADE,
    ),
    "a neighbour's MAC is changed": (
        "ip neigh replace 10.65.3.0 lladdr 66:00:00:00:00:00 dev vxlan.calico nud permanent",
        lambda ns: "66:00:00:00:00:00" not in str(ns.ip("neigh", "show", "dev", "vxlan.calico", "nud", "permanent")),
    ),
    "a forwarding entry is removed": (
        "sh -c 'bridge fdb del $(bridge fdb show dev vxlan.calico | head -1 | cut -d\" \" -f1) dev vxlan.calico'",
        lambda ns: len(ns.run("bridge", "fdb", "show", "dev", "vxlan.calico").stdout.splitlines()) == 2,
    ),
    "the table is flushed": ("nft flush table ip calico", lambda ns: "masquerade" in nft(ns)),
    "the table is deleted": ("nft delete table ip calico", lambda ns: "masquerade" in nft(ns)),
    "a rule is added": (
        "nft add rule ip calico nat-outgoing accept",
        lambda ns: "\taccept" not in nft(ns).replace("policy accept", ""),
    ),
    "forwarding is switched off": (
        "sh -c 'echo 0 > /proc/sys/net/ipv4/ip_forward'",
        lambda ns: ns.sysctl("ipv4/ip_forward") == "1" and ns.sysctl("ipv4/conf/calia/forwarding") == "1",
    ),
    "IPv6 proxying is switched off": (
        "sh -c 'echo 0 > /proc/sys/net/ipv6/conf/calia/proxy_ndp; echo 1 > /proc/sys/net/ipv6/conf/calia/accept_ra'",
        lambda ns: ns.sysctl("ipv6/conf/calia/proxy_ndp") == "1" and ns.sysctl("ipv6/conf/calia/accept_ra") == "0",
    ),
    "the interface is taken down and up": (
        "sh -c 'ip link set calia down; ip link set calia up'",
        lambda ns: on_workload(ns) == {"10.65.1.5", "fd65::1:5"},
    ),
    "the MAC of IPv6's device is changed": (
        "ip link set vxlan-v6.calico address 66:11:22:33:44:55",
        lambda ns: (ns.link("vxlan-v6.calico") or {}).get("address") != "66:11:22:33:44:55" and routes(ns) == MADE,
    ),
    "every route of ours is flushed": ("ip route flush proto 80", lambda ns: routes(ns) == MADE),
    "proxy ARP is switched off": (
        "sh -c 'echo 0 > /proc/sys/net/ipv4/conf/calia/proxy_arp'",
        lambda ns: ns.sysctl("ipv4/conf/calia/proxy_arp") == "1",
    ),
}


# what no notification tells of: the next full resync finds it
UNNOTICED = {"IPv6 proxying is switched off"}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_tampering_is_repaired(host_n1: Namespace, filled_store: Store, tmp_path: Path, what: str) -> None:
    """At once where the kernel tells of it (the resync is far away then), else within one period."""
    command, repaired = TAMPERINGS[what]
    period = "1" if what in UNNOTICED else "3600"
    intervals = dict.fromkeys((f"FELIX_{kind}REFRESHINTERVAL" for kind in INTERVALS), period)
    with running(host_n1, filled_store, "n1", tmp_path / "n1", **intervals):
        assert repaired(host_n1)
        host_n1.run(*shlex.split(command))
        until(lambda: repaired(host_n1), f"repaired: {what}", 10)


def test_what_is_not_ours_stays(host_n1: Namespace, agent: Running) -> None:
    host_n1.do("route", "add", "10.99.0.0/16", "via", "10.0.0.8")
    host_n1.do("route", "add", "10.98.0.0/16", "via", "10.0.0.8", "proto", "static")
    host_n1.run("nft", "add table ip mine; add chain ip mine c")
    host_n1.do("route", "add", "10.65.99.0/26", "via", "10.0.0.9", "proto", "80")  # ours by its protocol: goes
    until(lambda: "10.65.99.0/26" not in routes(host_n1), "a pass")
    kept = {entry["dst"] for entry in host_n1.routes(4)}
    assert {"10.99.0.0/16", "10.98.0.0/16", "10.65.7.0/26", "default"} <= kept
    assert "table ip mine" in host_n1.run("nft", "list", "tables").stdout


def test_changes_of_the_cluster_are_followed(host_n1: Namespace, agent: Running, filled_store: Store) -> None:
    filled_store.put_block("10.65.4.0/26", "n3", "n3", "n2")
    until(lambda: "10.65.4.0/26" in routes(host_n1), "a new block")
    assert routes(host_n1)["10.65.4.1"] == ("unicast", "10.0.0.2", "eth0")
    filled_store.remove(BlockKey(ip_network("10.65.4.0/26")))
    until(lambda: routes(host_n1) == MADE, "the block is gone")
    filled_store.remove(ResourceKey("Node", "n3"))
    until(lambda: "10.65.3.0/26" not in routes(host_n1) and "fd65::3:0/122" not in routes(host_n1), "a node is gone")
    assert len(host_n1.ip("neigh", "show", "dev", "vxlan.calico", "nud", "permanent")) == 1
    filled_store.put(NODES["n3"])
    until(lambda: routes(host_n1) == MADE, "the node is back")
    filled_store.put(replace(POOLS[0], vxlan_mode="Always"))
    until(lambda: routes(host_n1)["10.65.2.0/26"] == ("unicast", "10.65.2.0", "vxlan.calico"), "another mode")
    filled_store.put(replace(POOLS[0], vxlan_mode="Never", nat_outgoing=False), replace(POOLS[1], vxlan_mode="Never"))
    until(lambda: routes(host_n1) == {} and host_n1.link("vxlan.calico") is None, "no tunnels any more")
    until(lambda: nft(host_n1) == "", "nothing to masquerade")
    until(lambda: (agent.root / "lib" / "mtu").read_text() == "1500", "the MTU without tunnels")


def test_workloads_come_and_go(host_n1: Namespace, agent: Running, filled_store: Store) -> None:
    filled_store.put(workload("x", "calib", "10.65.1.6/32"))
    add_card(host_n1, "calib")
    until(lambda: any(e["dst"] == "10.65.1.6" for e in host_n1.ip("route", "show", "dev", "calib")), "its route")
    until(lambda: host_n1.sysctl("ipv4/conf/calib/proxy_arp") == "1", "its settings")
    host_n1.do("link", "del", "calib")
    filled_store.remove(ResourceKey("WorkloadEndpoint", "n1-k8s-x-eth0", "default"))
    filled_store.put(replace(workload("w", "calia", "10.65.1.5/32"), node="n9"))
    # its interface is still there: the route waits out the grace, for the plugin may be making it right now
    until(lambda: on_workload(host_n1) == set(), "routes of nobody's", 20)


@pytest.mark.slow
def test_a_pod_whose_endpoint_cannot_be_read_keeps_its_route(
    host_n1: Namespace, agent: Running, filled_store: Store, tmp_path: Path
) -> None:
    """By the agent that has read it before, and by one that has not. The stale route of another pod is the clock."""
    spoilt = key_of(workload("w", "calia", "10.65.1.5/32"))
    filled_store.put(workload("x", "calib", "10.65.1.6/32"))
    add_card(host_n1, "calib")

    def outlives_the_grace(running_one: Running) -> None:
        until(lambda: spoilt.name in str(running_one.status()["problems"]), "it is named", 20)
        host_n1.do("route", "add", "10.65.1.66/32", "dev", "calib")
        until(lambda: "10.65.1.66" not in str(host_n1.ip("route", "show", "dev", "calib")), "a stale route goes", 40)
        assert on_workload(host_n1) == {"10.65.1.5", "fd65::1:5"}

    filled_store.write(Write.put(spoilt, {"metadata": {"name": spoilt.name, "namespace": spoilt.namespace}, "spec": 7}))
    outlives_the_grace(agent)
    agent.stop()
    with running(host_n1, filled_store, "n1", tmp_path / "n1", FELIX_ROUTEREFRESHINTERVAL="1") as again:
        outlives_the_grace(again)
        filled_store.remove(spoilt)
        until(lambda: on_workload(host_n1) == set(), "nobody's routes go", 40)


def test_a_restart_adopts_what_is_there(
    host_n1: Namespace, agent: Running, filled_store: Store, tmp_path: Path
) -> None:
    before = host_n1.link("vxlan.calico")
    assert agent.stop(signal.SIGKILL) == -signal.SIGKILL
    assert routes(host_n1) == MADE
    with running(host_n1, filled_store, "n1", tmp_path / "n1") as again:
        assert routes(host_n1) == MADE
        assert host_n1.link("vxlan.calico") == before
        made = [line for line in again.log().splitlines() if "made vxlan" in line]
        assert len(made) == 2  # one per device, all by the first agent


def test_a_stop_leaves_the_data_plane(host_n1: Namespace, agent: Running) -> None:
    assert agent.stop() == 0
    assert routes(host_n1) == MADE
    assert "masquerade" in nft(host_n1)


def test_without_a_datastore_nothing_is_touched(host_n1: Namespace, tmp_path: Path) -> None:
    host_n1.do("route", "add", "10.65.99.0/26", "via", "10.0.0.9", "proto", "80")
    root = tmp_path / "dark"
    (tmp_path / "directory.db").mkdir()  # no file can be opened there
    agent = Running(host_n1, Store(tmp_path / "directory.db"), "n1", root)
    try:
        agent.start()
        until(lambda: agent.status().get("datastore_error"), "the outage is told")
        assert not agent.status()["synced"]
        assert "10.65.99.0/26" in routes(host_n1)
    finally:
        agent.stop(signal.SIGKILL)


def test_bad_input_is_told_and_the_rest_keeps_running(host_n1: Namespace, agent: Running, filled_store: Store) -> None:
    wrong = Resource("Node", Metadata("broken"), {"bgp": {"ipv4Address": 7}})
    filled_store.put(wrong, Resource("IPPool", Metadata("broken"), {"cidr": "ten"}))
    filled_store.put(
        Resource("FelixConfiguration", Metadata("default"), {"vxlanMTU": "big", "bogus": 1, "bpfEnabled": True})
    )
    until(lambda: len(agent.status()["problems"]) == 3 and len(agent.status()["warnings"]) == 3, "all is told")
    assert "is known: this node drops its VXLAN" in str(agent.status()["problems"])
    assert "Node broken" in str(agent.status()["problems"])
    assert all(word in str(agent.status()["warnings"]) for word in ("vxlanMTU", "bogus", "bpfEnabled"))
    filled_store.put_block("10.65.4.0/26", "n3")
    until(lambda: "10.65.4.0/26" in routes(host_n1), "the rest keeps running")
    filled_store.remove(ResourceKey("Node", "broken"))
    filled_store.remove(ResourceKey("IPPool", "broken"))
    until(lambda: agent.status()["problems"] == [], "the problems are gone")


def test_policies_that_nobody_enforces_are_told(host_n1: Namespace, filled_store: Store, tmp_path: Path) -> None:
    agent = Running(host_n1, filled_store, "n1", tmp_path / "n1", policies=2)
    try:
        agent.start().until_synced()
        until(lambda: agent.status()["policies"] == 2, "they are counted")
        assert any("2 network policies exist and NOBODY ENFORCES" in text for text in agent.status()["warnings"])
        assert "NOBODY ENFORCES" in agent.log()
    finally:
        agent.stop(signal.SIGKILL)


def test_a_policy_that_the_engine_has_not_heard_of_is_not_called_unenforced(
    host_n1: Namespace, filled_store: Store, tmp_path: Path
) -> None:
    """Its standing is from another moment than the count: it says so itself if it cannot enforce the policy."""
    none = Standing(decided=True, ready=True, upstream_goes=True, why_not="there is no policy", none_exist=True)
    agent = Running(host_n1, filled_store, "n1", tmp_path / "n1", policing=none, policies=1)
    try:
        agent.start().until_synced()
        filled_store.put(Resource("FelixConfiguration", Metadata("default"), {"bogus": "1"}))
        until(lambda: "bogus" in str(agent.status()["warnings"]), "it has done a pass")
        assert agent.status()["policies"] == 0 and "NOBODY ENFORCES" not in agent.log()
    finally:
        agent.stop(signal.SIGKILL)


def test_route_sync_may_be_disabled(host_n1: Namespace, filled_store: Store, tmp_path: Path) -> None:
    with running(host_n1, filled_store, "n1", tmp_path / "n1", FELIX_ROUTESYNCDISABLED="true"):
        assert routes(host_n1) == {}
        assert host_n1.link("vxlan.calico") is not None
