"""PURE: new flows of several nodes as they come, the two sides of a connection as one.

Rule: a side waits for the other one for a moment only; one that comes later is shown by itself. Time is given.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

from cni_calico.ctl.flows.nodes.joined import ToldFlow, are_sides, join_sides

HELD_S = 0.4


class JoinedStream:
    def __init__(self) -> None:
        self._held: deque[tuple[float, ToldFlow]] = deque()

    def add(self, told: ToldFlow, now: float) -> Iterator[dict[str, Any]]:
        """What can be shown because of it."""
        if told.whole:
            yield json.loads(told.document)
            return
        for held in self._held:
            if held[1].path == told.path and are_sides(held[1], told):
                self._held.remove(held)
                yield join_sides(held[1], told)
                return
        self._held.append((now + HELD_S, told))

    def due(self, now: float) -> Iterator[dict[str, Any]]:
        """What has waited long enough."""
        while self._held and self._held[0][0] <= now:
            yield json.loads(self._held.popleft()[1].document)
