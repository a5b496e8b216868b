"""A part of a program that fails ends the program, and says why."""

from __future__ import annotations

from cni_calico.daemon.guarded import guarded_thread
from tests.fakes.notes import Notes


def run(work) -> tuple[list[str], list[str]]:
    log, failed = Notes(), []
    thread = guarded_thread("part", work, log, lambda: failed.append("it"))
    assert thread.daemon and thread.name == "part" and not thread.is_alive()
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    return log.texts, failed


def test_a_part_that_ends_is_no_failure() -> None:
    assert run(lambda: None) == ([], [])


def test_a_part_that_raises_is_told_with_its_trace() -> None:
    def work() -> None:
        raise KeyError("none")

    [text], failed = run(work)
    assert "part failed: 'none'" in text and "Traceback" in text and failed == ["it"]
