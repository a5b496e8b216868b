"""Times as upstream spells them; the calendar against Python's own."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ipam.timestamps import allocation_time, claim_time, parse_claim_time


def test_stored_spellings():
    assert allocation_time(1795176388943484342) == "2026-11-20 12:06:28.943484342 +0000 UTC"
    assert allocation_time(1795179929414757080) == "2026-11-20 13:05:29.41475708 +0000 UTC"
    assert allocation_time(1795179929000000000) == "2026-11-20 13:05:29 +0000 UTC"
    assert claim_time(1795176388943484342) == "2026-11-20T12:06:28Z"


@given(st.integers(0, 4_102_444_800 * 10**9 * 3))
def test_the_calendar(now_ns):
    wanted = datetime.fromtimestamp(now_ns // 10**9, UTC)
    assert claim_time(now_ns) == wanted.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert parse_claim_time(claim_time(now_ns)) == now_ns // 10**9 * 10**9


def test_claim_times_of_others():
    assert parse_claim_time("2026-11-20T13:06:28+01:00") == parse_claim_time("2026-11-20T12:06:28Z")
    assert parse_claim_time("2026-11-20T12:06:28.5Z") == parse_claim_time("2026-11-20T12:06:28Z")
    for text in ("", "yesterday", "2026-11-20", "2026-11-20T12:06:28"):
        assert parse_claim_time(text) is None
