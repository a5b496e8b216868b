"""What the documents claim of kernels, run on Debian's, and every test that this machine's kernel cannot run.

Rule: ./test.sh runs the quick lane on one kernel (6.1, or the one that --kernel names), with --all every lane, slow
tests included, on each; what has the marker ``once`` runs on that one. A machine is one thread, and any worker's
(tests/conftest.py), so that two run side by side.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cni_calico.ctl.node.checksystem import KERNEL
from tests.conftest import SUMMARY
from tests.everywhere import RAN
from tests.kernels.images import SERIES, find_kernel
from tests.kernels.lanes import LANES, LIMIT_S, files_once, marked_files, run_lane
from tests.kernels.machine import ROOT
from tests.kernels.table import documented_rows, read_probe, render_row

pytestmark = [pytest.mark.netns, pytest.mark.kernels, pytest.mark.bundle]


def test_every_test_that_names_a_feature_is_in_a_lane() -> None:
    """What is skipped here for its kernel runs there."""
    listed = [name for lane in LANES.values() for name in lane.files]
    assert sorted(listed) == sorted(marked_files())


def test_what_only_a_machine_can_run_is_slow_where_its_lane_is() -> None:
    """Without --all it would run nowhere."""
    texts = {name: (ROOT / name).read_text() for lane in LANES.values() if not lane.quick for name in lane.files}
    assert not [name for name, text in texts.items() if "mark.kernel(" in text and "mark.slow" not in text]


def test_what_runs_on_one_kernel_is_proven_on_each_by_another() -> None:
    """By a file that is in a lane, and has no such test itself."""
    listed, once = {name for lane in LANES.values() for name in lane.files}, files_once()
    assert once
    assert {proof for proofs in once.values() for proof in proofs} <= listed - once.keys()


def test_no_older_kernel_is_claimed_than_runs_here() -> None:
    """By checksystem, README and the documents, but for the one about other products."""
    oldest = min(SERIES, key=numbers)
    assert numbers(oldest) == KERNEL
    pages = [path for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if path.name != "comparison.md"]
    texts = {path.name: " ".join(path.read_text().split()) for path in pages}
    texts["build.md"] = texts["build.md"].replace("Linux 6.7 or newer", "")  # to emulate another processor
    least = {page: re.findall(r"(?i)(?:kernels?|linux|\|) (\d+\.\d+) or newer", text) for page, text in texts.items()}
    lists = {page: re.findall(r"Debian's ((?:\d+\.\d+(?:, | and )?){2,})", text) for page, text in texts.items()}
    assert least["runbook.md"] and lists["runbook.md"] and least["compatibility.md"] and lists["compatibility.md"]
    assert {version for found in least.values() for version in found} == {oldest}
    assert {tuple(re.findall(r"[\d.]+\d", each)) for found in lists.values() for each in found} == {SERIES}


def numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@pytest.mark.takes(400)
@pytest.mark.timeout(LIMIT_S + 200)
@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("lane", LANES)
def test_lane(
    series: str,
    lane: str,
    bundle: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: pytest.RecordProperty,
) -> None:
    slow = bool(request.config.getoption("--slow"))
    named = request.config.getoption("--kernel")
    if not slow and (series != named or not LANES[lane].quick):
        pytest.skip(f"slow: only with ./test.sh --all{'' if series == named else f', or --kernel {series}'}")
    kernel = find_kernel(series)
    assert kernel is not None, f"tests/setup/kernels.sh {series} fetches it"
    found = run_lane(kernel, lane, tmp_path / "results", slow=slow, once=series == named)
    done = found.outcome
    assert done.status == 0 and found.passed and not found.failed, done.output[-20000:]
    good = ("history: ",) if slow else ("history: ", "slow: ")  # not even what the kernel lacks
    assert not {test: why for test, why in found.skipped.items() if not why.startswith(good)}
    for test in found.passed:
        record_property(RAN, test)
    for line in found.said:
        record_property(SUMMARY, line)
    record_property(SUMMARY, f"Linux {kernel.version}, {lane}: {len(found.passed)} passed in {done.costs}")


@pytest.mark.slow
@pytest.mark.takes(60)
@pytest.mark.parametrize("series", SERIES)
def test_the_page_has_the_table_of_kernels(series: str, tmp_path: Path) -> None:
    """docs/node.md; ``python -m tests.kernels.table`` prints it. The version is that of the day: Debian's next one is
    fetched without a change of ours.
    """
    kernel = find_kernel(series)
    assert kernel is not None
    found = render_row(kernel, read_probe(kernel, tmp_path / "results"))
    assert without_version(documented_rows()[series]) == without_version(found)


def without_version(row: str) -> str:
    return re.sub(r"\([0-9][^)]*\)", "", row, count=1)
