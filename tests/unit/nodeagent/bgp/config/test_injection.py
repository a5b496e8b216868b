"""Nothing a user can write in a record ends up as configuration: a lexer of our own reads what was rendered.

The vocabulary is that of the golden files, which are read by people; a word that is not in them, outside quotes and
comments, would have come from a record.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.nodeagent.bgp.config.render import BirdConfig, render_bird_config
from tests.unit.nodeagent.bgp.config.clusters import document, make_snapshot, node, refusal, secret

GOLDEN = Path(__file__).parents[4] / "golden" / "bird"
TOKEN = re.compile(
    r"""(?P<space>\s+) | (?P<comment>\#[^\n]*) | (?P<text>"[^"\n]*") | (?P<symbol>'[A-Za-z0-9_.:-]{1,64}')
      | (?P<address>(?:\d+\.){3}\d+(?:/\d+)? | (?=[0-9a-f]*:[0-9a-f]*:)[0-9a-f:]+(?:/\d+)?)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*) | (?P<number>\d+) | (?P<mark>[][(){};,.=!<>&|~+*-])""",
    re.VERBOSE,
)
SESSION = re.compile(r"(Mesh|Global|Node)_[0-9a-f_]+(_port_\d+)?")

EVIL = [
    '"; } protocol static evil { ipv4; route 0.0.0.0/0 blackhole; }; #',
    "evil'() { accept; } function 'x",
    'include "/etc/shadow";',
    "a\nprotocol device evil {}",
    "\r\x00\x1b[2J",
    "*/ evil /*",
    "# evil",
    "${evil} `evil` $(evil)",
    "ünïcode \u2028 \ud800",
    "",
    " ",
    "x" * 500,
    "0.0.0.0/0; evil",
    "::1%evil",
    "1:2); evil((",
    "10m; evil",
]
texts = st.one_of(st.sampled_from(EVIL), st.text(max_size=40))
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)


def tokens(text: str) -> list[tuple[str, str]]:
    out, at = [], 0
    while at < len(text):
        found = TOKEN.match(text, at)
        assert found, f"no token at {text[at : at + 60]!r}"
        kind = found.lastgroup
        assert kind
        if kind not in ("space", "comment"):
            out.append((kind, found[kind]))
        at = found.end()
    return out


def words(files: Mapping[str, str]) -> Counter[str]:
    return Counter(value for text in files.values() for kind, value in tokens(text) if kind == "word")


VOCABULARY = {
    word
    for path in GOLDEN.glob("*/bird*.cfg")
    for kind, word in tokens(path.read_text())
    if kind == "word" and not SESSION.fullmatch(word)
}


def assert_clean(config: BirdConfig) -> None:
    found = words(config.files)
    sessions = {word for word in found if SESSION.fullmatch(word)}
    assert set(found) - sessions <= VOCABULARY, set(found) - sessions - VOCABULARY
    assert sessions == {peer.name for peer in config.peers}
    per_family = ["static", "kernel"]
    assert found["protocol"] == found["timeformat"] + 2 * len(per_family) + 2 + len(config.peers)
    assert found["include"] == 2
    for text in config.files.values():
        depth = 0
        for kind, value in tokens(text):
            depth += (kind == "mark") * ((value == "{") - (value == "}"))
            assert depth >= 0
        assert depth == 0


def records(hole: st.SearchStrategy[Any]) -> st.SearchStrategy[list[dict[str, Any]]]:
    """A small cluster with ``hole`` drawn for every field that holds a text."""

    def spec(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
        """Each field as it should be, or anything else."""
        drawn = {name: st.one_of(st.just(good), hole) for name, good in fields.items()}
        return st.fixed_dictionaries({}, optional=drawn)

    rule = spec(
        action="Accept",
        cidr="10.0.0.0/8",
        matchOperator="In",
        interface="eth*",
        source="RemotePeers",
        peerType="eBGP",
        prefixLength={"min": 9},
        communities={"values": ["1:2"]},
        asPathPrefix=[1],
        operations=[{"addCommunity": {"value": "1:2"}}],
    )
    peer = spec(
        node="a",
        nodeSelector="all()",
        peerIP="172.31.0.250",
        peerSelector="all()",
        asNumber=65001,
        sourceAddress="None",
        nextHopMode="Self",
        maxRestartTime="9s",
        keepaliveTime="9s",
        reachableBy="172.31.0.254",
        filters=["f"],
        password={"secretKeyRef": {"name": "s", "key": "k"}},
    )
    configuration = spec(
        logSeverityScreen="Info",
        bindMode="NodeIP",
        ignoredInterfaces=["eth1"],
        communities=[{"name": "c", "value": "1:2"}],
        prefixAdvertisements=[{"cidr": "10.65.0.0/16", "communities": ["c"]}],
        serviceClusterIPs=[{"cidr": "10.96.0.0/12"}],
        nodeMeshPassword={"secretKeyRef": {"name": "s", "key": "k"}},
        nodeMeshMaxRestartTime="9s",
        asNumber=64512,
    )
    return st.builds(
        lambda names, peers, rules, bgp, password, env: [
            node("a", "172.31.0.1/24", "fd31::1/64"),
            node(names[0] or "b", "172.31.0.2/24", labels={"l": names[1]}, routeReflectorClusterID=names[2]),
            document("IPPool", names[3] or "p", cidr="10.65.0.0/16"),
            document("BGPConfiguration", "default", **bgp),
            *(document("BGPPeer", f"{names[4]}{i}", **peer) for i, peer in enumerate(peers)),
            document("BGPPeer", "uses-f", peerIP="172.31.0.249", asNumber=65001, filters=["f", names[5]]),
            document("BGPFilter", "f", importV4=rules, exportV4=rules),
            document("BGPFilter", names[5] or "g", exportV4=[{"action": "Reject"}]),
            secret("s", k=password.encode("utf-8", "replace").decode()),
            {"kind": "This", "node": "a", "blocks": ["10.65.1.0/26"], "env": env},
        ],
        st.lists(texts, min_size=6, max_size=6),
        st.lists(peer, max_size=3),
        st.lists(rule, max_size=2),
        configuration,
        texts,
        st.dictionaries(
            st.sampled_from(["CALICO_ROUTER_ID", "FELIX_INTERFACEPREFIX", "CALICO_ADVERTISE_CLUSTER_IPS"]), texts
        ),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(records(st.one_of(texts, anything)))
def test_records_do_not_become_configuration(cluster: list[dict[str, Any]]) -> None:
    assert_clean(render_bird_config(make_snapshot(cluster)))


@pytest.mark.bird
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(cluster=records(st.one_of(texts, anything)))
def test_bird_accepts_whatever_is_rendered(cluster: list[dict[str, Any]], tmp_path: Path) -> None:
    config = render_bird_config(make_snapshot(cluster))
    assert refusal(config.files, tmp_path) == "", config.files


@pytest.mark.parametrize("evil", EVIL)
def test_every_known_trick_in_every_name(evil: str) -> None:
    cluster = [
        node("a", "172.31.0.1/24"),
        node(evil or "b", "172.31.0.2/24"),
        document("IPPool", evil or "p", cidr="10.65.0.0/16"),
        document("BGPPeer", evil or "q", peerIP="172.31.0.250", asNumber=65001, filters=[evil]),
        document("BGPFilter", evil, exportV4=[{"action": "Reject"}]),
        {"kind": "This", "node": "a"},
    ]
    config = render_bird_config(make_snapshot(cluster))
    assert len(config.peers) == 2
    assert_clean(config)


def test_the_lexer_finds_what_it_should() -> None:
    with pytest.raises(AssertionError, match="evil"):
        assert_clean(BirdConfig({"bird.cfg": "protocol static evil { }"}))
    with pytest.raises(AssertionError, match="no token"):
        tokens('"unterminated\n')
