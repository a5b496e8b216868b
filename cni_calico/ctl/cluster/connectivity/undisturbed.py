"""Signals in a command that has to clean up: they interrupt its work at once, and its cleaning up never.

Rule: SIGTERM and SIGHUP are like Ctrl-C; the former handlers come back at the end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """Inside this context each of the signals raises KeyboardInterrupt."""
    with _handling(_interrupt):
        yield


@contextmanager
def undisturbed() -> Iterator[None]:
    """Inside this context none of the signals has an effect."""
    with _handling(signal.SIG_IGN):
        yield


def _interrupt(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


@contextmanager
def _handling(handler: Callable[[int, Any], Any] | signal.Handlers) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread gets signals
        return
    before = {number: signal.signal(number, handler) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
