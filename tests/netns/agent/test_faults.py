"""The agent fails, or is killed, at each of its effects in turn; the data plane is right soon after all the same."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyroute2 import IPSet

from cni_calico.kernel.filter.ipsets import read_ipsets
from cni_calico.nodeagent.dataplane.encapsulation import derived_mac
from tests.deadlines import SOON, until
from tests.netns.agents import Running, Store
from tests.netns.namespaces import Namespace, namespace
from tests.netns.startups import add_card
from tests.unit.nodeagent.fabric import NODES, pool, workload

pytestmark = pytest.mark.netns

MAC = derived_mac("n1", 4)
POINTS = (
    "file.rename",
    "file.write",
    "iptables.apply",
    "netlink.addr-add",
    "netlink.fdb-set",
    "netlink.link-set",
    "netlink.neigh-set",
    "netlink.route-add",
    "netlink.tunnel-create",
    "nft.apply",
    "sysctl.write",
)
REMOVALS = (
    "ipset.destroy",
    "netlink.fdb-del",
    "netlink.neigh-del",
    "netlink.route-del",
    "netlink.tunnel-addr-del",
    "netlink.tunnel-delete",
)


@pytest.fixture
def failing_host() -> Iterator[Namespace]:
    with namespace("faults") as ns:
        add_card(ns, "eth0", "10.0.0.1/24")
        add_card(ns, "calia")
        ns.run("iptables-nft", "-P", "FORWARD", "DROP")
        yield ns


@pytest.fixture
def failing_store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "store.db")
    vxlan = pool("10.65.0.0/16", "Always", nat_outgoing=True)
    made.put(NODES["n1"], NODES["n2"], NODES["n3"], vxlan, workload("w", "calia", "10.65.1.5/32"))
    for number in (1, 2, 3):
        made.put_block(f"10.65.{number}.0/26", f"n{number}")
    return made


def mtu_file(agent: Running) -> str:
    path = agent.root / "lib" / "mtu"
    return path.read_text() if path.exists() else ""


def is_right(ns: Namespace, agent: Running) -> bool:
    routes = {entry["dst"] for entry in ns.routes(4)}
    link = ns.link("vxlan.calico")
    if link is None or link["mtu"] != 1450 or not {"10.65.2.0/26", "10.65.3.0/26", "10.65.1.0/26"} <= routes:
        return False
    return (
        "10.65.1.5" in routes
        and ns.addresses("vxlan.calico") == {"10.65.1.0/32"}
        and len(ns.run("bridge", "fdb", "show", "dev", "vxlan.calico").stdout.splitlines()) == 2
        and len(ns.ip("neigh", "show", "dev", "vxlan.calico", "nud", "permanent")) == 2
        and ns.sysctl("ipv4/conf/calia/proxy_arp") == "1"
        and "masquerade" in ns.run("nft", "list", "ruleset").stdout
        and "-o cali+" in ns.run("iptables-nft", "-S", "FORWARD").stdout
        and mtu_file(agent) == "1450"
    )


def spoil(ns: Namespace) -> None:
    """Something for every removal to do."""
    for command in (
        # with another MAC address the neighbours would go by themselves when it is corrected
        f"ip link add vxlan.calico address {MAC} type vxlan id 4096 dstport 4789 local 10.0.0.1 dev eth0 nolearning",
        "ip link set vxlan.calico up",
        "ip addr add 10.65.1.99/32 dev vxlan.calico",
        "ip neigh add 10.65.9.0 lladdr 66:00:00:00:00:09 dev vxlan.calico nud permanent",
        "bridge fdb add 66:00:00:00:00:09 dev vxlan.calico dst 10.0.0.9 self permanent",
        "ip route add 10.65.9.0/26 via 10.0.0.9 proto 80",
        "ip link add vxlan-v6.calico type vxlan id 4096 dstport 4789 local fd00::1 nolearning",
    ):
        ns.run(*command.split())
    ns.call(_make_set)


def _make_set() -> None:
    with IPSet() as sets:
        sets.create("cali40all-ipam-pools")


SLOW = pytest.mark.slow
WAYS = ["after:1:fail", pytest.param("before:1:fail", marks=SLOW), pytest.param("after:1:kill", marks=SLOW)]


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize("point", [*POINTS, *REMOVALS])
def test_the_agent_survives(
    failing_host: Namespace, failing_store: Store, tmp_path: Path, point: str, what: str
) -> None:
    if point in REMOVALS:
        spoil(failing_host)
    trace = tmp_path / "trace"
    environ = {"CALICO_FAULT": f"{point}:{what}", "CALICO_FAULT_TRACE": str(trace), "FELIX_ROUTEREFRESHINTERVAL": "5"}
    agent = Running(failing_host, failing_store, "n1", tmp_path / "n1", environ)
    try:
        agent.start()
        if what.endswith("kill"):
            until(lambda: agent.has_ended(), "it is killed", 20)
            agent.environ = {}
            agent.start()
        until(lambda: is_right(failing_host, agent), "the data plane is right", 30)
        until(lambda: agent.status().get("failed") == [], "nothing fails any more", 30)
        assert f"{point}:{what.split(':')[0]}\n" in trace.read_text()  # it was reached
        if point in REMOVALS:
            until(lambda: failing_host.link("vxlan-v6.calico") is None, "the device that nobody wants is gone")
            until(lambda: "10.65.9.0/26" not in str(failing_host.routes(4)), "the route that nobody wants is gone")
            until(lambda: failing_host.call(read_ipsets, SOON) == [], "upstream's set is gone", 30)
    finally:
        agent.stop(signal.SIGKILL)
