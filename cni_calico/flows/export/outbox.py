"""PURE: the updates that are to be sent, that were sent and are not acknowledged, and that were acknowledged lately.

Rule: an update is in one of the three. Acknowledged ones are sent again only to a collector that has forgotten them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from cni_calico.flows.export.intervals import ExportedFlow

UNANSWERED, QUEUE = 256, 5000
KEPT_S = 300.0


class Outbox:
    """``received``: how many were acknowledged; ``lost``: there was no room for them, or no message. ``keeps_s``: how
    long acknowledged ones are kept. Times are seconds of a clock that never steps.
    """

    def __init__(self, keeps_s: float = KEPT_S) -> None:
        self._queue: deque[ExportedFlow] = deque()
        self._unanswered: deque[ExportedFlow] = deque()
        self._acknowledged: deque[tuple[float, ExportedFlow]] = deque(maxlen=QUEUE)
        self._keeps_s = keeps_s
        self.received = self.lost = 0

    def __len__(self) -> int:
        """Updates without receipt."""
        return len(self._queue) + len(self._unanswered)

    @property
    def unanswered(self) -> int:
        return len(self._unanswered)

    def add(self, flows: Iterable[ExportedFlow]) -> None:
        """What has no room is lost, the newest first."""
        for flow in flows:
            if len(self) >= QUEUE:
                self.lost += 1
            else:
                self._queue.append(flow)

    def send(self) -> ExportedFlow | None:
        """The next one; None if there is none, or it has to wait for receipts."""
        if not self._queue or len(self._unanswered) >= UNANSWERED:
            return None
        flow = self._queue.popleft()
        self._unanswered.append(flow)
        return flow

    def discard(self) -> None:
        """The one that ``send`` gave last: it cannot be sent, and is lost."""
        self._unanswered.pop()
        self.lost += 1

    def acknowledge(self, now: float) -> None:
        """The oldest of those that were sent; a receipt for none is none."""
        if not self._unanswered:
            return
        self.received += 1
        self._acknowledged.append((now, self._unanswered.popleft()))
        while self._acknowledged[0][0] < now - self._keeps_s:
            self._acknowledged.popleft()

    def interrupt(self) -> None:
        """What has no receipt is sent again."""
        self._queue.extendleft(reversed(self._unanswered))
        self._unanswered.clear()

    def repeat(self, now: float) -> None:
        """The collector is another one, or has begun anew: it gets what was acknowledged lately, before all else."""
        again = [flow for when, flow in self._acknowledged if when >= now - self._keeps_s]
        self._queue.extendleft(reversed(again))
        self._acknowledged.clear()
