"""Threads that each carry out one part of a program.

Rule: a part that fails for a reason that nobody expected ends the program, which is started again; it is never missing
without a word.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cni_calico.log import Log


def guarded_thread(name: str, work: Callable[[], object], log: Log, fail: Callable[[], None]) -> threading.Thread:
    """A thread that runs ``work``, not started yet. If that raises, the trace is logged and ``fail`` is called."""

    def guarded() -> None:
        try:
            work()
        except Exception as e:
            import traceback

            log.error(f"{name} failed: {e}\n" + "".join(traceback.format_exception(e)))
            fail()

    return threading.Thread(target=guarded, name=name, daemon=True)
