"""Bad input and a real ``calico-node run``: it is named, the part it belongs to degrades, the rest keeps running.

The node is one of two on paper: the other is a record with a tunnel address and a block, so that routes, neighbours and
forwarding entries through ``vxlan.calico`` show what the agent takes and leaves.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.kernel.filter import nft as nftables
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.namespaces import namespace
from tests.netns.nodes import ROOT, Node, Pod
from tests.netns.startups import read_all
from tests.unit.nodeagent import fabric

pytestmark = pytest.mark.netns

OWN, OTHER = ResourceKey("Node", "n1"), ResourceKey("Node", "n2")
POOL = ResourceKey("IPPool", "default-ipv4-ippool")
FAR = "10.65.77.0/26"  # the other node's block


@pytest.fixture
def set_up(agent_node: Node) -> Node:
    """The node runs, and has its route to the other."""
    agent_node.store.put(fabric.node("n2", "10.0.0.2/24", vtep="10.65.77.1"))
    agent_node.store.put_block(FAR, "n2")
    agent_node.run().until_ready()
    until(lambda: FAR in through_tunnel(agent_node), "the route to the other node", 30)
    return agent_node


def through_tunnel(node: Node) -> dict[str, str]:
    """Destination -> gateway of the routes through vxlan.calico."""
    found = [r for r in node.ns.routes(4) if r.get("dev") == "vxlan.calico" and r.get("protocol") == "80"]
    return {route["dst"]: route["gateway"] for route in found}


def forwarding(node: Node) -> str:
    return node.ns.run("bridge", "fdb", "show", "dev", "vxlan.calico").stdout


def document(node: Node, key: ResourceKey) -> dict[str, Any]:
    found: dict[str, Any] = read_all(node.store.path)[f"{key.kind.lower()}s/{key.name}"]
    return found


def spoil(node: Node, key: ResourceKey, **fields: Any) -> dict[str, Any]:
    """Put nonsense into a record; what it was before."""
    before = document(node, key)
    node.store.write(Write.put(key, {**before, "spec": {**before["spec"], **fields}}))
    return before


def calicoctl_status(node: Node) -> str:
    argv = ["nsenter", f"--net={node.ns.path}", sys.executable, "-m", "cni_calico.ctl.main", "node", "status"]
    return subprocess.run(argv, cwd=ROOT, env=node.environ(), capture_output=True, text=True, timeout=60).stdout


def cni_is_served(node: Node) -> bool:
    return "calico_cni_" in node.ns.call(_ask_cni_server, f"{node.root}/run/cni.sock")


def _ask_cni_server(path: str) -> str:
    from cni_calico.nodeagent.status.probes import why_cni_silent

    return why_cni_silent(path) or "calico_cni_"


def told_by_probe(node: Node, flag: str = "-felix-ready") -> str:
    done = node.calico_node(flag, check=False)
    return done.stderr if done.returncode else ""


# -- the environment --------------------------------------------------------------------------------------------------


def test_a_new_node_with_a_wrong_variable(agent_node: Node) -> None:
    """Nothing is written, the reason is where people look for it, and the CNI server answers."""
    agent_node.more = {"AS": "high", "CALICO_IPV4POOL_BLOCK_SIZE": "33"}
    agent_node.run()
    until(lambda: "AS='high'" in told_by_probe(agent_node, "-felix-live"), "the probe names it", 30)
    said = told_by_probe(agent_node, "-felix-ready")
    assert "start-up fails" in said and "CALICO_IPV4POOL_BLOCK_SIZE='33'" in said
    assert "AS='high'" in calicoctl_status(agent_node) and "AS='high'" in agent_node.calico_node("-show-status").stdout
    assert "AS='high'" in agent_node.log() and "Traceback" not in agent_node.log()
    assert read_all(agent_node.store.path) == {} and not (agent_node.root / "lib" / "nodename").exists()
    until(lambda: cni_is_served(agent_node), "the CNI server answers", 20)
    agent_node.stop()
    agent_node.more = {}
    agent_node.run().until_ready()
    assert "AS=" not in calicoctl_status(agent_node)


def test_a_node_that_was_set_up_before_with_a_wrong_variable(set_up: Node) -> None:
    """Its pods keep an agent: routes are repaired, new pods get addresses; readiness stops a rolling update."""
    node = set_up
    node.stop()
    node.more = {"AS": "high", "AUTODETECT_POLL_INTERVAL": "soon", "IP": "10.0.0.300"}
    node.run()
    until(lambda: node.status().get("synced") and node.status().get("environment"), "the agent runs", 60)
    node.ns.do("route", "del", FAR)
    until(lambda: FAR in through_tunnel(node), "the route is back", 20)
    with namespace("pod") as pod_ns:
        pod = node.add(Pod(pod_ns, "c1"))
        assert node.ns.run("ping", "-c1", "-W2", pod.addresses[0]).returncode == 0
        node.cni("DEL", pod)
    assert told_by_probe(node, "-felix-live") == ""
    assert "start-up fails" in told_by_probe(node, "-felix-ready")
    shown = calicoctl_status(node)
    for text in ("AS='high'", "AUTODETECT_POLL_INTERVAL='soon'", "IP='10.0.0.300'"):
        assert text in shown
    assert document(node, OWN)["spec"]["bgp"]["ipv4Address"] == "10.0.0.1/24"


def test_nothing_runs_on_a_guess_about_the_backend(set_up: Node) -> None:
    """BGP or no BGP decides about other nodes' routes: no agent rather than the wrong one; what is there stays."""
    node = set_up
    node.stop()
    before = through_tunnel(node)
    node.more = {"CALICO_NETWORKING_BACKEND": "vxlam"}
    node.run()
    until(lambda: node.log().count("CALICO_NETWORKING_BACKEND='vxlam': expected one of bird, vxlan, none") > 1, "told")
    until(lambda: cni_is_served(node), "the CNI server answers", 20)
    assert through_tunnel(node) == before
    with namespace("pod") as pod_ns:
        node.cni("DEL", node.add(Pod(pod_ns, "c1")))


def test_a_default_pool_of_the_wrong_family(agent_node: Node) -> None:
    agent_node.more = {"CALICO_IPV4POOL_CIDR": "fd00:65::/48", "CALICO_IPV6POOL_CIDR": "10.66.0.0/16"}
    agent_node.run()
    until(lambda: "expected an IPv4 network" in told_by_probe(agent_node), "the probe names it", 30)
    assert "CALICO_IPV6POOL_CIDR='10.66.0.0/16': expected an IPv6 network" in told_by_probe(agent_node)
    assert read_all(agent_node.store.path) == {}


def test_felix_parameters_that_are_unknown_or_wrong(agent_node: Node) -> None:
    agent_node.store.put(
        Resource("FelixConfiguration", Metadata("default"), {"vxlanMTU": "big", "bogus": 1, "bpfEnabled": True})
    )
    agent_node.more = {
        "FELIX_VXLANPORT": "99999",
        "FELIX_NOSUCHTHING": "1",
        "FELIX_IPV6SUPPORT": "perhaps",
    }
    agent_node.run().until_ready()
    until(lambda: agent_node.ns.link("vxlan.calico"), "the tunnel is up", 30)
    shown = calicoctl_status(agent_node)
    for text in (
        "FELIX_VXLANPORT='99999' is not used: expected a whole number",
        "FELIX_NOSUCHTHING is unknown",
        "FELIX_IPV6SUPPORT='perhaps' is not used",
        "vxlanMTU of FelixConfiguration default='big' is not used",
        "bogus of FelixConfiguration default is unknown",
        "bpfEnabled of FelixConfiguration default='true': there is NO eBPF data plane",
    ):
        assert text in shown, text
        assert text in agent_node.log(), text
    link = agent_node.ns.link("vxlan.calico")
    assert link is not None and link["linkinfo"]["info_data"]["port"] == 4789


def test_a_datastore_that_does_not_exist(agent_node: Node) -> None:
    agent_node.more = {"DATASTORE_TYPE": "mysql"}
    agent_node.run()
    until(lambda: "unknown datastore type: mysql" in told_by_probe(agent_node), "the probe names it", 30)
    assert "Traceback" not in agent_node.log()


def test_a_datastore_that_does_not_answer(agent_node: Node) -> None:
    agent_node.more = {"DATASTORE_TYPE": "etcdv3", "ETCD_ENDPOINTS": "http://127.0.0.1:9", "WAIT_FOR_DATASTORE": "true"}
    agent_node.run()
    until(
        lambda: "waiting for the datastore" in told_by_probe(agent_node, "-felix-live"), "the probe says what for", 60
    )
    assert "127.0.0.1:9" in calicoctl_status(agent_node)
    until(lambda: cni_is_served(agent_node), "the CNI server answers", 20)
    code, seconds = agent_node.stop()
    assert code == 0 and seconds < 5


# -- records ----------------------------------------------------------------------------------------------------------


def test_a_node_record_that_is_spoilt_while_we_look(set_up: Node) -> None:
    """The other's, then our own: both keep what they said; the next readable version counts."""
    node = set_up
    before = through_tunnel(node), forwarding(node)
    good = spoil(node, OTHER, bgp={"ipv4Address": "ten"})
    until(lambda: "Node n2" in str(node.status()["problems"]), "it is named", 20)
    own = spoil(node, OWN, ipv4VXLANTunnelAddr=["10.65.0.0"])
    until(lambda: "Node n1" in str(node.status()["problems"]), "our own too", 20)
    assert "stays in force" in calicoctl_status(node)
    node.store.put_block("10.65.78.0/26", "n2")
    until(lambda: "10.65.78.0/26" in through_tunnel(node), "the rest keeps running", 20)
    assert before[0].items() <= through_tunnel(node).items() and forwarding(node) == before[1]
    assert told_by_probe(node) == ""
    node.store.write(Write.put(OTHER, good), Write.put(OWN, own))
    until(lambda: node.status()["problems"] == [], "all is well again", 20)


def test_an_own_record_that_is_spoilt_before_we_start(set_up: Node) -> None:
    """Start-up refuses to write over it; the agent takes nothing away and looks after pods."""
    node = set_up
    with namespace("pod") as pod_ns:
        pod = node.add(Pod(pod_ns, "c1"))
        node.stop()
        good = spoil(node, OWN, bgp={"ipv4Address": {"no": "address"}})
        before = through_tunnel(node), forwarding(node), (node.root / "lib" / "mtu").read_text()
        node.run()
        until(lambda: "Node n1" in str(node.status().get("problems")), "it is named", 60)
        until(lambda: "Node n1" in told_by_probe(node), "start-up says so", 30)
        node.ns.do("route", "del", f"{pod.addresses[0]}/32")
        until(lambda: any(r["dst"] == pod.addresses[0] for r in node.ns.routes(4)), "the pod's route is back", 30)
        assert (through_tunnel(node), forwarding(node), (node.root / "lib" / "mtu").read_text()) == before
        node.store.write(Write.put(OWN, good))
        node.until_ready()
        until(lambda: node.status()["problems"] == [], "all is well again", 20)
        node.cni("DEL", pod)


def test_pools_that_are_spoilt(set_up: Node) -> None:
    """A pool of the wrong family, and the pool in use made unreadable: all that was made of it stays."""
    node = set_up

    def around() -> tuple[object, ...]:
        tunnel = through_tunnel(node), node.ns.addresses("vxlan.calico"), (node.root / "lib" / "mtu").read_text()
        return tunnel, node.ns.call(nftables.read_table, "ip", "calico", Deadline.after(20))

    before = around()
    assert before[1] is not None, "nothing is masqueraded: the test shows less than it says"
    node.store.put(Resource("IPPool", Metadata("odd"), {"cidr": "fd00:77::/48", "blockSize": 26, "ipipMode": "Always"}))
    until(lambda: len(node.status()["problems"]) == 2, "its block size and its mode are named", 20)
    good = spoil(node, POOL, cidr="ten dot something")
    until(lambda: "IPPool default-ipv4-ippool" in str(node.status()["problems"]), "it is named", 20)
    shown = calicoctl_status(node)
    assert "IPIP is not supported on an IPv6 pool" in shown and "must be from 116 to 128" in shown
    old = node.status()["pid"]
    node.stop()
    node.run()
    until(lambda: node.status().get("pid", old) != old and node.status()["synced"], "another agent", 60)
    until(lambda: "IPPool default-ipv4-ippool" in str(node.status()["problems"]), "it is named again", 20)
    assert around() == before
    node.store.write(Write.put(POOL, good))
    node.store.remove(ResourceKey("IPPool", "odd"))
    until(lambda: node.status()["problems"] == [], "all is well again", 30)
    assert around() == before
