"""Peers that are no nodes, or nodes with a role: top-of-rack routers, route reflectors, filters, services."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deadlines import until
from tests.netns.bird.cluster import BirdNode, Lab, can_ping
from tests.netns.namespaces import Namespace
from tests.unit.nodeagent.bgp.config.clusters import document, node, secret

pytestmark = [pytest.mark.netns, pytest.mark.bird]

POOL4 = document("IPPool", "p4", cidr="10.65.0.0/16")
NO_MESH = document("BGPConfiguration", "default", nodeToNodeMeshEnabled=False)
TOR = "172.31.0.250"


def add_nodes(lab: Lab, count: int) -> list[Any]:
    documents: list[Any] = [POOL4]
    for i in range(1, count + 1):
        lab.node(f"n{i}", f"172.31.0.{i}/24", blocks=[f"10.65.{i}.0/26"])
        documents.append(node(f"n{i}", f"172.31.0.{i}/24"))
    return documents


def add_tor(lab: Lab, *neighbours: str, password: str = "", extra: str = "") -> BirdNode:
    """A router of AS 65001 with an outside network 203.0.113.0/24 behind it, written by hand."""
    tor = lab.node("tor", f"{TOR}/24")
    sessions = "".join(
        f"""
protocol bgp to_{n.replace(".", "_")} {{
  local {TOR} as 65001; neighbor {n} as 64512; direct; connect delay time 1; connect retry time 2;
  {f'password "{password}";' if password else ""}
  ipv4 {{ import all; export filter {{ if source = RTS_STATIC then {{ {extra} accept; }} reject; }}; }};
}}"""
        for n in neighbours
    )
    tor.apply_text(
        f"""router id {TOR};
log stderr all;
protocol device {{ }}
protocol kernel kernel_v4 {{ metric 0; ipv4 {{ import none; export where source = RTS_BGP; }}; }}
protocol static {{ ipv4; route 203.0.113.0/24 blackhole; route 10.99.0.0/24 blackhole; }}
{sessions}
"""
    )
    return tor


def outside(lab: Lab, tor: BirdNode) -> Namespace:
    """A host behind the router."""
    host = lab.namespace("outside")
    tor.ns.do("link", "add", "out", "type", "veth", "peer", "name", "eth0", "netns", host.name)
    tor.ns.do("link", "set", "out", "up")
    tor.ns.do("addr", "add", "203.0.113.1/24", "dev", "out")
    host.do("link", "set", "eth0", "up")
    host.do("addr", "add", "203.0.113.9/24", "dev", "eth0")
    host.do("route", "add", "default", "via", "203.0.113.1")
    return host


def test_pods_are_reachable_from_outside(lab: Lab) -> None:
    """A global peer of another AS with a password; no mesh: the nodes learn one another's blocks from the router."""
    documents = [
        *add_nodes(lab, 2),
        NO_MESH,
        document(
            "BGPPeer",
            "tor",
            peerIP=TOR,
            asNumber=65001,
            numAllowedLocalASNumbers=1,
            password={"secretKeyRef": {"name": "bgp", "key": "tor"}},
        ),
        secret("bgp", tor="se cret;"),
    ]
    tor = add_tor(lab, "172.31.0.1", "172.31.0.2", password="se cret;")
    host = outside(lab, tor)
    for name in ("n1", "n2"):
        lab.nodes[name].apply(documents)
    lab.await_routes({"tor": {"10.65.1.0/26": "172.31.0.1", "10.65.2.0/26": "172.31.0.2"}})
    routes = {"203.0.113.0/24": TOR, "10.99.0.0/24": TOR}
    until(lambda: routes.items() <= lab.nodes["n1"].remote().items(), "routes from the router")
    pods = [lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", make=lab.namespace) for i in (1, 2)]
    assert can_ping(host, "10.65.1.2")
    assert can_ping(pods[0], "203.0.113.9")
    assert lab.nodes["n1"].established() == {"Global_172_31_0_250"}
    # an ordinary router's local preference (100) is no priority of Calico's
    assert {r.get("metric") for r in lab.nodes["n1"].ns.ip("route", "show", "203.0.113.0/24")} == {1024}


def test_a_router_beside_the_mesh(lab: Lab) -> None:
    """A node-specific peer: the node passes its own blocks and the mesh's on, and the router's routes into the mesh."""
    documents = [*add_nodes(lab, 2), document("BGPPeer", "tor", node="n1", peerIP=TOR, asNumber=65001)]
    add_tor(lab, "172.31.0.1")
    for name in ("n1", "n2"):
        lab.nodes[name].apply(documents)
    lab.await_routes({"tor": {"10.65.1.0/26": "172.31.0.1", "10.65.2.0/26": "172.31.0.1"}})
    lab.await_routes(
        {
            "n1": {"10.65.2.0/26": "172.31.0.2", "203.0.113.0/24": TOR, "10.99.0.0/24": TOR},
            # the router's networks are in no pool, so n1 does not announce them
            "n2": {"10.65.1.0/26": "172.31.0.1"},
        }
    )


def test_filters_and_communities(lab: Lab) -> None:
    """What goes out and comes in by BGPFilters, seen by the router and by the kernel."""
    documents = [
        *add_nodes(lab, 1),
        document(
            "BGPConfiguration",
            "default",
            nodeToNodeMeshEnabled=False,
            communities=[{"name": "pods", "value": "64512:100"}],
            prefixAdvertisements=[{"cidr": "10.65.0.0/16", "communities": ["pods", "64512:1:2"]}],
        ),
        document("BGPPeer", "tor", peerIP=TOR, asNumber=65001, filters=["out", "in"]),
        document(
            "BGPFilter",
            "out",
            exportV4=[
                {"action": "Reject", "cidr": "10.65.2.0/24", "matchOperator": "In"},
                {
                    "action": "Accept",
                    "cidr": "10.65.3.0/24",
                    "matchOperator": "In",
                    "operations": [
                        {"addCommunity": {"value": "64512:7"}},
                        {"prependASPath": {"prefix": [64600, 64601]}},
                    ],
                },
            ],
        ),
        document(
            "BGPFilter",
            "in",
            importV4=[
                {
                    "action": "Reject",
                    "communities": {"values": ["65001:666"]},
                    "cidr": "10.99.0.0/24",
                    "matchOperator": "Equal",
                },
                {"action": "Accept", "asPathPrefix": [65001], "operations": [{"setPriority": {"value": 700}}]},
            ],
        ),
    ]
    lab.nodes["n1"].blocks += ["10.65.2.0/26", "10.65.3.0/26"]
    tor = add_tor(lab, "172.31.0.1", extra="bgp_community.add((65001, 666));")
    lab.nodes["n1"].apply(documents)
    lab.await_routes({"tor": {"10.65.1.0/26": "172.31.0.1", "10.65.3.0/26": "172.31.0.1"}})
    lab.await_routes({"n1": {"203.0.113.0/24": TOR}})
    (route,) = lab.nodes["n1"].ns.ip("route", "show", "203.0.113.0/24")
    assert route["metric"] == 700
    plain, marked = tor.show_route("10.65.1.0/26"), tor.show_route("10.65.3.0/26")
    assert plain["BGP.community"] == "(64512,100)"
    assert plain["BGP.large_community"] == "(64512, 1, 2)"
    assert plain["BGP.as_path"] == "64512"
    assert (marked["BGP.community"], marked["BGP.as_path"]) == ("(64512,7)", "64512 64600 64601")


def test_route_reflectors(lab: Lab) -> None:
    """Three reflectors of one cluster, clients without a session among them, a borrowed address passed on."""
    documents = [*add_nodes(lab, 4)]
    for i in (5, 6, 7):
        lab.node(f"n{i}", f"172.31.0.{i}/24", blocks=[f"10.65.{i}.0/26"])
        documents.append(node(f"n{i}", f"172.31.0.{i}/24", labels={"rr": ""}, routeReflectorClusterID="244.0.0.1"))
    documents += [NO_MESH, document("BGPPeer", "rr", nodeSelector="all()", peerSelector="has(rr)")]
    lab.apply_all(documents)
    wanted = {f"n{i}": {f"10.65.{j}.0/26": f"172.31.0.{j}" for j in range(1, 8) if j != i} for i in range(1, 8)}
    lab.await_routes(wanted)
    assert lab.nodes["n1"].established() == {"Node_172_31_0_5", "Node_172_31_0_6", "Node_172_31_0_7"}
    # n2 borrows from n1 and from the reflector n5: every node learns it, n5 does not hold it back
    lab.nodes["n2"].add_pod("one", "10.65.1.9", make=lab.namespace)
    lab.nodes["n2"].add_pod("two", "10.65.5.9", make=lab.namespace)
    more = {"10.65.1.9": "172.31.0.2", "10.65.5.9": "172.31.0.2"}
    lab.await_routes({f"n{i}": wanted[f"n{i}"] | more for i in (1, 3, 4, 5, 6, 7)})
    # two of three reflectors may go
    lab.nodes["n5"].controller.close()
    lab.nodes["n6"].controller.close()
    lab.nodes["n3"].blocks.append("10.65.33.0/26")
    lab.nodes["n3"].apply(documents)
    until(lambda: lab.nodes["n1"].remote().get("10.65.33.0/26") == "172.31.0.3", "a block by way of n7")


def test_next_hops(lab: Lab) -> None:
    """A node passes routes of another AS on inside: with next hop Self it names itself, without it the router."""
    documents = [
        POOL4,
        document("IPPool", "outside", cidr="10.99.0.0/24"),
        node("n1", "172.31.0.1/24"),
        node("n2", "172.31.0.2/24"),
        NO_MESH,
        document("BGPPeer", "tor", node="n1", peerIP=TOR, asNumber=65001),
    ]
    lab.node("n1", "172.31.0.1/24", blocks=["10.65.1.0/26"])
    lab.node("n2", "172.31.0.2/24", blocks=["10.65.2.0/26"])
    add_tor(lab, "172.31.0.1")
    for mode, via in (("Self", "172.31.0.1"), ("Auto", TOR)):
        pair = document("BGPPeer", "pair", node="n1", peerIP="172.31.0.2", asNumber=64512, nextHopMode=mode)
        for name in ("n1", "n2"):
            lab.nodes[name].apply([*documents, pair])
        lab.await_routes({"n2": {"10.65.1.0/26": "172.31.0.1", "10.99.0.0/24": via}})


def test_one_side_is_passive(lab: Lab) -> None:
    """10.0.0.9 and 10.0.0.10: exactly one connects, and it is the one that upstream's comparison of texts says."""
    documents = [POOL4, node("n1", "10.0.0.9/24"), node("n2", "10.0.0.10/24")]
    lab.node("n1", "10.0.0.9/24", blocks=["10.65.1.0/26"])
    lab.node("n2", "10.0.0.10/24", blocks=["10.65.2.0/26"])
    lab.apply_all(documents)
    lab.await_routes({"n1": {"10.65.2.0/26": "10.0.0.10"}})
    (connection,) = lab.nodes["n1"].ns.run("ss", "-Htn", "state", "established").stdout.splitlines()
    assert "10.0.0.10:179" in connection.split()[3], "n1 has connected to n2's port"


def test_services(lab: Lab) -> None:
    """Ranges from every node, single addresses from where an endpoint is; none of it in the nodes' kernels."""
    documents = [
        *add_nodes(lab, 2),
        document(
            "BGPConfiguration",
            "default",
            serviceClusterIPs=[{"cidr": "10.100.0.0/16"}],
            serviceExternalIPs=[{"cidr": "198.51.100.0/24"}],
            serviceLoadBalancerIPs=[{"cidr": "192.0.2.0/24"}, {"cidr": "192.0.3.1/32"}],
        ),
        document("BGPPeer", "tor", peerIP=TOR, asNumber=65001),
        {
            "kind": "Service",
            "metadata": {"namespace": "web", "name": "local"},
            "spec": {
                "type": "LoadBalancer",
                "clusterIP": "10.100.0.5",
                "externalTrafficPolicy": "Local",
                "externalIPs": ["198.51.100.5"],
            },
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.5"}]}},
        },
        {
            "kind": "EndpointSlice",
            "metadata": {"namespace": "web", "name": "x", "labels": {"kubernetes.io/service-name": "local"}},
            "endpoints": [{"addresses": ["10.65.2.2"], "nodeName": "n2", "conditions": {"ready": True}}],
        },
        {
            "kind": "Service",
            "metadata": {"namespace": "web", "name": "lone"},
            "spec": {"type": "LoadBalancer", "clusterIP": "10.100.0.6", "externalTrafficPolicy": "Cluster"},
            "status": {"loadBalancer": {"ingress": [{"ip": "192.0.3.1"}]}},
        },
    ]
    add_tor(lab, "172.31.0.1", "172.31.0.2")
    for name in ("n1", "n2"):
        lab.nodes[name].apply(documents)
    singles = dict.fromkeys(("10.100.0.5", "198.51.100.5", "192.0.2.5"), "172.31.0.2")
    ranges = {"10.100.0.0/16", "198.51.100.0/24", "192.0.2.0/24", "192.0.3.1"}
    until(lambda: {*singles, *ranges} <= set(lab.nodes["tor"].remote()), "announced")
    lab.await_established("n1", "n2")
    until(lambda: set(singles) <= {r.removesuffix("/32") for r in lab.nodes["n1"].show_routes()}, "n1 knows them too")
    for address in singles:
        # n1 has them from the mesh, and does not tell the router: kube-proxy would drop what came in there
        assert lab.nodes["tor"].announcers(f"{address}/32") == {"172.31.0.2"}
    assert {a: lab.nodes["tor"].remote()[a] for a in singles} == singles
    mine = {"203.0.113.0/24": TOR, "10.99.0.0/24": TOR}
    lab.await_routes({"n1": {"10.65.2.0/26": "172.31.0.2", **mine}, "n2": {"10.65.1.0/26": "172.31.0.1", **mine}})
    assert lab.nodes["n1"].learned()["10.65.1.0/26"] == "blackhole"
    assert not {d for d in lab.nodes["n1"].learned() if d.startswith(("10.100", "198.51", "192.0"))}


def test_a_routed_fabric(lab: Lab) -> None:
    """Nodes in subnets of their own, each with an AS number, behind one router; no mesh, no tunnel, both families."""
    router = lab.namespace("router")
    router.set_sysctl("ipv4/ip_forward", "1")
    router.set_sysctl("ipv6/conf/all/forwarding", "1")
    # no link-local addresses, which would be next hops once they have settled, in their own time
    router.set_sysctl("ipv6/conf/default/addr_gen_mode", "1")
    documents: list[Any] = [POOL4, document("IPPool", "p6", cidr="fd65::/64"), NO_MESH]
    sessions, pods = "", {}
    for i in (1, 2, 3):
        gateway, gateway6 = f"172.31.{i}.254", f"fd31:{i}::fe"
        lab.plug(router, f"eth{i}", str(i), f"{gateway}/24", f"{gateway6}/64")
        addresses = f"172.31.{i}.1/24", f"fd31:{i}::1/64"
        bird = lab.node(f"n{i}", *addresses, switch=str(i), blocks=[f"10.65.{i}.0/26", f"fd65::{i}00/122"])
        bird.ns.do("-6", "route", "add", "default", "via", gateway6)
        documents.append(node(f"n{i}", *addresses, asNumber=64600 + i))
        for family, peer in ((4, gateway), (6, gateway6)):
            name = f"tor-{i}-{family}"
            documents.append(document("BGPPeer", name, node=f"n{i}", peerIP=peer, asNumber=65001, ttlSecurity=1))
            sessions += f"""
protocol bgp n{i}v{family} {{
  local {peer} as 65001; neighbor {addresses[family // 5].split("/")[0]} as {64600 + i}; ttl security on; direct;
  connect delay time 1; connect retry time 2; ipv{family} {{ import all; export all; }};
}}"""
    lab.bird("router", router).apply_text(
        f"""router id 172.31.1.254;
protocol device {{ }}
protocol kernel kernel_v4 {{ metric 0; ipv4 {{ import none; export where source = RTS_BGP; }}; }}
protocol kernel kernel_v6 {{ metric 0; ipv6 {{ import none; export where source = RTS_BGP; }}; }}
{sessions}
"""
    )
    for i in (1, 2, 3):
        lab.nodes[f"n{i}"].apply(documents)
    for version, block, gateway in ((4, "10.65.{}.0/26", "172.31.{}.254"), (6, "fd65::{}00/122", "fd31:{}::fe")):
        lab.await_routes(
            {f"n{i}": {block.format(j): gateway.format(i) for j in (1, 2, 3) if j != i} for i in (1, 2, 3)}, version
        )
    for i in (1, 2, 3):
        pods[i] = lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", f"fd65::{i}02", make=lab.namespace)
    for i in (1, 2, 3):
        for j in (1, 2, 3):
            assert can_ping(pods[i], f"10.65.{j}.2"), f"pod {i} -> pod {j}"
            assert can_ping(pods[i], f"fd65::{j}02"), f"pod {i} -> pod {j}, IPv6"


@pytest.mark.slow
def test_three_reflectors_and_thirty_nodes(lab: Lab) -> None:
    documents: list[Any] = [POOL4, NO_MESH, document("BGPPeer", "rr", nodeSelector="all()", peerSelector="has(rr)")]
    for i in range(1, 34):
        reflector = {"labels": {"rr": ""}, "routeReflectorClusterID": "244.0.0.1"} if i > 30 else {}
        lab.node(f"n{i}", f"172.31.0.{i}/24", blocks=[f"10.65.{i}.0/26"])
        documents.append(node(f"n{i}", f"172.31.0.{i}/24", **reflector))
    lab.apply_all(documents)
    lab.await_routes(
        {f"n{i}": {f"10.65.{j}.0/26": f"172.31.0.{j}" for j in range(1, 34) if j != i} for i in range(1, 34)}
    )
    assert len(lab.nodes["n1"].established()) == 3
    assert len(lab.nodes["n31"].established()) == 32
