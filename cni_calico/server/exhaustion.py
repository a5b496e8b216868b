"""Whether this process has ever been refused memory.

Rule: a process that was refused memory must end and be started again: nothing in it can be relied on any more. A
compiled module whose import was interrupted stays incomplete (gRPC's then raises NameError at every call), and if a
thread dies before its first step, the thread that waits for its start hangs forever, with its locks held. The
supervisor starts the server again; until then the plugin's processes do the work themselves.
"""

from __future__ import annotations

import sys
import threading
from collections import deque

from cni_calico.daemon.stopping import Stopping
from cni_calico.shortage import MEMORY, shortage_of

LOOK_S = 1.0
KEPT = 64


class Exhaustion:
    """``noted``: whether it has happened."""

    def __init__(self) -> None:
        self.noted = False
        self._ended: Stopping | None = None
        self._ignored: deque[sys.UnraisableHookArgs] = deque(maxlen=KEPT)

    def note(self, error: BaseException | None) -> str:
        """Remember an error, if it or a cause of it is a lack of memory. Returns what is lacking; once memory has been,
        that is memory, whatever the error says.
        """
        lacking = shortage_of(error)
        if lacking == MEMORY:
            self.noted = True
            if self._ended is not None:
                self._ended.set()
        return MEMORY if self.noted else lacking

    def watch_threads(self) -> None:
        """Note errors that end threads, or keep them from starting.

        A thread without memory for its first frame cannot call a function of Python, but it can append to a queue.
        """
        sys.unraisablehook = self._ignored.append
        threading.excepthook = self._note_end

    def _note_end(self, ended: threading.ExceptHookArgs) -> None:
        self.note(ended.exc_value)
        if not self.noted:
            threading.__excepthook__(ended)

    def wait(self, ended: Stopping) -> None:
        """Wait until the process must end, for this reason or another. In the main thread only."""
        self._ended = ended
        while not (self.noted or ended.wait(LOOK_S)):
            while self._ignored:
                ignored = self._ignored.popleft()
                self.note(ignored.exc_value or ignored.exc_type())
                sys.__unraisablehook__(ignored)
