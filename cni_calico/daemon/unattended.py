"""Carries out functions for whose result nobody waits, one after the other. Rule: it must do no harm if such a function
is never run (the process can be killed at any time); so one that raises is not repeated, and at the end the rest is
waited for, but not for long.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from cni_calico.survived import tell_survived

Act = Callable[[], object]


class Unattended:
    """``doing`` is the name of the thread, which is started for the first function."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._acts: SimpleQueue[Act | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def submit(self, act: Act) -> None:
        """Have ``act`` carried out; after ``stop``, or while no thread can be started, it is dropped."""
        with self._guard:
            if self._stopped:
                return
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._doing, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the host is short of threads; the next act tries again
                    return
                self._thread = thread
            self._acts.put(act)

    def stop(self, patience_s: float) -> bool:
        """Whether everything was carried out within ``patience_s``."""
        with self._guard:
            self._stopped = True
            thread = self._thread
            self._acts.put(None)
        if thread is None:
            return True
        thread.join(patience_s)
        return not thread.is_alive()

    def _run(self) -> None:
        while (act := self._acts.get()) is not None:
            try:
                act()
            except Exception as e:  # see the rule
                tell_survived(e)
