"""Three nodes with ``calico-node run`` and BIRD, no encapsulation, across a router that is no Calico node.

n1 and n2 are in one subnet, n3 in another; the router between them learns the pods' blocks by BGP (as a top-of-rack
router does), the nodes learn them of one another in their mesh. Every node also tells the router of the others' blocks,
with their own next hops: else the router could send to n1 what n1 sends to n3 by the router.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.errors import BirdUnavailable
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Resource
from tests.deadlines import until
from tests.netns.agents import key_of
from tests.netns.bird.cluster import make_lab
from tests.netns.node_cluster import SUBNETS, Cluster, start_cluster
from tests.netns.nodes import ROOT, Node, without_a_lost_ping
from tests.unit.nodeagent.fabric import pool

pytestmark = [pytest.mark.netns, pytest.mark.bird, pytest.mark.etcd]

ROUTER_AS, NODE_AS = 65000, 64512
NESTED_AS, NESTED_4, NESTED_6 = 65010, "203.0.113.0/24", "2001:db8:77::/64"
PEERING = {4: "169.254.9.9", 6: "fd99::9"}
POOLS = (pool("10.65.0.0/16"), pool("fd65::/64"))


def numbered() -> Iterator[tuple[str, str, int]]:
    """(node, its subnet, its number)"""
    for number, (name, subnet) in enumerate(SUBNETS.items(), 1):
        yield name, subnet, number


def router_peers() -> Iterator[Resource]:
    for name, subnet, _ in numbered():
        for version, address in ((4, f"10.0.{subnet}.254"), (6, f"fd00:{subnet}::254")):
            spec = {"node": name, "peerIP": address, "asNumber": ROUTER_AS, "keepOriginalNextHop": True}
            yield Resource("BGPPeer", Metadata(f"{name}-router-{version}"), spec)


def router_config() -> str:
    lines = ["router id 10.0.0.254;", "protocol device { }", "protocol direct { ipv4; ipv6; }"]
    lines += [
        f"protocol kernel k{version} {{ ipv{version} {{ import none; export where source = RTS_BGP; }}; }}"
        for version in (4, 6)
    ]
    for name, subnet, number in numbered():
        for version, prefix in ((4, f"10.0.{subnet}."), (6, f"fd00:{subnet}::")):
            lines.append(
                f"protocol bgp {name}_{version} {{ local {prefix}254 as {ROUTER_AS}; "
                f"neighbor {prefix}{number} as {NODE_AS}; connect delay time 1; connect retry time 2; "
                f"error wait time 1, 2; ipv{version} {{ gateway recursive; import all; export none; }}; }}"
            )
    return "\n".join(lines) + "\n"


@contextmanager
def bgp_cluster(directory: Path, bundle: Path) -> Iterator[Cluster]:
    with make_lab(directory) as lab:
        records, environ = (*POOLS, *router_peers()), {"CALICO_NETWORKING_BACKEND": "bird"}
        made = start_cluster(lab, directory, records, bin_dir=bundle, **environ)
        lab.bird("tor", made.router).apply_text(router_config())
        yield made


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, bundle: Path) -> Iterator[Cluster]:
    with bgp_cluster(tmp_path_factory.mktemp("bgp"), bundle) as made:
        yield made


def calicoctl(node: Node, *arguments: str) -> subprocess.CompletedProcess[str]:
    argv = ["nsenter", f"--net={node.ns.path}", sys.executable, "-m", "cni_calico.ctl.main", *arguments]
    return subprocess.run(argv, cwd=ROOT, env=node.environ(), capture_output=True, text=True, timeout=60)


def bird_pid(node: Node) -> int:
    """0 while there is none."""
    try:
        return int((node.root / "run" / "bird.pid").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def remote_blocks(node: Node, version: int) -> set[str]:
    """The destinations of BIRD's routes over the wire in a node's kernel."""
    routes = node.ns.ip(f"-{version}", "route", "show", "proto", "bird")
    return {route["dst"] for route in routes if route.get("type") != "blackhole"}


def own_blocks(node: Node, version: int) -> set[str]:
    routes = node.ns.ip(f"-{version}", "route", "show", "proto", "bird", "type", "blackhole")
    return {route["dst"] for route in routes}


def has_only_blocks(cluster: Cluster, version: int) -> bool:
    """Whether every node and the router have exactly the nodes' blocks."""
    nodes = cluster.nodes.values()
    everything = set().union(*(own_blocks(node, version) for node in nodes))
    learned = {route["dst"] for route in cluster.router.ip(f"-{version}", "route", "show", "proto", "bird")}
    return (
        len(everything) == len(nodes)
        and learned == everything
        and all(remote_blocks(node, version) == everything - own_blocks(node, version) for node in nodes)
    )


def test_every_pod_reaches_every_other(shared: Cluster) -> None:
    shared.until_all_reach_all(60)
    assert all(len(pod.addresses) == 2 for pod in shared.pods.values())
    for version in (4, 6):
        until(partial(has_only_blocks, shared, version), f"the blocks of IPv{version} everywhere, and no pod", 30)
    # nothing is encapsulated: 1500 bytes fit
    assert shared.pods["n1-a"].can_ping(shared.pods["n3-a"], size=1500 - 48)
    assert shared.nodes["n1"].ns.link("vxlan.calico") is None


def test_probes_and_calicoctl_say_so(shared: Cluster) -> None:
    shared.until_all_reach_all(60)
    node = shared.nodes["n1"]
    until(lambda: node.calico_node("-bird-ready", check=False).returncode == 0, "BIRD is ready", 60)
    node.calico_node("-bird-live", "-felix-live", "-bird6-ready")
    shown = calicoctl(node, "node", "status")
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("Calico process is running.\nNode:      n1\nReady:     yes\n")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.stdout.splitlines() if "Estab" in line]
    assert {(row[0], row[1], row[2]) for row in rows} == {
        ("10.0.0.2", "node-to-node mesh", "up"),
        ("10.0.1.3", "node-to-node mesh", "up"),
        ("10.0.0.254", "node specific", "up"),
        ("fd00::2", "node-to-node mesh", "up"),
        ("fd00:1::3", "node-to-node mesh", "up"),
        ("fd00::254", "node specific", "up"),
    }
    by_address = {row[0]: row for row in rows}
    assert by_address["10.0.1.3"][6:] == ["1", "1"]  # a block taken, a block announced
    assert by_address["10.0.0.254"][6:] == ["0", "3"]  # it is told of all blocks


def test_a_status_that_somebody_asks_for_is_filled(shared: Cluster) -> None:
    shared.until_all_reach_all(60)
    spec = {"node": "n1", "classes": ["Agent", "BGP", "Routes"], "updatePeriodSeconds": 1}
    elsewhere = {**spec, "node": "n9"}
    for name, wanted in (("n1", spec), ("n9", elsewhere)):
        shared.store.put(Resource("CalicoNodeStatus", Metadata(name), wanted))

    def status(name: str) -> dict[str, Any]:
        shown = calicoctl(shared.nodes["n2"], "get", "caliconodestatus", name, "-o", "json")
        assert shown.returncode == 0, shown.stderr
        found: dict[str, Any] = json.loads(shown.stdout).get("status") or {}
        return found

    def established() -> bool:
        return bool(status("n1").get("bgp", {}).get("numberEstablishedV4") == 3)

    until(established, "a report with every session", 60)
    report = status("n1")
    assert report["agent"]["birdV4"]["state"] == "Ready" and report["agent"]["birdV4"]["routerID"] == "10.0.0.1"
    peers = {(peer["peerIP"], peer["type"], peer["state"]) for peer in report["bgp"]["peersV4"]}
    assert ("10.0.1.3", "NodeMesh", "Established") in peers and ("10.0.0.254", "NodePeer", "Established") in peers
    assert report["bgp"]["numberEstablishedV6"] == 3 and report["bgp"]["numberNotEstablishedV4"] == 0
    (other,) = own_blocks(shared.nodes["n3"], 4)
    (learned,) = [r for r in report["routes"]["routesV4"] if r["destination"] == other and r["type"] == "FIB"]
    assert learned["learnedFrom"] == {"sourceType": "NodeMesh", "peerIP": "10.0.1.3"}
    assert learned["interface"] == "eth0"
    until(lambda: status("n1")["lastUpdated"] > report["lastUpdated"], "another report", 20)
    assert status("n9") == {}
    for name in ("n1", "n9"):
        shared.store.remove(ResourceKey("CalicoNodeStatus", name))


def test_diags_of_a_running_node(shared: Cluster, tmp_path: Path) -> None:
    node = shared.nodes["n1"]
    target = tmp_path / "diags.tar.gz"
    done = calicoctl(node, "node", "diags", "-o", str(target))
    assert done.returncode == 0, done.stderr
    listed = subprocess.run(["tar", "xzOf", target], capture_output=True, text=True, check=True).stdout
    for text in (
        "Mesh_10_0_1_3",
        "BGP.next_hop",
        "router id 10.0.0.1;",
        "CALICO_NETWORKING_BACKEND=bird",
        "proto bird",
    ):
        assert text in listed


@pytest.mark.slow
def test_restarts_lose_no_ping(shared: Cluster) -> None:
    """BIRD is killed, the agent is killed, all of calico-node is ended and started."""
    shared.until_all_reach_all(60)
    node = shared.nodes["n1"]
    pods = shared.pods
    with without_a_lost_ping(pods["n1-a"], pods["n2-a"], pods["n3-a"]):
        bird = bird_pid(node)
        os.kill(bird, signal.SIGKILL)
        until(lambda: bird_pid(node) not in (0, bird), "another BIRD", 20)
        until(lambda: node.calico_node("-bird-ready", check=False).returncode == 0, "BIRD is ready", 60)
        bird, agent = bird_pid(node), node.status()["pid"]
        os.kill(agent, signal.SIGKILL)
        until(lambda: node.status().get("pid", agent) != agent and node.status()["synced"], "another agent", 30)
        until(
            lambda: "BIRD is running already" in node.log(), "taken over", 30
        )  # what nobody has taken over, nobody ends
        assert bird_pid(node) == bird
        assert node.stop()[0] == 0
        node.run().until_ready()
        until(lambda: bird_pid(node) not in (0, bird), "another BIRD", 20)
        until(lambda: node.calico_node("-bird-ready", check=False).returncode == 0, "BIRD is ready", 60)
    shared.until_all_reach_all()


def test_records_that_are_wrong_cost_nothing_else(shared: Cluster) -> None:
    """A peer with a Secret where there are none, and one whose filter is no resource: named, left out."""
    shared.until_all_reach_all(60)
    node = shared.nodes["n2"]
    password = {"secretKeyRef": {"name": "bgp", "key": "rack"}}
    peers = [
        Resource("BGPPeer", Metadata("locked"), {"peerIP": "10.0.0.77", "asNumber": 65001, "password": password}),
        Resource("BGPPeer", Metadata("filtered"), {"peerIP": "10.0.0.78", "asNumber": 65001, "filters": ["odd"]}),
    ]
    shared.store.write(Write.put(ResourceKey("BGPFilter", "odd"), {"kind": "BGPFilter", "spec": "no object"}))
    shared.store.put(*peers)
    try:
        until(lambda: "filtered" in calicoctl(node, "node", "status").stdout, "the warning", 30)
        shown = calicoctl(node, "node", "status").stdout
        assert "BGPPeer locked" in shown and "Secret bgp" in shown
        assert "BGPFilter odd" in shown
        assert (
            "10.0.0.77 " not in shown.partition("BGP status")[2]
            and "10.0.0.78 " not in shown.partition("BGP status")[2]
        )
        shared.until_all_reach_all()
    finally:
        for key in (("BGPPeer", "locked"), ("BGPPeer", "filtered"), ("BGPFilter", "odd")):
            shared.store.remove(ResourceKey(*key))
    until(lambda: "filtered" not in calicoctl(node, "node", "status").stdout, "the warning's end", 30)


@pytest.mark.slow
def test_a_restart_beside_what_cannot_be_read(shared: Cluster) -> None:
    """A pool and the router's peering are spoilt while the node is away: the configuration of before goes on."""
    shared.until_all_reach_all(60)
    node = shared.nodes["n1"]
    until(lambda: has_only_blocks(shared, 4), "the blocks everywhere", 30)
    peer = next(record for record in router_peers() if record.metadata.name == "n1-router-4")

    def files() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (node.root / "bird").glob("*.cfg")}

    before = files(), remote_blocks(node, 4)
    node.stop()
    for record in (peer, POOLS[0]):
        shared.store.write(Write.put(key_of(record), {"metadata": {"name": record.metadata.name}, "spec": 7}))
    try:
        node.run().until_applied()
        until(lambda: len(kept_for(node)) == 2, "both are named", 60)
        until(lambda: bird_pid(node) != 0, "BIRD runs", 30)
        assert "BGPPeer n1-router-4" in str(kept_for(node)) and node.status()["bgp"] == ""
        until(lambda: has_only_blocks(shared, 4), "all sessions again", 60)
        assert (files(), remote_blocks(node, 4)) == before
        shared.until_all_reach_all()
    finally:
        shared.store.put(peer, POOLS[0])
    until(lambda: node.status()["bgp_problems"] == [], "all is well again", 60)
    assert files() == before[0]


def makers(node: Node) -> dict[str, list[str]]:
    """By destination in the pools, who made each route to another node's block in a node's kernel."""
    made: dict[str, list[str]] = {}
    for version in (4, 6):
        for route in node.ns.ip(f"-{version}", "route", "show"):
            network = pool_network(route["dst"])
            if network is not None and route.get("type") != "blackhole" and not route["dev"].startswith("cali"):
                made.setdefault(route["dst"], []).append(route["protocol"])
    return made


def pool_network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        network = ip_network(text)
    except ValueError:  # "default"
        return None
    pools = (pool.cidr for pool in POOLS)
    return network if any(network.version == p.version and network.subnet_of(p) for p in pools) else None


def test_one_of_agent_and_bird_makes_a_route(shared: Cluster) -> None:
    """Whichever of the two settings says so; the agent cannot make routes to nodes behind a router, and BIRD still
    does. What BIRD announces stays.
    """
    shared.until_all_reach_all(60)
    n1, n2, n3 = (shared.nodes[name] for name in ("n1", "n2", "n3"))
    near = own_everywhere(n2)
    far = own_everywhere(n3)
    felix = (
        ResourceKey("FelixConfiguration", "everywhere"),
        {"nodeSelector": "all()", "programClusterRoutes": "Enabled"},
    )
    bgp = ResourceKey("BGPConfiguration", "default"), {"programClusterRoutes": "Disabled"}

    def have(bird: set[str], agent: set[str]) -> bool:
        return makers(n1) == {**{block: ["bird"] for block in bird}, **{block: ["80"] for block in agent}}

    def learned() -> set[str]:
        return {r["dst"] for v in (4, 6) for r in shared.router.ip(f"-{v}", "route", "show", "proto", "bird")}

    until(lambda: have(near | far, set()), "BIRD makes all", 60)
    everything = learned()
    source, target = shared.pods["n1-a"], shared.pods["n2-a"]
    try:
        for key, spec in (felix, bgp):
            with without_a_lost_ping(source, target, interval_s=0.01):
                shared.store.put(Resource(key.kind, Metadata(key.name), spec))
                until(lambda: have(far, near), f"the agent makes those in its subnet ({key.kind})", 60)
                until(lambda: warned(n1, "programClusterRoutes is"), "the contradiction is named", 60)
            assert learned() == everything
            shared.store.remove(key)
            until(lambda: have(near | far, set()), "BIRD makes all again", 60)
    finally:
        for key, _ in (felix, bgp):
            shared.store.remove(key)
    shared.until_all_reach_all(60)


def test_a_floating_ip_moves_from_node_to_node(shared: Cluster) -> None:
    """In both families it is announced by the node of its pod, whose policies count, and by another as soon as another
    pod has it.
    """
    shared.until_all_reach_all(60)
    external, elsewhere = {4: "198.51.100.5", 6: "2001:db8:100::5"}, shared.pods["n2-a"]
    floating = [pool(cidr, node_selector="!all()") for cidr in ("198.51.100.0/24", "2001:db8:100::/64")]
    switch = Resource("FelixConfiguration", Metadata("default"), {"floatingIPs": "Enabled"})
    denied = {"selector": "has(floated)", "types": ["Ingress"], "ingress": [{"action": "Deny"}]}
    policy = Resource("GlobalNetworkPolicy", Metadata("closed"), denied)

    def reached() -> list[int]:
        """The families in which it answers."""
        ping = partial(elsewhere.ns.run, "ping", "-c1", "-W1", check=False)
        return [version for version, address in external.items() if ping(address).returncode == 0]

    def announced_by() -> list[list[str]]:
        found = (shared.router.ip(f"-{v}", "route", "show", "proto", "bird", a) for v, a in external.items())
        return [[route["gateway"] for route in routes] for routes in found]

    before = endpoint_documents(shared)
    shared.store.put(*floating, switch)
    try:
        for name, gateways in (("n1", [["10.0.0.1"], ["fd00::1"]]), ("n3", [["10.0.1.3"], ["fd00:1::3"]])):
            for key, document in endpoint_documents(shared).values():
                give = external if document["spec"]["node"] == name else {}
                shared.store.write(Write.put(key, with_floating(document, give)))
            until(lambda gateways=gateways: announced_by() == gateways, f"{name} announces them", 60)
            until(lambda: reached() == [4, 6], f"answers from {name}", 60)
        shared.store.put(policy)
        until(lambda: not reached(), "the policy of the pod", 60)
    finally:
        shared.store.remove(key_of(policy))
        for key, document in before.values():
            shared.store.write(Write.put(key, document))
        for record in (switch, *floating):
            shared.store.remove(key_of(record))
    until(lambda: announced_by() == [[], []], "nobody announces them", 60)


def nested_router(endpoint: Mapping[str, Any]) -> str:
    """In the pod of an endpoint: it connects to the host, and has a network behind it in each family."""
    addresses = {6 if ":" in text else 4: text.partition("/")[0] for text in endpoint["spec"]["ipNetworks"]}
    lines = ["router id 192.0.2.1;", "protocol device { }"]
    for version, behind in ((4, NESTED_4), (6, NESTED_6)):
        lines += [
            f"protocol static s{version} {{ ipv{version}; route {behind} blackhole; }}",
            f"protocol bgp host{version} {{ local {addresses[version]} as {NESTED_AS}; neighbor {PEERING[version]} as "
            f"{NODE_AS}; multihop; connect delay time 1; connect retry time 2; error wait time 1, 2; "
            f"ipv{version} {{ import all; export where source = RTS_STATIC; }}; }}",
        ]
    return "\n".join(lines) + "\n"


def test_a_workload_is_a_peer_of_its_node(shared: Cluster) -> None:
    """While its labels say so: two pods of one peer, both families, after either end has begun again."""
    node = shared.nodes["n1"]
    names = ("n1-a", "n1-nested")
    shared.add_pod("n1", "nested")
    peer = {"node": "n1", "localWorkloadSelector": "nested == 'yes'", "asNumber": NESTED_AS}
    records = (
        Resource(
            "BGPConfiguration", Metadata("default"), {f"localWorkloadPeeringIPV{v}": a for v, a in PEERING.items()}
        ),
        Resource("BGPPeer", Metadata("a-nested"), peer),
        Resource("BGPPeer", Metadata("b-nested"), {**peer, "asNumber": NESTED_AS + 1}),  # the first one counts
    )
    containers = {
        document["spec"]["containerID"]: one for one in endpoint_documents(shared).values() for document in one[1:]
    }
    before = {name: containers[shared.pods[name].container] for name in names}
    routers = {name: shared.lab.bird(f"{name}-router", shared.pods[name].ns) for name in names}
    configs = {name: nested_router(before[name][1]) for name in names}
    for name, router in routers.items():
        router.apply_text(configs[name])

    def label(name: str, value: str) -> None:
        key, document = before[name]
        labels = {**document["metadata"].get("labels", {}), "nested": value}
        shared.store.write(Write.put(key, {**document, "metadata": {**document["metadata"], "labels": labels}}))

    def up(*wanted: str) -> bool:
        try:
            found = {name: routers[name].established() for name in names}
        except BirdUnavailable:
            return False  # one of them begins again
        return all(found[name] == ({"host4", "host6"} if name in wanted else set()) for name in names)

    def behind(version: int, network: str) -> bool:
        return any(route["dst"] == network for route in node.ns.ip(f"-{version}", "route", "show", "proto", "bird"))

    def named_in_status() -> list[str]:
        """The BGPPeers in the endpoints' status files."""
        files = (node.root / "run" / "endpoint-status").iterdir()
        return [name for file in files if (name := json.loads(file.read_text()).get("bgpPeerName"))]

    def peering_interfaces() -> set[str]:
        shown = node.ns.ip("addr", "show", "to", PEERING[4])
        return {link["ifname"] for link in shown if link.get("ifname")}

    try:
        shared.store.put(*records)
        label("n1-a", "yes")
        until(lambda: up("n1-a"), "the session with the pod", 90)
        until(lambda: behind(4, NESTED_4) and behind(6, NESTED_6), "what is behind the pod", 60)
        assert not any(r["dst"] == NESTED_4 for r in shared.nodes["n2"].ns.ip("route", "show"))  # in no pool
        label("n1-nested", "yes")
        until(lambda: up(*names), "both", 90)
        assert len(peering_interfaces()) == 2
        until(lambda: named_in_status() == ["a-nested", "a-nested"], "their status files say so", 60)
        assert "local workload" in calicoctl(node, "node", "status").stdout
        os.kill(bird_pid(node), signal.SIGKILL)
        until(lambda: not up(*names), "BIRD is gone", 60)
        until(lambda: up(*names), "both, with the next BIRD", 90)
        routers["n1-a"].kill()
        routers["n1-a"].apply_text(configs["n1-a"])
        until(lambda: up(*names), "both, after the pod's router began again", 90)
        label("n1-a", "no")
        until(lambda: up("n1-nested"), "the other one only", 90)
        until(lambda: len(peering_interfaces()) == 1, "its interface has no peering address any more", 60)
        until(lambda: named_in_status() == ["a-nested"], "and its status file says nothing of it", 60)
        shared.store.remove(key_of(records[0]))
        until(lambda: up(), "without an address there is no session", 90)
        until(
            lambda: any("localWorkloadPeeringIPV4" in t for t in node.status().get("bgp_problems", [])),
            "it is said",
            60,
        )
    finally:
        for record in records:
            shared.store.remove(key_of(record))
        shared.store.write(Write.put(*before["n1-a"]))
        node.cni("DEL", shared.pods.pop("n1-nested"))
        for router in routers.values():
            router.controller.close()
    until(lambda: not peering_interfaces(), "nothing of it stays", 60)


def endpoint_documents(cluster: Cluster) -> dict[str, tuple[ResourceKey, dict[str, Any]]]:
    shown = calicoctl(cluster.nodes["n2"], "get", "workloadendpoints", "-A", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    found = {}
    for document in json.loads(shown.stdout)["items"]:
        metadata = document["metadata"]
        key = ResourceKey("WorkloadEndpoint", metadata["name"], metadata["namespace"])
        found[metadata["name"]] = key, document
    return found


def with_floating(document: dict[str, Any], external: Mapping[int, str]) -> dict[str, Any]:
    """An endpoint with a label and these floating IPs by family, or without both."""
    metadata, spec = dict(document["metadata"]), dict(document["spec"])
    metadata["labels"] = {**metadata.get("labels", {}), "floated": "yes"} if external else {}
    own = {6 if ":" in text else 4: text.partition("/")[0] for text in spec["ipNetworks"]}
    spec["ipNATs"] = [{"internalIP": own[v], "externalIP": address} for v, address in external.items()]
    return {**document, "metadata": metadata, "spec": spec}


def own_everywhere(node: Node) -> set[str]:
    return own_blocks(node, 4) | own_blocks(node, 6)


def warned(node: Node, text: str) -> bool:
    return text in calicoctl(node, "node", "status").stdout


def kept_for(node: Node) -> list[str]:
    """The records for whose sake BIRD's configuration stays as it is."""
    return [text for text in node.status().get("bgp_problems", []) if "stays as it is" in text]


@pytest.mark.slow
def test_a_node_that_is_removed_takes_its_routes_along(tmp_path: Path, bundle: Path) -> None:
    with bgp_cluster(tmp_path, bundle) as cluster:
        cluster.until_all_reach_all(60)
        third = cluster.nodes.pop("n3")
        gone = own_blocks(third, 4) | own_blocks(third, 6)
        assert len(gone) == 2
        third.cni("DEL", cluster.pods.pop("n3-a"))
        third.stop()
        cluster.store.remove(ResourceKey("Node", "n3"))
        for node in cluster.nodes.values():
            until(
                lambda node=node: not gone & (remote_blocks(node, 4) | remote_blocks(node, 6)),
                f"{node.name} forgets n3",
                30,
            )
        cluster.until_all_reach_all()


@pytest.mark.slow
def test_a_node_whose_backend_changes(tmp_path: Path, bundle: Path) -> None:
    """bird, vxlan, none: BIRD runs for the first only, and what it had put into the kernel goes with it."""
    with make_lab(tmp_path) as lab:
        environ = {"CALICO_NETWORKING_BACKEND": "bird"}
        cluster = Cluster(lab, tmp_path, ipv6=True, environ=environ, bin_dir=bundle, tries=1)
        cluster.store.put(*POOLS)
        node = cluster.start("n1", "0", 1).until_ready()
        pod = cluster.add_pod("n1", "a")
        until(lambda: own_blocks(node, 4) and own_blocks(node, 6), "the blocks", 30)
        for backend in ("vxlan", "none"):
            bird = bird_pid(node)
            node.stop()
            node.more["CALICO_NETWORKING_BACKEND"] = backend
            node.run().until_ready()
            until(lambda: not (own_blocks(node, 4) | own_blocks(node, 6)), "BIRD's routes go", 30)
            until(lambda: not (node.root / "bird" / "bird.cfg").exists(), "its configuration goes last", 30)
            assert not bird or not Path(f"/proc/{bird}").exists()
            assert node.calico_node("-bird-live", check=False).returncode == 0, "there is no BIRD to be alive"
            for address in pod.addresses:
                assert node.ns.run("ping", "-c1", "-W2", address, check=False).returncode == 0
            node.stop()
            node.more["CALICO_NETWORKING_BACKEND"] = "bird"
            node.run().until_ready()
            until(lambda: own_blocks(node, 4) and own_blocks(node, 6), "the blocks again", 30)
