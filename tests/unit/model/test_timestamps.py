"""Times as upstream spells them; the calendar against Python's own."""

from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from cni_calico.model.timestamps import allocation_time, micro_time, parse_rfc3339, rfc3339


def test_stored_spellings():
    assert allocation_time(1795176388943484342) == "2026-11-20 12:06:28.943484342 +0000 UTC"
    assert allocation_time(1795179929414757080) == "2026-11-20 13:05:29.41475708 +0000 UTC"
    assert allocation_time(1795179929000000000) == "2026-11-20 13:05:29 +0000 UTC"
    assert rfc3339(1795176388.943484342) == "2026-11-20T12:06:28Z"
    assert micro_time(1795176388.943484) == "2026-11-20T12:06:28.943484Z"
    assert micro_time(1795176388.9999999) == "2026-11-20T12:06:29.000000Z"


@given(st.integers(0, 4_102_444_800 * 3))
def test_the_calendar(now_s):
    wanted = datetime.fromtimestamp(now_s, UTC)
    assert rfc3339(now_s) == wanted.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert parse_rfc3339(rfc3339(now_s)) == now_s


@given(st.integers(0, 4_102_444_800), st.integers(0, 999_999))
def test_microseconds(now_s, micro):
    now_s += micro / 1_000_000
    assert micro_time(now_s) == datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def test_times_of_others():
    assert parse_rfc3339("2026-11-20T13:06:28+01:00") == parse_rfc3339("2026-11-20T12:06:28Z") == 1795176388
    assert parse_rfc3339("2026-11-20T12:06:28.5Z") == 1795176388.5
    for text in ("", "yesterday", "2026-11-20", "2026-11-20T12:06:28"):
        assert parse_rfc3339(text) is None
