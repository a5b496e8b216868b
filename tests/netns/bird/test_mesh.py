"""The full mesh: real BIRDs, rendered configurations, kernels' routes."""

from __future__ import annotations

import pytest

from tests.deadlines import until
from tests.netns.bird.cluster import Lab, can_ping
from tests.unit.nodeagent.bgp.config.clusters import document, node, secret

pytestmark = [pytest.mark.netns, pytest.mark.bird]

POOL4 = document("IPPool", "p4", cidr="10.65.0.0/16")
POOL6 = document("IPPool", "p6", cidr="fd65::/64")


def block(i: int) -> str:
    return f"10.65.{i}.0/26"


def block6(i: int) -> str:
    return f"fd65::{i}00/122"


def build_mesh(lab: Lab, count: int = 3, *, dual: bool = False) -> list[dict]:
    documents = [POOL4, POOL6]
    for i in range(1, count + 1):
        addresses = [f"172.31.0.{i}/24"] + ([f"fd31::{i}/64"] if dual else [])
        lab.node(f"n{i}", *addresses, blocks=[block(i), *([block6(i)] if dual else [])])
        documents.append(node(f"n{i}", *addresses))
    return documents


def expected6(count: int, i: int) -> dict[str, str]:
    return {block6(j): f"fd31::{j}" for j in range(1, count + 1) if j != i}


def expected(count: int, i: int) -> dict[str, str]:
    return {block(j): f"172.31.0.{j}" for j in range(1, count + 1) if j != i}


def test_every_node_reaches_every_other(lab: Lab) -> None:
    documents = build_mesh(lab, dual=True)
    lab.apply_all(documents)
    lab.await_routes({f"n{i}": expected(3, i) for i in (1, 2, 3)})
    lab.await_routes({f"n{i}": expected6(3, i) for i in (1, 2, 3)}, version=6)
    pods = {
        i: lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", f"fd65::{i}02", make=lab.namespace) for i in (1, 2, 3)
    }
    for i in (1, 2, 3):
        for j in (1, 2, 3):
            assert can_ping(pods[i], f"10.65.{j}.2"), f"pod {i} -> pod {j}"
            assert can_ping(pods[i], f"fd65::{j}02"), f"pod {i} -> pod {j}, IPv6"
    # no pod's own route has left its node, and the kernel has the metric that the announcing node had
    assert metrics(lab, 4) == {block(1): 1024, block(2): 1024, block(3): 1024}
    assert metrics(lab, 6) == {block6(1): 1024, block6(2): 1024, block6(3): 1024}
    # both families are in the kernel once, and BIRD has nothing to repair there
    log = (lab.nodes["n1"].directory / "log").read_text()
    assert "Netlink" not in log, log


def metrics(lab: Lab, version: int) -> dict[str, int | None]:
    routes = lab.nodes["n1"].ns.ip(f"-{version}", "route", "show", "proto", "bird")
    return {route["dst"]: route.get("metric") for route in routes}


def test_a_new_block_and_a_borrowed_address(lab: Lab) -> None:
    documents = build_mesh(lab)
    lab.apply_all(documents)
    lab.await_routes({f"n{i}": expected(3, i) for i in (1, 2, 3)})
    one, two = lab.nodes["n1"], lab.nodes["n2"]
    one.blocks.append("10.65.9.64/26")
    assert one.apply(documents).outcome == "configured"
    more = {"10.65.9.64/26": "172.31.0.1"}
    lab.await_routes({"n2": expected(3, 2) | more, "n3": expected(3, 3) | more})
    # a pod on n2 with an address of n1's block: announced alone, also to n1, whose blackhole covers it
    pod = two.add_pod("borrowed", "10.65.1.7", make=lab.namespace)
    borrowed = {"10.65.1.7": "172.31.0.2"}
    lab.await_routes({"n1": expected(3, 1) | borrowed, "n3": expected(3, 3) | more | borrowed})
    for i in (1, 3):
        peer = lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", make=lab.namespace)
        assert can_ping(peer, "10.65.1.7")
    two.ns.do("link", "del", "caliborrowed")
    del pod
    lab.await_routes({"n1": expected(3, 1), "n3": expected(3, 3) | more})


def test_priorities_travel(lab: Lab) -> None:
    """A pod's route with a better metric leaves its block, and is installed elsewhere with that metric."""
    documents = build_mesh(lab, 2)
    lab.apply_all(documents)
    lab.await_routes({"n1": expected(2, 1), "n2": expected(2, 2)})
    one = lab.nodes["n1"].ns
    one.do("link", "add", "calix", "type", "veth", "peer", "name", "calixb")
    one.do("link", "set", "calix", "up")
    one.do("link", "set", "calixb", "up")
    for address, metric in (("10.65.1.5", "512"), ("10.65.1.6", "1024"), ("10.65.1.7", "2000")):
        one.do("route", "add", f"{address}/32", "dev", "calix", "scope", "link", "metric", metric)
    lab.await_routes({"n2": expected(2, 2) | {"10.65.1.5": "172.31.0.1"}})
    routes = {r["dst"]: r.get("metric") for r in lab.nodes["n2"].ns.ip("route", "show", "proto", "bird")}
    assert routes["10.65.1.5"] == 512
    # it changes: BIRD leaves the old route beside the new one, the resync removes it
    one.do("route", "add", "10.65.9.9/32", "dev", "calix", "scope", "link", "metric", "600")
    with_new = expected(2, 2) | {"10.65.1.5": "172.31.0.1", "10.65.9.9": "172.31.0.1"}
    lab.await_routes({"n2": with_new})
    one.do("route", "add", "10.65.9.9/32", "dev", "calix", "scope", "link", "metric", "1024")
    one.do("route", "del", "10.65.9.9/32", "dev", "calix", "metric", "600")

    def held() -> list[int]:
        return sorted(r["metric"] for r in lab.nodes["n2"].ns.ip("route", "show", "10.65.9.9/32"))

    until(lambda: held() == [600, 1024], "both metrics in the kernel")
    lab.resync()
    assert held() == [1024]
    lab.await_routes({"n2": with_new})


def test_a_node_that_is_removed(lab: Lab) -> None:
    documents = build_mesh(lab)
    lab.apply_all(documents)
    lab.await_routes({f"n{i}": expected(3, i) for i in (1, 2, 3)})
    rest = [d for d in documents if d["metadata"]["name"] != "n3"]
    for name in ("n1", "n2"):
        lab.nodes[name].apply(rest)
    lab.await_routes({"n1": expected(2, 1), "n2": expected(2, 2)})
    assert lab.nodes["n1"].established() == {"Mesh_172_31_0_2"}


def test_pools_that_are_hidden_or_disabled(lab: Lab) -> None:
    documents = [
        *build_mesh(lab, 2),
        document("IPPool", "hidden", cidr="10.66.0.0/16", disableBGPExport=True),
        document("IPPool", "disabled", cidr="10.67.0.0/16", disabled=True),
    ]
    lab.nodes["n1"].blocks += ["10.66.1.0/26", "10.67.1.0/26"]
    lab.apply_all(documents)
    lab.await_routes({"n2": expected(2, 2) | {"10.67.1.0/26": "172.31.0.1"}})
    assert lab.nodes["n1"].learned() == expected(2, 1) | dict.fromkeys(
        (block(1), "10.66.1.0/26", "10.67.1.0/26"), "blackhole"
    )


def test_routes_that_are_the_agents(lab: Lab) -> None:
    """VXLAN pools are announced, never put into the kernel; the agent's routes to other nodes are not announced."""
    documents = [
        *build_mesh(lab, 3),
        document("IPPool", "vxlan", cidr="10.66.0.0/16", vxlanMode="CrossSubnet"),
    ]
    lab.nodes["n1"].blocks.append("10.66.1.0/26")
    two = lab.nodes["n2"].ns
    two.do("link", "add", "vxlan.calico", "type", "vxlan", "id", "4096", "dstport", "4789", "dev", "eth0")
    two.do("addr", "add", "10.66.2.0/32", "dev", "vxlan.calico")
    two.do("link", "set", "vxlan.calico", "up")
    two.do("route", "add", "10.66.5.0/26", "via", "10.66.5.0", "dev", "vxlan.calico", "onlink", "proto", "80")
    two.do("route", "add", "10.66.6.0/26", "via", "172.31.0.3", "proto", "80")
    two.do("route", "add", "blackhole", "10.66.2.0/26", "proto", "80")
    lab.apply_all(documents)
    lab.await_routes({f"n{i}": expected(3, i) for i in (1, 2, 3)})
    with_routes = lab.nodes["n3"].show_routes()
    assert "10.66.1.0/26" in with_routes, "announced by its node"
    assert not with_routes & {"10.66.5.0/26", "10.66.6.0/26"}, "announced by a node that only has a route to it"


def test_unconfirmed_blocks_draw_no_traffic(lab: Lab) -> None:
    documents = build_mesh(lab, 2)
    lab.nodes["n1"].blocks += [{"cidr": "10.65.7.0/26", "state": "pending"}]
    lab.apply_all(documents)
    lab.await_routes({"n2": expected(2, 2)})
    lab.nodes["n1"].add_pod("p", "10.65.7.9", make=lab.namespace)
    lab.await_routes({"n2": expected(2, 2) | {"10.65.7.9": "172.31.0.1"}})


def test_passwords(lab: Lab) -> None:
    """With the same password the mesh comes up; with another one it stays down, and the status says so."""
    documents = build_mesh(lab, 2)
    password = document("BGPConfiguration", "default", nodeMeshPassword={"secretKeyRef": {"name": "s", "key": "k"}})
    right, wrong = secret("s", k="it's #1; {really}"), secret("s", k="other")
    lab.nodes["n1"].apply([*documents, password, right])
    lab.nodes["n2"].apply([*documents, password, wrong])
    until(lambda: [p.state for p in lab.nodes["n2"].status().peers] == ["Connect"], "a connection is tried")
    assert lab.nodes["n1"].established() == lab.nodes["n2"].established() == set()
    lab.nodes["n2"].apply([*documents, password, right])
    lab.await_routes({"n1": expected(2, 1), "n2": expected(2, 2)})
    assert "it's #1" not in (lab.nodes["n1"].directory / "log").read_text()


def test_ports_and_bound_listeners(lab: Lab) -> None:
    documents = [
        *build_mesh(lab, 2, dual=True),
        document("BGPConfiguration", "default", listenPort=1790, bindMode="NodeIP"),
        document("BGPConfiguration", "node.n2", listenPort=1791),
    ]
    lab.apply_all(documents)
    lab.await_routes({"n1": expected(2, 1), "n2": expected(2, 2)})
    lab.await_routes({"n1": expected6(2, 1)}, version=6)
    listening = lab.nodes["n2"].ns.run("ss", "-Hltn").stdout
    assert "172.31.0.2:1791" in listening
    assert "0.0.0.0:1791" not in listening
