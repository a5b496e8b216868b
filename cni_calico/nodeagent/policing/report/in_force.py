"""Tells a listener which rules are in force, as changes of what is wanted.

Rule: only what has come into force is told, in the engine's thread, which never waits for the listener. Without one
nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cni_calico.policy.wanted import Wanted, WantedChanges

_MOST = 100  # changes that wait because rounds fail; then everything is told anew


class RulesListener(Protocol):
    """``tell``: these changes have come into force since the last time, None for more than were kept; ``wanted`` gives
    everything, and costs as much. ``tell_lifted``: none are in force any more.
    """

    def listens(self) -> bool: ...

    def tell(self, changes: Sequence[WantedChanges] | None, wanted: Callable[[], Wanted]) -> None: ...

    def tell_lifted(self) -> None: ...


class RulesInForce:
    """For the engine's thread; ``listener`` may be set from any."""

    def __init__(self) -> None:
        self.listener: RulesListener | None = None
        self._waiting: list[WantedChanges] | None = None

    def begin(self) -> None:
        """The changes that follow are from nothing on."""
        self._waiting = None

    def note(self, changes: WantedChanges) -> None:
        """They are calculated, and not in force yet."""
        if self.listener is None or not self.listener.listens():
            self._waiting = []
        elif changes and self._waiting is not None:
            self._waiting = None if len(self._waiting) >= _MOST else [*self._waiting, changes]

    def applied(self, wanted: Callable[[], Wanted]) -> None:
        """Everything that was noted is in force."""
        waiting, self._waiting = self._waiting, []
        if self.listener is not None and self.listener.listens():
            self.listener.tell(waiting, wanted)

    def lifted(self) -> None:
        self._waiting = []
        if self.listener is not None and self.listener.listens():
            self.listener.tell_lifted()
