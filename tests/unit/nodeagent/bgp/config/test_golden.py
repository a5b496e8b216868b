"""Every feature as a pair of records and files; the files are what the real BIRD accepts.

``CALICO_GOLDEN=write`` rewrites the expected files (then read the diff).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cni_calico.nodeagent.bgp.config.render import BirdConfig, render_bird_config
from tests.unit.nodeagent.bgp.config.clusters import make_snapshot, read_documents, refusal

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


def test_the_same_records_give_the_same_bytes() -> None:
    for case in CASES:
        documents = read_documents((GOLDEN / case / "input.yaml").read_text())
        again = render_bird_config(make_snapshot(list(reversed(documents))))
        assert again.files == render(case).files, case
