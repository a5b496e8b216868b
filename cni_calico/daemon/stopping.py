"""An Event that a signal handler may set.

Rule: no lock anywhere. ``threading.Event.set`` takes a lock that the interrupted thread itself may hold, inside its own
``wait``: then the process would never end. Here a descriptor becomes permanently readable, and all threads poll it. The
kernel may deliver a signal to any thread, but its handler runs in the main thread, between two of that thread's
bytecode instructions; so the main thread must never wait for long at a time.

A second signal is ignored: we are already stopping. If a handler stayed installed, the interpreter would restore the
default action while it ends, and the process would end as if killed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from select import POLLIN, poll

LOOK_S = 1.0


class Stopping(threading.Event):
    """Set once; there is no ``clear``."""

    def __init__(self) -> None:
        super().__init__()
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._is_set = False

    def fileno(self) -> int:
        """Readable once it is set, for who waits for other descriptors as well."""
        return self._fd

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        raise TypeError("stopping cannot be undone")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait up to ``timeout`` seconds; returns whether it is set."""
        poller = poll()
        poller.register(self._fd, POLLIN)
        limit = None if timeout is None else time.monotonic() + timeout
        longest_s = LOOK_S if threading.current_thread() is threading.main_thread() else None
        while True:
            left = None if limit is None else max(0.0, limit - time.monotonic())
            known = [seconds for seconds in (left, longest_s) if seconds is not None]
            # rounded up: a wait for less than a millisecond is still a wait
            if poller.poll(-int(-min(known) * 1000 // 1) if known else None) or self._is_set:
                return True
            if limit is not None and time.monotonic() >= limit:
                return False

    def on_signals(self, *numbers: signal.Signals) -> None:
        """Set it at the first of these signals. In the main thread only."""

        def first(number: int, _: object) -> None:
            for each in numbers:
                signal.signal(each, signal.SIG_IGN)
            self.set()

        for number in numbers:
            signal.signal(number, first)

    def __del__(self) -> None:
        os.close(self._fd)
