"""A minute of what tests/bench/policy/soak.py does for hours."""

from __future__ import annotations

import pytest

from tests.bench.policy.soak import CHANGES, Figures, Wrong, soak


@pytest.mark.netns
@pytest.mark.slow
def test_random_changes_under_traffic() -> None:
    found = soak(1.0, 20260101)
    assert found.changes >= CHANGES
    assert found.verdicts > 100 and found.sent > 100
    assert {"host", "pod", "policy"} <= found.kinds.keys()


def test_an_engine_that_grows_is_found() -> None:
    Figures(resident_mb=[26.0] * 10 + [31.0]).check_memory()
    Figures(resident_mb=[26.0]).check_memory()
    with pytest.raises(Wrong, match=r"grew from 26\.0 to 31\.3 MB"):
        Figures(resident_mb=[26.0, 26.0, *[30.0] * 18, 31.3]).check_memory()
    with pytest.raises(Wrong, match="open files became more: 52, 77"):
        Figures(resident_mb=[26.0], files=[52, 54, 77]).check_memory()
