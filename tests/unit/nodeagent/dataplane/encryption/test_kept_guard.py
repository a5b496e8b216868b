"""The kept guard is read as it was written, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.nodeagent.dataplane.encryption.guard import DesiredGuard
from cni_calico.nodeagent.dataplane.encryption.kept_guard import parse_kept, render_kept

WHOLE = {"devices": ["wireguard.cali"], "prefixes": ["cali"], "guarded": [[[1, 9], [20, 20]], [[1 << 100, 1 << 101]]]}
ranges = st.lists(st.integers(0, (1 << 32) - 1), unique=True).map(
    lambda numbers: tuple(zip(sorted(numbers)[::2], sorted(numbers)[1::2], strict=False))
)


@given(first=ranges, second=ranges)
def test_it_comes_back(first: Any, second: Any) -> None:
    guard = DesiredGuard(("wireguard.cali", "wg-v6.cali"), ("cali", "tap"), (first, second))
    assert parse_kept(render_kept(guard)) == DesiredGuard(guard.devices, guard.prefixes, guard.guarded, partial=True)


@pytest.mark.parametrize(
    "change",
    [
        {"guarded": [[[1, 9], [9, 10]], []]},
        {"guarded": [[[0, 1 << 32]], []]},
        {"guarded": [[[1, 2]]]},
        {"guarded": [[["1", "2"]], []]},
        {"guarded": [[[True, 2]], []]},
        {"guarded": 7},
        {"devices": ['a" accept; }']},
        {"devices": "wireguard.cali"},
        {"prefixes": [7]},
        {"prefixes": None},
    ],
)
def test_what_is_not_whole_is_nothing(change: dict[str, Any]) -> None:
    assert parse_kept(json.dumps(WHOLE).encode()) is not None
    assert parse_kept(json.dumps({**WHOLE, **change}).encode()) is None


@given(st.binary())
def test_any_bytes(text: bytes) -> None:
    parse_kept(text)
