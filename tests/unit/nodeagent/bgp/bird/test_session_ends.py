"""Ends of BGP sessions, found by looking at BIRD from time to time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.nodeagent.bgp.bird.session_ends import (
    FORGOTTEN,
    KEPT,
    NO_REASON,
    UNSEEN,
    SessionEnds,
    SessionState,
    parse_sessions,
)

REPLY = """\
2002 Name       Proto      Table      State  Since         Info
1002 device1    Device     ---        up     2026-11-26T11:51:03+0000
1002 Mesh_1     BGP        ---        up     2026-11-26T11:51:03+0000  Established
1002 Mesh_2     BGP        ---        start  2026-11-26T11:51:04+0000  Active        Socket: Connection closed
1002 Mesh_3     BGP        ---        down   2026-11-26T11:51:05+0000
1002 cut        BGP        ---
"""
UP, DOWN = SessionState(True, "t1"), SessionState(False, "t2", "Received: Administrative reset")


def test_what_bird_says() -> None:
    lines = [(int(line[:4]), line[5:]) for line in REPLY.splitlines()]
    assert parse_sessions(lines) == {
        "Mesh_1": SessionState(True, "2026-11-26T11:51:03+0000"),
        "Mesh_2": SessionState(False, "2026-11-26T11:51:04+0000", "Socket: Connection closed"),
        "Mesh_3": SessionState(False, "2026-11-26T11:51:05+0000"),
    }


@pytest.mark.parametrize(
    ("seen", "reasons"),
    [
        ([UP], []),
        ([DOWN], []),  # it has never been up since we look
        ([UP, DOWN, DOWN], [DOWN.reason]),
        ([UP, SessionState(False, "t2"), UP], [NO_REASON]),
        ([UP, SessionState(False, "t2", "Socket: Connection refused"), DOWN], [FORGOTTEN]),
        ([UP, DOWN, SessionState(False, "t2", "Socket: Connection refused")], [DOWN.reason]),
        ([UP, SessionState(True, "t2")], [UNSEEN]),
        ([DOWN, SessionState(False, "t3", "other"), UP], []),
    ],
)
def test_what_counts_as_an_end(seen: list[SessionState], reasons: list[str]) -> None:
    ends = SessionEnds()
    for state in seen:
        ends.note({"a": state})
    assert [end["reason"] for end in ends.ends.get("a", ())] == reasons
    again = SessionEnds(ends.ends)
    assert again.ends == ends.ends
    assert again.note({"b": UP}) == bool(reasons) and again.ends == {}  # the session is no longer configured


@given(st.lists(st.sampled_from(["up", "down"]), max_size=20))
def test_the_last_ones_are_kept(states: list[str]) -> None:
    ends, expected, was_up = SessionEnds(), [], False
    for number, state in enumerate(states):
        since = f"t{number}"
        ends.note({"a": SessionState(state == "up", since, "" if state == "up" else f"r{number}")})
        if was_up:
            expected.append({"time": since, "reason": UNSEEN if state == "up" else f"r{number}"})
        was_up = state == "up"
    assert ends.ends.get("a", []) == expected[-KEPT:]


@pytest.mark.parametrize("raw", [None, [], {"a": 1}, {"a": [1, {"time": 1}]}, {"a": {"time": "x"}}])
def test_what_an_earlier_run_left_may_be_anything(raw: object) -> None:
    assert SessionEnds(raw).ends == {}
