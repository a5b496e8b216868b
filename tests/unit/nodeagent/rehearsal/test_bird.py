"""What would become of BIRD's configuration."""

from __future__ import annotations

from pathlib import Path

from cni_calico.kernel.files import Files
from cni_calico.nodeagent.bgp.bird.adoption import MARK
from cni_calico.nodeagent.rehearsal.bird import describe_bird, running_configurations

OURS = {
    "bird.cfg": f"{MARK}\nprotocol bgp A {{\nneighbor 10.0.0.2 as 64512;\n}}\n",
    "bird_ipam.cfg": "function f() {}\n",
}
UPSTREAM = """\
protocol bgp Mesh_10_0_0_3 from bgp_template {
  neighbor 10.0.0.3 port 179 as 64512;
}
protocol bgp Mesh_10_0_0_2 from bgp_template {
  neighbor 10.0.0.2 as 64512;
}
"""


def say(wanted: dict[str, str], directory: Path, proc: Path) -> list[str]:
    return list(describe_bird(wanted, str(directory), Files(), proc))


def test_ours(tmp_path: Path) -> None:
    assert say({}, tmp_path, tmp_path) == []
    for name, text in OURS.items():
        (tmp_path / name).write_text(text)
    assert say(OURS, tmp_path, tmp_path) == []
    changed = {**OURS, "bird.cfg": OURS["bird.cfg"].replace("10.0.0.2", "10.0.0.9"), "bird_aggr.cfg": ""}
    assert say(changed, tmp_path, tmp_path) == [
        f"change {tmp_path}/bird.cfg",
        f"write {tmp_path}/bird_aggr.cfg",
        "end the session with 10.0.0.2 (AS 64512)",
        "begin a session with 10.0.0.9 (AS 64512)",
    ]
    (said,) = say({}, tmp_path, tmp_path)
    assert said.startswith("stop BIRD")


def test_in_the_place_of_upstream_s_in_a_container(tmp_path: Path) -> None:
    process = tmp_path / "proc" / "77"
    config = process / "root" / "etc" / "bird.cfg"
    config.parent.mkdir(parents=True)
    config.write_text(UPSTREAM)
    (process / "cmdline").write_bytes(b"bird\0-R\0-c\0/etc/bird.cfg\0")
    other = tmp_path / "proc" / "78"
    other.mkdir()
    (other / "cmdline").write_bytes(b"bird\0-c\0")
    assert running_configurations(tmp_path / "proc") == [UPSTREAM]
    assert say(OURS, tmp_path / "none", tmp_path / "proc") == [
        f"write BIRD's configuration in {tmp_path}/none",
        "end the session with 10.0.0.3 (AS 64512)",
    ]


def test_a_bird_of_another_network_is_nobody_s_here(tmp_path: Path) -> None:
    for name, network in (("self", "net:[1]"), ("77", "net:[1]"), ("78", "net:[2]")):
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns" / "net").symlink_to(network)
        config = tmp_path / name / "root" / "bird.cfg"
        config.parent.mkdir()
        config.write_text(f"# {name}")
        (tmp_path / name / "cmdline").write_bytes(b"bird\0-c\0/bird.cfg\0")
    assert running_configurations(tmp_path) == ["# 77"]
