"""Deadlines and waits of tests: none is reached unless something is wrong."""

from __future__ import annotations

import select
import time
from collections.abc import Callable
from typing import Any

from cni_calico.deadline import Deadline

SOON = Deadline.after(86400)  # made once, at import: longer than any run


def soon(seconds: float = 30.0) -> Deadline:
    return Deadline.after(seconds)


def until(condition: Callable[[], Any], what: str = "it", timeout_s: float = 90.0, *, pause_s: float = 0.01) -> Any:
    """The first true value of ``condition()``; a longer pause where asking costs processes.

    Raises AssertionError with ``what`` and the last value.
    """
    end = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {timeout_s:g} s: {what} (now {value!r})"
        select.select((), (), (), pause_s)
    return value
