"""Users' fragments at their places, judged by the real BIRD; BFD by annotation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.nodeagent.bgp.config.fragments import Fragments, blame, find_strays
from cni_calico.nodeagent.bgp.config.render import MAIN, render_bird_config
from cni_calico.nodeagent.bgp.config.snapshot import BgpSnapshot
from tests.unit.nodeagent.bgp.config.clusters import document, make_snapshot, node, refusal, this

TEXTS = {
    "global.conf": 'protocol bfd {\n  interface "*" { min rx interval 100 ms; };\n}\n'
    "function of_mine() { return true; }",
    "kernel4.conf": "merge paths off;",
    "kernel6.conf": "scan time 5;",
    "peers.conf": "hold time 30;",
    "peer-tor.conf": "bfd on;\nconnect retry time 3;",
    "import4.conf": "if net ~ [ 192.0.2.0/24+ ] then reject;",
    "import6.conf": "if net ~ [ 2001:db8::/32+ ] then reject;",
    "export4.conf": "if net ~ [ 198.51.100.0/24+ ] then reject;",
    "export6.conf": "if of_mine() then bgp_med = 7;",
}
FILTERS = [(direction, version) for direction in ("import", "export") for version in (4, 6)]


def cluster(texts: dict[str, str], annotations: dict[str, str] | None = None, peer: str = "10.0.0.254") -> BgpSnapshot:
    tor = document("BGPPeer", "tor", peerIP=peer, asNumber=65000)
    tor["metadata"]["annotations"] = annotations or {}
    nodes = [node("n1", "10.0.0.1/24", "fd00::1/64"), node("n2", "10.0.0.2/24", "fd00::2/64")]
    return replace(make_snapshot([this("n1"), *nodes, tor]), fragments=Fragments(texts))


def block_of(text: str, head: str) -> list[str]:
    """The lines of a top-level block."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(head))
    return [line.strip() for line in lines[begin : lines.index("}", begin)]]


@pytest.mark.bird
def test_bird_takes_them_at_their_places(tmp_path: Path) -> None:
    config = render_bird_config(cluster(TEXTS))
    assert refusal(config.files, tmp_path) == "" and config.problems == ()
    main = config.files[MAIN]
    tor, mesh = block_of(main, "protocol bgp Global_10_0_0_254"), block_of(main, "protocol bgp Mesh_10_0_0_2")
    assert "bfd on;" in tor and "hold time 30;" in tor
    assert "bfd on;" not in mesh and "hold time 30;" in mesh
    assert "merge paths off;" in block_of(main, "protocol kernel kernel_v4")


@pytest.mark.parametrize(("direction", "version"), FILTERS)
def test_a_filters_fragment_stands_before_calicos_own_rules(direction: str, version: int) -> None:
    main = render_bird_config(cluster(TEXTS)).files[MAIN]
    name = f"{direction}{version}.conf"
    head, *body = block_of(main, f"filter calico_{direction}_v{version}")
    ours = "calico_received" if direction == "import" else "calico_announced"
    assert head.endswith("{") and body[:4] == [
        f"# begin custom/{name}",
        TEXTS[name],
        f"# end custom/{name}",
        f"{ours}_v{version}();",
    ]
    for other in FILTERS:
        stands = TEXTS[name] in block_of(main, f"filter calico_{other[0]}_v{other[1]}")
        assert stands is (other == (direction, version))


@pytest.mark.bird
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_refused_one_is_named(name: str, tmp_path: Path) -> None:
    config = render_bird_config(cluster({**TEXTS, name: "this is nothing\n"}))
    said = refusal(config.files, tmp_path)
    assert said and blame(said, config.files) == name


def test_our_own_text_is_nobodys_fault() -> None:
    config = render_bird_config(cluster(TEXTS))
    assert blame("bird.cfg:1:1 syntax error", config.files) == "" == blame("no line at all", config.files)


def test_what_stands_nowhere_is_named() -> None:
    (problem,) = render_bird_config(cluster({**TEXTS, "peer-gone.conf": "x"})).problems
    assert "custom/peer-gone.conf" in str(problem)
    assert find_strays(TEXTS, ["tor"]) == ()


@pytest.mark.bird
@pytest.mark.parametrize(("peer", "how"), [("10.0.0.254", "direct;"), ("192.0.2.9", "multihop;")])
def test_bfd_by_annotation(tmp_path: Path, peer: str, how: str) -> None:
    config = render_bird_config(cluster({}, {"cni-calico.io/bfd": "true"}, peer))
    assert refusal(config.files, tmp_path) == ""
    session = block_of(config.files[MAIN], f"protocol bgp Global_{peer.replace('.', '_')}")
    assert "bfd on;" in session and how in session
    assert config.files[MAIN].count("protocol bfd") == 1
    assert "bfd" not in render_bird_config(cluster({}, {"cni-calico.io/bfd": "false"}, peer)).files[MAIN]


@pytest.mark.bird
def test_a_bfd_protocol_of_ones_own_is_the_only_one(tmp_path: Path) -> None:
    config = render_bird_config(cluster(TEXTS, {"cni-calico.io/bfd": "true"}))
    assert refusal(config.files, tmp_path) == "" and config.files[MAIN].count("protocol bfd") == 1
