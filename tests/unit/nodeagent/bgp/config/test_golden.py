"""Every feature as a pair of records and files; the files are what the real BIRD accepts.

``CALICO_GOLDEN=write`` rewrites the expected files (then read the diff).
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.nodeagent.bgp.config.render import BirdConfig, render_bird_config
from tests.unit.nodeagent.bgp.config.clusters import document, make_snapshot, node, read_documents, refusal, this

GOLDEN = Path(__file__).parents[4] / "golden" / "bird"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
PROBLEMS = "problems.txt"


def render(case: str) -> BirdConfig:
    return render_bird_config(make_snapshot(read_documents((GOLDEN / case / "input.yaml").read_text())))


def files_of(config: BirdConfig) -> dict[str, str]:
    problems = "".join(f"{problem.severity}: {problem}\n" for problem in config.problems)
    return {**config.files, PROBLEMS: problems} if problems else dict(config.files)


@pytest.mark.parametrize("case", CASES)
def test_files(case: str) -> None:
    files = files_of(render(case))
    directory = GOLDEN / case
    if os.environ.get("CALICO_GOLDEN") == "write":
        for path in directory.iterdir():
            if path.name != "input.yaml":
                path.unlink()
        for name, text in files.items():
            (directory / name).write_text(text)
    stored = {path.name: path.read_text() for path in directory.iterdir() if path.name != "input.yaml"}
    assert files == stored


@pytest.mark.bird
@pytest.mark.parametrize("case", CASES)
def test_bird_accepts_them(case: str, tmp_path: Path) -> None:
    config = render(case)
    if not config.files:
        assert case.startswith("backend-"), "only without BGP there are no files"
        return
    assert refusal(config.files, tmp_path) == ""


@pytest.mark.bird
def test_bird_accepts_what_leaves_routes_to_the_agent(tmp_path: Path) -> None:
    """With and without pools of each kind, and other nodes in the subnet."""
    left = 0
    for case in CASES:
        snapshot = make_snapshot(read_documents((GOLDEN / case / "input.yaml").read_text()))
        files = render_bird_config(replace(snapshot, agent_makes_routes=True)).files
        if files:
            left += "the agent's, as what follows" in "".join(files.values())
            assert refusal(files, tmp_path) == "", case
    assert left > 1


def test_what_is_left_to_the_agent() -> None:
    """Of IPIP all routes; of the others those to neighbours, for a router leads to the rest."""
    pools = [
        document("IPPool", "tunnelled", cidr="10.1.0.0/16", ipipMode="CrossSubnet"),
        document("IPPool", "plain", cidr="10.2.0.0/16"),
        document("IPPool", "vxlan", cidr="10.3.0.0/16", vxlanMode="Always"),
    ]
    nodes = [node(f"n{i}", address) for i, address in enumerate(("10.0.0.1/24", "10.0.0.2/24", "10.0.9.3/24"), 1)]
    snapshot = make_snapshot([this("n1"), *nodes, *pools])
    lines = [
        "if (source = RTS_STATIC && net ~ [ 10.1.0.0/16+, 10.2.0.0/16+ ]) then reject;  # the agent's, as what follows",
        "if (source = RTS_BGP && net ~ [ 10.1.0.0/16+ ]) then reject;",
        "if (source = RTS_BGP && net ~ [ 10.1.0.0/16+, 10.2.0.0/16+ ] && bgp_next_hop ~ [ 10.0.0.2 ]) then reject;",
    ]
    for made in (False, True):
        text = "".join(render_bird_config(replace(snapshot, agent_makes_routes=made)).files.values())
        assert [line in text for line in lines] == [made] * 3


def test_the_same_records_give_the_same_bytes() -> None:
    for case in CASES:
        documents = read_documents((GOLDEN / case / "input.yaml").read_text())
        again = render_bird_config(make_snapshot(list(reversed(documents))))
        assert again.files == render(case).files, case
