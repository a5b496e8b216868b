"""The bounded memory of what happened a moment ago."""

from __future__ import annotations

from cni_calico.daemon.recent import Recently


def test_names_are_forgotten_after_a_while_or_when_there_are_too_many() -> None:
    now = [0.0]
    recently = Recently(10, 3, clock=lambda: now[0])
    recently.note("a")
    assert "a" in recently and "b" not in recently
    now[0] = 9.9
    assert "a" in recently
    recently.note("b")
    now[0] = 10.0
    assert "a" not in recently and "b" in recently
    for name in "cde":
        recently.note(name)
    assert [name in recently for name in "bcde"] == [False, True, True, True]
    recently.forget("c")
    recently.forget("nobody")
    assert "c" not in recently
    recently.note("d")
    recently.note("f")
    assert [name in recently for name in "def"] == [True, True, True]
