"""A minute of what tests/bench/soak_policy.py does for an hour."""

from __future__ import annotations

import pytest

from tests.bench.soak_policy import CHANGES, soak

pytestmark = [pytest.mark.netns, pytest.mark.slow]


def test_random_changes_under_traffic() -> None:
    found = soak(1.0, 20260101)
    assert found.changes >= CHANGES
    assert found.verdicts > 100 and found.sent > 100
