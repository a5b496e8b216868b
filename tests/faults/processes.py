"""Other processes: their descendants, whether they run, and where each of their threads is.

Rule: only /proc is read and only signals are sent; a process that has ended is no error.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from pathlib import Path

STILL = "TtZX"  # stopped, traced, ended: proc(5)


def descendants(pids: Iterable[int]) -> list[int]:
    found: list[int] = []
    for pid in pids:
        children = _children(pid)
        found += children + descendants(children)
    return found


def is_still(pid: int) -> bool:
    """Whether the process is stopped or has ended, all of its threads."""
    return all(state in STILL for state in _states(pid))


def send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def describe(pid: int) -> str:
    """Its command, and for each thread its state and where in the kernel it waits: for a run that hangs."""
    lines = [f"{pid}: {_read(Path(f'/proc/{pid}/cmdline')).replace(chr(0), ' ')[:200]}"]
    for task in _tasks(pid):
        where = _read(task / "wchan") or "-"
        lines.append(f"  {_read(task / 'comm').strip()} {_state(task)} {where} {_read(task / 'syscall').strip()}")
    return "\n".join(lines)


def _children(pid: int) -> list[int]:
    return [int(word) for task in _tasks(pid) for word in _read(task / "children").split()]


def _states(pid: int) -> list[str]:
    return [_state(task) for task in _tasks(pid)]


def _state(task: Path) -> str:
    return _read(task / "stat").rpartition(")")[2].strip()[:1] or "X"


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
