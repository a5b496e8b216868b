"""The other lanes, and the table of kernels."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kernels.images import DEFAULT_SERIES, SERIES, find_kernel
from tests.kernels.lanes import LANES, LIMIT_S
from tests.kernels.table import documented_rows, read_probe, render_row
from tests.kernels.test_stock_kernels import FIRST, check_lane

pytestmark = [pytest.mark.netns, pytest.mark.kernels, pytest.mark.bundle, pytest.mark.timeout(LIMIT_S + 200)]


@pytest.mark.takes(150)
@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize("lane", [name for name in LANES if name not in FIRST])
def test_lane(
    series: str,
    lane: str,
    bundle: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    record_property: pytest.RecordProperty,
) -> None:
    check_lane(series, lane, tmp_path / "results", request, record_property)


@pytest.mark.slow
@pytest.mark.parametrize("series", SERIES)
def test_the_page_has_the_table_of_kernels(series: str, tmp_path: Path) -> None:
    """docs/node.md; ``python -m tests.kernels.table`` prints it. The version is that of the day: Debian's next one is
    fetched without a change of ours.
    """
    kernel = find_kernel(series)
    assert kernel is not None and DEFAULT_SERIES in SERIES
    found = render_row(kernel, read_probe(kernel, tmp_path / "results"))
    assert without_version(documented_rows()[series]) == without_version(found)


def without_version(row: str) -> str:
    return re.sub(r"\([0-9][^)]*\)", "", row, count=1)
