"""How often an API server is asked: k8s_client_qps and k8s_client_burst, and pauses limited by the call's deadline.

Rule: a pause that would end after the deadline is an error at once.
"""

from __future__ import annotations

import threading
import time

from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded


def pause(pause_s: float, deadline: Deadline, doing: str) -> None:
    if pause_s <= 0:
        return
    if pause_s >= deadline.remaining_s():
        raise DeadlineExceeded(f"cannot {doing}: the client-side limit (qps) leaves no time for it")
    time.sleep(pause_s)


class Throttle:
    """At most ``qps`` requests per second after a burst of ``burst``; 0: no limit."""

    def __init__(self, qps: float, burst: int) -> None:
        self._qps = qps
        self._burst = max(burst, 1)
        self._tokens = float(self._burst)
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def wait(self, deadline: Deadline, doing: str) -> None:
        if self._qps <= 0:
            return
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._qps)
            self._at = now
            self._tokens -= 1
            pause_s = max(0.0, -self._tokens / self._qps)
        pause(pause_s, deadline, doing)
