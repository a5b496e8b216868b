"""``calicoctl show``: what is stored is in the picture, and nothing outside is needed to look at it."""

import json
import re
from html.parser import HTMLParser

import pytest

from cni_calico.nodeagent.status.file import write_status
from tests.unit.ctl.conftest import pool
from tests.unit.ctl.picture.clusters import EVIL, fill, name_of

COUNT = 5


@pytest.fixture
def five(calicoctl):
    fill(calicoctl.path, COUNT)
    return calicoctl


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of style and script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("style", "script"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        if not self.open:
            self.texts.append(data.strip())


def page_of(calicoctl, tmp_path):
    assert "open it in a browser" in calicoctl.ok("show", "--html", str(tmp_path / "page.html"))
    return Page((tmp_path / "page.html").read_text())


def test_the_facts(five):
    facts = json.loads(five.ok("show", "-o", "json"))
    assert [(pool["name"], pool["transport"], len(pool["blocks"])) for pool in facts["pools"]] == [
        ("storage", "IPIP", 5),
        ("main", "VXLAN across subnets", 5),
        ("six", "no tunnel", 0),
    ]
    assert facts["pools"][0]["used"] == 80
    assert [node["name"] for node in facts["nodes"]] == [name_of(i, COUNT) for i in range(COUNT)]
    assert {node["in_mesh"] for node in facts["nodes"]} == {True}
    assert facts["nodes"][0]["tunnels"] == {"VXLAN": "10.244.0.1"}
    others = [(session["node"], session["other"], session["source"]) for session in facts["sessions"]]
    assert sorted(others) == sorted(
        [(name_of(i, COUNT), "192.0.2.1", "rack") for i in range(COUNT)] + [(name_of(1, COUNT), "192.0.2.254", "edge")]
    )
    assert sum(pool["used"] for pool in json.loads(five.ok("ipam", "show", "-o", "json"))["pools"]) == sum(
        node["used"] for node in facts["nodes"]
    )


@pytest.mark.parametrize(
    ("backend", "said"),
    [
        ("bird", "BGP: full mesh of 5 nodes, 10 sessions"),
        ("vxlan", "BGP: off (this node's agent has CALICO_NETWORKING_BACKEND vxlan)"),
    ],
)
def test_bgp_is_what_the_agent_of_a_node_here_does(five, tmp_path, monkeypatch, backend, said):
    """Whatever the cluster's type says; the agent of another cluster's node says nothing."""
    monkeypatch.setenv("CALICO_RUN_DIR", str(tmp_path))
    write_status(str(tmp_path), {"node": name_of(0, COUNT), "backend": backend})
    assert said in five.ok("show")
    write_status(str(tmp_path), {"node": "elsewhere", "backend": "none"})
    assert "BGP: full mesh of 5 nodes" in five.ok("show")


def test_a_cluster_without_a_word_about_bgp(calicoctl):
    calicoctl.apply(pool("p", "10.65.0.0/16"))
    assert "BGP: off (the cluster's type, and no BGP record; CALICO_NETWORKING_BACKEND" in calicoctl.ok("show")


def test_a_route_reflector(calicoctl):
    fill(calicoctl.path, COUNT, reflector=True)
    facts = json.loads(calicoctl.ok("show", "-o", "json"))
    assert {node["in_mesh"] for node in facts["nodes"]} == {False}
    between = {frozenset((s["node"], s["other"])) for s in facts["sessions"] if s["is_node"]}
    assert between == {frozenset((name_of(0, COUNT), name_of(i, COUNT))) for i in range(1, COUNT)}
    assert [node["reflects"] for node in facts["nodes"]] == [True, False, False, False, False]


def test_the_text(five):
    text = five.ok("show")
    rows = [line.split() for line in text.splitlines()]
    assert ["storage", "10.90.0.0/24", "80", "(31%)", "#" * 4 + "." * 6, "5", "IPIP"] in rows
    assert "BGP: full mesh of 5 nodes, 10 sessions; 6 sessions by BGPPeers" in text
    assert [name_of(1, COUNT), "192.0.2.254", "65010", "edge"] in rows


def test_the_page_has_every_node_and_block(five, tmp_path):
    page = page_of(five, tmp_path)
    kinds = [attributes.get("class", "") for tag, attributes in page.tags]
    assert (kinds.count("node"), kinds.count("mesh"), kinds.count("session"), kinds.count("outside")) == (5, 10, 6, 2)
    titles = [attributes["title"] for tag, attributes in page.tags if tag == "i" and "title" in attributes]
    assert len(titles) == 10 and "10.90.0.0/28, worker-1.example.org: 16 of 16" in titles
    assert {name_of(i, COUNT) for i in range(COUNT)} <= set(page.texts)


def test_the_page_refers_to_nothing_outside(five, tmp_path):
    page = page_of(five, tmp_path)
    assert [(tag, attributes) for tag, attributes in page.tags if {"src", "href"} & attributes.keys()] == []
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r"https?://|url\(|@import", text) == []


def test_texts_of_the_cluster_are_texts(five, tmp_path):
    key = "/calico/resources/v3/projectcalico.org/"
    information = five.stored(f"{key}clusterinformations/default")
    information["spec"] |= {"clusterType": EVIL, "calicoVersion": EVIL, "datastoreReady": False}
    pool = five.stored(f"{key}ippools/storage")
    five.write({f"{key}clusterinformations/default": information, f"{key}ippools/storage": pool})
    page = page_of(five, tmp_path)
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 1
    assert "The datastore is locked: nothing is added or removed." in page.texts
    assert any(EVIL in text for text in page.texts)


def test_an_empty_cluster(calicoctl, tmp_path):
    calicoctl.apply({"apiVersion": "projectcalico.org/v3", "kind": "BGPPeer", "metadata": {"name": "x"},
                     "spec": {"peerIP": "192.0.2.1", "asNumber": 65001}})  # fmt: skip
    text = calicoctl.ok("show")
    assert "POOL" in text and "BGP: no mesh" in text
    assert "There is no node." in page_of(calicoctl, tmp_path).texts


def test_a_large_one_is_summed_up(calicoctl, tmp_path):
    fill(calicoctl.path, 120)
    page = page_of(calicoctl, tmp_path)
    kinds = [attributes.get("class", "") for _, attributes in page.tags]
    assert (kinds.count("node"), kinds.count("mesh"), kinds.count("session many")) == (120, 0, 1)
    assert "120 nodes" in page.texts
    text = calicoctl.ok("show")
    assert "and 80 nodes with fewer addresses" in text and "and 81 more" in text


def test_a_page_that_cannot_be_written(five):
    assert "cannot write /does/not/exist.html" in five.fails("show", "--html", "/does/not/exist.html")
