"""Whether a relay's view of the cluster is up to date: which collections it cannot follow, and since when. Rule: a
collection may fail for a while, because its watch is resumed where it ended. After ``after_s`` the relay no longer
vouches for its view: it sends no bookmarks, serves no requests and tells its clients, who know whether they have
another source. A collection that works again counts at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class CutOff:
    """``tell`` is called by the threads that follow, everything else by any."""

    def __init__(self, after_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._after_s = after_s
        self._clock = clock
        self._troubles: dict[
            str, tuple[str, float]
        ] = {}  # by path: what is wrong now, and since when something has been wrong

    @property
    def troubles(self) -> dict[str, str]:
        return {path: why for path, (why, _) in self._troubles.copy().items()}

    def tell(self, path: str, why: str) -> None:
        """What is wrong with a collection; "" if nothing is."""
        if why:
            _, since = self._troubles.get(path, ("", self._clock()))
            self._troubles[path] = why, since
        else:
            self._troubles.pop(path, None)

    def lasting(self) -> dict[str, str]:
        """The troubles of collections that are no longer vouched for."""
        now = self._clock()
        return {path: why for path, (why, since) in self._troubles.copy().items() if now - since >= self._after_s}

    def why(self) -> str:
        """Why this relay must not be used; "" if it may be."""
        lasting = self.lasting()
        if not lasting:
            return ""
        first = min(lasting)
        others = f" and {len(lasting) - 1} more" if len(lasting) > 1 else ""
        return f"cut off from the API server: cannot follow {first}{others} for {self._after_s:.0f} s: {lasting[first]}"
