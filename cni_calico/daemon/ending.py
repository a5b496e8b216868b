"""Ends a program in time, whatever one of its threads still waits for.

Rule: from the moment at which it is told to stop, a program has a few seconds to end by itself; whoever told it kills
it soon after that, and then its exit status says nothing any more. Of these seconds the interpreter's own end gets
none: it destroys gRPC's objects, which wait for servers that do not answer.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from cni_calico.daemon.stopping import Stopping


def leave(status: int) -> NoReturn:
    """End the process at once; everything that must be done before has been done."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def end_in_time(
    stopping: Stopping,
    seconds: float,
    status: Callable[[], int],
    say: Callable[[str], object],
    leave: Callable[[int], object] = leave,
) -> threading.Thread:
    """A thread, already started, that ends the process with ``status()`` so many seconds after ``stopping``.

    It ends with the process, so it does nothing if that ended before. ``say`` is told what was still being done.
    """

    def watch() -> None:
        stopping.wait()
        time.sleep(seconds)
        own = (threading.current_thread(), threading.main_thread())
        busy = sorted(thread.name for thread in threading.enumerate() if thread not in own)
        say(f"ending without waiting any longer for {', '.join(busy) or 'the main thread'}")
        leave(status())

    thread = threading.Thread(target=watch, name="end", daemon=True)
    thread.start()
    return thread
