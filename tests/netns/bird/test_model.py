"""Generated clusters: the routes that real BIRDs end up with are those that a model of a few lines predicts.

The model knows nothing of BIRD and nothing of the code: who has a session with whom (mesh, BGPPeers, their reverse),
what a node announces (blocks, borrowed pods), and how routes spread inside one AS (RFC 4456). One set of namespaces and
daemons serves all examples, so every example is also a reconfiguration of the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.netns.bird.cluster import Lab, make_lab
from tests.unit.nodeagent.bgp.config.clusters import document, node

pytestmark = [pytest.mark.netns, pytest.mark.bird]

COUNT = 4
NAMES = [f"n{i}" for i in range(1, COUNT + 1)]
ADDRESS = {name: f"172.31.0.{i}" for i, name in enumerate(NAMES, 1)}
POOLS = {"plain": "10.65.0.0/16", "hidden": "10.66.0.0/16", "vxlan": "10.67.0.0/16", "nowhere": "10.68.0.0/16"}
ORDINARY = 1024


@dataclass
class Cluster:
    """``blocks`` network -> (owner, confirmed); ``pods`` address -> (node, metric); ``peerings`` (locals, remotes)."""

    mesh: bool
    reflectors: dict[str, str]
    labels: dict[str, set[str]]
    peerings: list[tuple[str, str]]
    blocks: dict[str, tuple[str, bool]] = field(default_factory=dict)
    pods: dict[str, tuple[str, int]] = field(default_factory=dict)

    def documents(self) -> list[Any]:
        nodes = [
            node(
                name,
                f"{ADDRESS[name]}/24",
                labels=dict.fromkeys(self.labels[name], ""),
                **({"routeReflectorClusterID": self.reflectors[name]} if name in self.reflectors else {}),
            )
            for name in NAMES
        ]
        peers = [
            document("BGPPeer", f"p{i}", nodeSelector=selector_of(one), peerSelector=selector_of(other))
            for i, (one, other) in enumerate(self.peerings)
        ]
        return [
            document("IPPool", "plain", cidr=POOLS["plain"]),
            document("IPPool", "hidden", cidr=POOLS["hidden"], disableBGPExport=True),
            document("IPPool", "vxlan", cidr=POOLS["vxlan"], vxlanMode="Always"),
            document("BGPConfiguration", "default", nodeToNodeMeshEnabled=self.mesh),
            *nodes,
            *peers,
        ]


def selector_of(label: str) -> str:
    return f"has({label})" if label else "all()"


# -- the model --------------------------------------------------------------------------------------------------------


def sessions(cluster: Cluster) -> set[frozenset[str]]:
    found = set()
    if cluster.mesh:
        plain = [name for name in NAMES if name not in cluster.reflectors]
        found |= {frozenset((a, b)) for a in plain for b in plain if a != b}
    for one, other in cluster.peerings:
        sides = [[n for n in NAMES if not label or label in cluster.labels[n]] for label in (one, other)]
        found |= {frozenset((a, b)) for a in sides[0] for b in sides[1] if a != b}
    return found


def inside(address: str, network: str) -> bool:
    return ip_network(address).subnet_of(ip_network(network))


def announced(cluster: Cluster, name: str) -> set[str]:
    out = set()
    mine = [b for b, (owner, confirmed) in cluster.blocks.items() if owner == name and confirmed]
    for block in mine:
        if not inside(block, POOLS["hidden"]):
            out.add(block)
    for pod, (where, metric) in cluster.pods.items():
        own = any(inside(pod, block) for block in mine)
        visible = any(inside(pod, POOLS[pool]) for pool in ("plain", "vxlan"))
        single = 0 < metric < ORDINARY if own else visible
        if where == name and single and not inside(pod, POOLS["hidden"]):
            out.add(pod)
    return out


def spread(cluster: Cluster, origin: str, route: str) -> set[str]:
    """The nodes that a route of ``origin`` gets to. A block in no pool is announced by its own node alone."""
    links = sessions(cluster)
    passed_on = any(inside(route, POOLS[pool]) for pool in ("plain", "vxlan"))
    reached: set[str] = set()
    waiting = [(name, origin, ()) for name in NAMES if frozenset((name, origin)) in links]
    seen = set(waiting)
    while waiting:
        name, sender, clusters = waiting.pop()
        mine = cluster.reflectors.get(name)
        from_client = mine is not None and cluster.reflectors.get(sender) != mine
        if from_client and mine in clusters:
            continue  # BIRD looks for its cluster on sessions with clients only
        reached.add(name)
        if mine is None or not passed_on:
            continue  # what one internal peer told is not told to another
        for other in NAMES:
            to_client = cluster.reflectors.get(other) != mine
            step = (other, name, (*clusters, mine))
            if (
                other not in (sender, origin, name)
                and frozenset((name, other)) in links
                and (from_client or to_client)
                and step not in seen
            ):
                seen.add(step)
                waiting.append(step)
    return reached - {origin}


def predicted(cluster: Cluster) -> dict[str, dict[str, str]]:
    out: dict[str, dict[str, str]] = {name: {} for name in NAMES}
    for origin in NAMES:
        for route in announced(cluster, origin):
            if inside(route, POOLS["vxlan"]):
                continue  # the agent's to program
            for name in spread(cluster, origin, route):
                out[name][route.removesuffix("/32")] = ADDRESS[origin]
    return out


# -- the generator ----------------------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    labels = {name: draw(st.sets(st.sampled_from(["a", "b"]))) for name in NAMES}
    reflectors = {name: draw(st.sampled_from(["1.1.1.1", "2.2.2.2"])) for name in NAMES if draw(st.integers(0, 3)) == 0}
    for name in reflectors:
        labels[name].add("rr")
    ends = st.sampled_from(["", "a", "b", "rr"])
    made = Cluster(draw(st.booleans()), reflectors, labels, draw(st.lists(st.tuples(ends, ends), max_size=3)))
    subnets = [f"10.{65 + pool}.{i}.{j * 64}/26" for pool in range(4) for i in range(2) for j in range(3)]
    for block in draw(st.lists(st.sampled_from(subnets), unique=True, min_size=3, max_size=8)):
        made.blocks[block] = (draw(st.sampled_from(NAMES)), draw(st.integers(0, 4)) > 0)
    for block in draw(st.lists(st.sampled_from(subnets), max_size=8)):
        pod = f"{ip_address(ip_network(block).network_address) + draw(st.integers(1, 40))}/32"
        made.pods[pod] = (draw(st.sampled_from(NAMES)), draw(st.sampled_from([0, 512, ORDINARY, 2048])))
    return made


@pytest.fixture(scope="module")
def model_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with make_lab(tmp_path_factory.mktemp("lab")) as made:
        for name in NAMES:
            bird = made.node(name, f"{ADDRESS[name]}/24")
            bird.ns.do("link", "add", "calix", "type", "veth", "peer", "name", "calixb")
            bird.ns.do("link", "set", "calixb", "up")
            bird.ns.do("link", "set", "calix", "up")
        yield made


def set_up(lab: Lab, cluster: Cluster) -> None:
    for name in NAMES:
        bird = lab.nodes[name]
        bird.ns.do("route", "flush", "dev", "calix")
        for pod, (where, metric) in cluster.pods.items():
            if where == name:
                extra = ("metric", str(metric)) if metric else ()
                bird.ns.do("route", "add", pod, "dev", "calix", "scope", "link", *extra)
        bird.blocks = [
            {"cidr": block, "state": "confirmed" if confirmed else "pending"}
            for block, (owner, confirmed) in cluster.blocks.items()
            if owner == name
        ]
    lab.apply_all(cluster.documents())


def assert_as_predicted(lab: Lab, cluster: Cluster) -> None:
    set_up(lab, cluster)
    links = sessions(cluster)
    lab.await_established()
    lab.resync()
    for name in NAMES:
        peers = {peer.address for peer in lab.nodes[name].status().peers}
        assert peers == {ADDRESS[other] for link in links if name in link for other in link - {name}}
    lab.await_routes(predicted(cluster))
    # what comes late has to be right too: an update to every neighbour has come back by the time a new one has
    marks = {f"10.65.{200 + i}.0/26": name for i, name in enumerate(NAMES)}
    for mark, name in marks.items():
        cluster.blocks[mark] = (name, True)
        lab.nodes[name].blocks.append(mark)
    lab.apply_all(cluster.documents())
    lab.await_routes(predicted(cluster))


@settings(
    max_examples=6,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    database=None,
    derandomize=True,
)
@given(cluster=clusters())
def test_real_birds_and_the_model(model_lab: Lab, cluster: Cluster) -> None:
    assert_as_predicted(model_lab, cluster)


@pytest.mark.slow
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
    database=None,
)
@given(cluster=clusters())
def test_many_more(model_lab: Lab, cluster: Cluster) -> None:
    assert_as_predicted(model_lab, cluster)
