"""The recipes of docs/bgp.md as they stand there: real BIRDs as nodes, and as routers with the configuration given."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.main import run
from cni_calico.deadline import Deadline
from cni_calico.nodeagent.bgp.config.fragments import Fragments
from cni_calico.nodeagent.bgp.config.render import render_bird_config
from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.bird.cluster import BirdNode, Lab, can_ping
from tests.unit.nodeagent.bgp.config.clusters import document, make_snapshot, node, read_documents, secret, this

pytestmark = [pytest.mark.netns, pytest.mark.bird]

PAGE = (ROOT / "docs" / "bgp.md").read_text().partition("\n## Recipes\n")[2].partition("\n## ")[0]
TORS = ("192.0.2.2", "192.0.2.3")
POOL = document("IPPool", "pods", cidr="10.65.0.0/16")
SECRET = secret("bgp-secrets", **{"rack-1": "CHANGE-ME"})


def blocks(title: str, language: str) -> list[str]:
    """The fenced blocks below a recipe's heading."""
    part = PAGE.partition(f"\n### {title}\n")[2].partition("\n### ")[0]
    return re.findall(rf"^```{language}\n(.*?)^```$", part, re.MULTILINE | re.DOTALL)


def recipe(title: str) -> list[Any]:
    [text] = blocks(title, "yaml")
    return read_documents(text)


def add_node(lab: Lab, number: int, **more: Any) -> Any:
    """Node n1 is 192.0.2.11, with the block 10.65.1.0/26, and so on; its record."""
    address = f"192.0.2.{10 + number}/24"
    lab.node(f"n{number}", address, blocks=[f"10.65.{number}.0/26"])
    return node(f"n{number}", address, **more)


def add_router(lab: Lab, name: str, text: str) -> BirdNode:
    (address,) = re.findall(r"router id ([0-9.]+);", text)
    router = lab.node(name, f"{address}/24")
    router.apply_text("log stderr all;\n" + text)
    return router


def test_every_recipe_is_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    titles = re.findall(r"^### (.*)$", PAGE, re.MULTILINE)
    assert len(titles) == 4
    for title in titles:
        [text] = blocks(title, "yaml")
        (tmp_path / "recipe.yaml").write_text(text)
        assert run(["validate", "-f", str(tmp_path / "recipe.yaml")], {}) == 0, title
        assert capsys.readouterr().err == "", title


@pytest.mark.parametrize("by", ["secret", "fragment"])
def test_a_pair_of_tor_routers(lab: Lab, by: str) -> None:
    """Both ways out are used; one router that dies takes its next hop along, by BFD, and no connection."""
    title = "A pair of ToR routers, with passwords and BFD"
    fragment, router = blocks(title, "text")
    documents = [POOL, *recipe(title), *(add_node(lab, i, labels={"rack": "1"}) for i in (1, 2))]
    documents.append(SECRET)
    texts = {}
    if by == "fragment":
        texts = {f"peer-rack-1-{letter}.conf": fragment for letter in "ab"}
        for each in documents:
            each["spec"].pop("password", None) if each["kind"] == "BGPPeer" else None
    tors = [add_router(lab, f"tor{i}", router.replace(TORS[0], address)) for i, address in enumerate(TORS)]
    for name in ("n1", "n2"):
        snapshot = make_snapshot([*documents, this(name, lab.nodes[name].blocks)])
        config = render_bird_config(replace(snapshot, fragments=Fragments(texts)))
        assert not config.problems, config.problems
        lab.nodes[name].controller.apply(config, Deadline.after(20))
    both = ",".join(TORS)
    for name in ("n1", "n2"):
        until(lambda name=name: lab.nodes[name].remote().get("203.0.113.0/24") == both, f"both ways of {name}", 60)
    for tor in tors:
        until(lambda tor=tor: {"10.65.1.0/26", "10.65.2.0/26"} <= set(tor.remote()), "the nodes' blocks", 60)
    pods = [lab.nodes[f"n{i}"].add_pod(f"p{i}", f"10.65.{i}.2", make=lab.namespace) for i in (1, 2)]
    until(lambda: can_ping(pods[0], "10.65.2.2"), "pods reach each other", 60)
    tors[0].kill()
    until(lambda: lab.nodes["n1"].remote().get("203.0.113.0/24") == TORS[1], "one way is left", 60)
    [ended] = [peer for peer in lab.nodes["n1"].status().peers if peer.address == TORS[0]]
    assert not ended.established
    assert can_ping(pods[0], "10.65.2.2")


def test_reflectors_in_two_racks(lab: Lab) -> None:
    """Everybody learns everybody's block, with few sessions; each rack can lose a reflector."""
    documents = [POOL, *recipe("Reflectors in two racks")]
    rack = {i: "1" if i <= 4 else "2" for i in range(1, 9)}
    reflectors = (1, 2, 5, 6)
    for i in rack:
        own: dict[str, Any] = {"labels": {"rack": rack[i]}}
        if i in reflectors:
            own = {"labels": {"rack": rack[i], "reflector": "yes"}, "routeReflectorClusterID": f"244.0.0.{rack[i]}"}
        documents.append(add_node(lab, i, **own))
    lab.apply_all(documents)
    wanted = {f"n{i}": {f"10.65.{j}.0/26": f"192.0.2.{10 + j}" for j in rack if j != i} for i in rack}
    lab.await_routes(wanted)
    sessions = {i: {peer.address for peer in lab.nodes[f"n{i}"].status().peers} for i in rack}
    assert sessions[3] == sessions[4] == {"192.0.2.11", "192.0.2.12"} and sessions[7] == {"192.0.2.15", "192.0.2.16"}
    assert sessions[1] == {f"192.0.2.{10 + i}" for i in (2, 3, 4, 5, 6)}
    for i in (1, 5):
        lab.nodes[f"n{i}"].controller.close()
    lab.nodes["n3"].blocks.append("10.65.33.0/26")
    lab.nodes["n3"].apply(documents)
    until(
        lambda: lab.nodes["n8"].remote().get("10.65.33.0/26") == "192.0.2.13", "a new block, by those that are left", 60
    )


def hear_all(numbers: tuple[int, ...], extra: str = "") -> str:
    """A router by hand that takes and tells everything."""
    sessions = "".join(
        f"protocol bgp n{i} {{ local {TORS[0]} as 65001; neighbor 192.0.2.{10 + i} as 64512; direct; "
        "connect delay time 1; connect retry time 1; ipv4 { import all; export where source = RTS_STATIC; }; }\n"
        for i in numbers
    )
    return (
        f"router id {TORS[0]};\nprotocol device {{ }}\n"
        "protocol kernel { metric 0; ipv4 { import none; export where source = RTS_BGP; }; }\n"
        f"{extra}{sessions}"
    )


def test_service_addresses(lab: Lab) -> None:
    documents = [POOL, *recipe("Service addresses"), add_node(lab, 1), add_node(lab, 2)]
    service = {
        "kind": "Service",
        "metadata": {"namespace": "web", "name": "local"},
        "spec": {
            "type": "LoadBalancer",
            "clusterIP": "10.96.0.5",
            "externalTrafficPolicy": "Local",
            "externalIPs": ["198.51.100.5"],
        },
        "status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.130"}]}},
    }
    endpoints = {
        "kind": "EndpointSlice",
        "metadata": {"namespace": "web", "name": "x", "labels": {"kubernetes.io/service-name": "local"}},
        "endpoints": [{"addresses": ["10.65.2.2"], "nodeName": "n2", "conditions": {"ready": True}}],
    }
    edge = add_router(lab, "edge", hear_all((1, 2)))
    for name in ("n1", "n2"):
        lab.nodes[name].apply([*documents, service, endpoints])
    ranges = {"10.96.0.0/12", "198.51.100.0/25", "198.51.100.128/25"}
    singles = ("10.96.0.5", "198.51.100.5", "198.51.100.130")
    until(lambda: {*ranges, *singles} <= set(edge.remote()), "the router knows them", 60)
    for cidr in ranges:
        until(lambda cidr=cidr: edge.announcers(cidr) == {"192.0.2.11", "192.0.2.12"}, f"{cidr} from both", 60)
    for address in singles:
        assert edge.announcers(f"{address}/32") == {"192.0.2.12"}, "only where the endpoint is"
    assert edge.remote()["10.65.1.0/26"] == "192.0.2.11"


def test_communities_and_filters(lab: Lab) -> None:
    documents = [POOL, *recipe("Communities and filters"), add_node(lab, 1)]
    one = lab.nodes["n1"]
    one.blocks += ["10.65.8.0/26", "10.65.9.0/26"]
    routes = ("0.0.0.0/0", "203.0.113.0/24", "198.51.100.0/24")
    static = "".join(f"route {cidr} blackhole; " for cidr in routes)
    edge = add_router(lab, "edge", hear_all((1,), f"protocol static told {{ ipv4; {static}}}\n"))
    one.ns.do("route", "del", "default")  # the router's takes its place
    one.apply(documents)
    until(lambda: {"10.65.1.0/26", "10.65.8.0/26"} <= set(edge.remote()), "the blocks", 60)
    until(lambda: one.remote() == {"default": TORS[0], "203.0.113.0/24": TORS[0]}, "what is accepted of the router", 60)
    assert "10.65.9.0/26" not in edge.show_routes() and "198.51.100.0/24" not in one.remote()
    plain, marked = edge.show_route("10.65.1.0/26"), edge.show_route("10.65.8.0/26")
    assert (plain["BGP.community"], plain["BGP.large_community"]) == ("(64512,100)", "(64512, 1, 2)")
    assert (marked["BGP.community"], marked["BGP.as_path"]) == ("(64512,7)", "64512 64512 64512")
