"""When the tokens of open watches are reviewed again.

Rule: a watch whose token the API server no longer accepts ends within 5 minutes of that: 10 s for which the API server
remembers the token, 180 s (``oldest_s``), AGAIN_S, the review itself, and 30 s of a client that does not read. A watch
with a certificate is not looked at.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator

from cni_calico.relay.admission import TokenReviews
from cni_calico.relay.client import Client, State

AGAIN_S = 20.0
PENDING_S = 0.5
_RANDOM = random.SystemRandom()


class WatchReviews:
    """``portion()``: at random from 0 to 1, so that watches that began together are not reviewed together."""

    def __init__(
        self,
        reviews: TokenReviews,
        oldest_s: float,
        portion: Callable[[], float] = _RANDOM.random,
    ) -> None:
        self._reviews = reviews
        self._oldest_s = oldest_s
        self._portion = portion
        self._due: list[tuple[float, int, Client]] = []
        self._count = 0

    def begin(self, client: Client, now: float) -> None:
        """Note a watch, if it was admitted by its token; before its request is forgotten."""
        if client.has_certificate or client.request is None:
            return
        client.token = client.request.token
        self._put(now + self._pause_s(), client)

    def ended(self, now: float) -> Iterator[Client]:
        """The watches that are due and whose tokens are no longer accepted."""
        while self._due and self._due[0][0] <= now:
            client = heapq.heappop(self._due)[2]
            if client.state is not State.STREAM:
                continue
            fresh_s = self._oldest_s * (0.7 + 0.3 * self._portion())
            why = self._reviews.why_not(client.token, client.peer, fresh_s=fresh_s)
            if why:
                yield client
            else:
                self._put(now + (PENDING_S if why is None else self._pause_s()), client)

    def _pause_s(self) -> float:
        return min(AGAIN_S, self._oldest_s / 10) * (0.5 + 0.5 * self._portion())

    def _put(self, due: float, client: Client) -> None:
        self._count += 1
        heapq.heappush(self._due, (due, self._count, client))
