"""What the documents claim of kernels, run on Debian's, and every test that this machine's kernel cannot run.

Rule: ./test.sh runs the quick lanes on one kernel (6.1, or the one that --kernel names), with --all every lane, slow
tests included, on each. A machine is one thread; the two files of this folder make two run side by side.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import SUMMARY
from tests.kernels.images import SERIES, find_kernel
from tests.kernels.lanes import LANES, LIMIT_S, marked_files, run_lane

pytestmark = [pytest.mark.netns, pytest.mark.kernels, pytest.mark.bundle]
FIRST = "switch"  # the others are in test_more_lanes.py


def test_every_test_that_names_a_feature_is_in_a_lane() -> None:
    """What is skipped here for its kernel runs there."""
    listed = [name for lane in LANES.values() for name in lane.files]
    assert sorted(listed) == sorted(marked_files())


def check_lane(series: str, lane: str, results: Path, request: pytest.FixtureRequest) -> str:
    """Runs it; what is worth saying of it."""
    slow = bool(request.config.getoption("--slow"))
    named = request.config.getoption("--kernel")
    if not slow and (series != named or not LANES[lane].quick):
        pytest.skip(f"slow: only with ./test.sh --all{'' if series == named else f', or --kernel {series}'}")
    kernel = find_kernel(series)
    assert kernel is not None, f"tests/setup/kernels.sh {series} fetches it"
    done, counts, reasons = run_lane(kernel, lane, results, slow=slow)
    assert done.status == 0 and counts["passed"] and not counts["failed"], done.output[-20000:]
    assert not [why for why in reasons if ": slow: " not in why]  # not even for the kernel
    return f"Linux {kernel.version}, {lane}: {counts['passed']} passed in {done.seconds:.0f} s"


@pytest.mark.takes(150)
@pytest.mark.timeout(LIMIT_S + 200)
@pytest.mark.parametrize("series", SERIES)
def test_lane(
    series: str,
    bundle: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: pytest.RecordProperty,
) -> None:
    record_property(SUMMARY, check_lane(series, FIRST, tmp_path / "results", request))
