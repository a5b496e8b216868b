"""When tasks are due."""

from __future__ import annotations

from cni_calico.controllers.due import FIRST_PAUSE_S, LONGEST_PAUSE_S, DueTasks


def test_what_fails_is_tried_ever_more_seldom_and_never_given_up():
    tasks: DueTasks[str] = DueTasks()
    tasks.note(["a"], 0.0)
    pauses = []
    now = 0.0
    for _ in range(40):
        assert tasks.due(now, 10) == ["a"]
        pauses.append(tasks.failed("a", now))
        assert tasks.due(now, 10) == []
        at = tasks.next_at()
        assert at is not None
        now = at
    assert pauses[0] == FIRST_PAUSE_S
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert tasks.failing == 1


def test_a_change_makes_it_due_at_once_and_success_forgets_the_failures():
    tasks: DueTasks[str] = DueTasks()
    tasks.note(["a"], 0.0)
    tasks.failed("a", 0.0)
    tasks.failed("a", 0.0)
    tasks.note(["a", "b"], 0.1)
    assert tasks.due(0.1, 10) == ["a", "b"]
    assert tasks.due(0.1, 1) == ["a"]
    tasks.done("a")
    assert tasks.due(0.1, 10) == ["b"]
    tasks.note(["a"], 5.0)
    assert tasks.failed("a", 5.0) == FIRST_PAUSE_S
    assert len(tasks) == 2
