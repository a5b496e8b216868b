"""Threads that each carry out one part of a program.

Rule: an unexpected failure of a part ends the whole program, which is then started again; so no part is ever missing
unnoticed.
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
            log.failure(f"{name} failed: {e}", e)
            fail()

    return threading.Thread(target=guarded, name=name, daemon=True)
