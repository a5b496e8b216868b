"""Whether there is policy sync: it is imported once it is asked for.

Rule: while it is off nothing of it is there, and nothing is followed or kept for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings


class ListenedTo(Protocol):
    """The engine's rules in force."""

    listeners: tuple[Any, ...]


class PolicySync:
    """``use`` in one thread. ``wake`` makes the engine tell those who listen to ``rules``; ``start_thread`` runs its
    argument in a thread of its own until ``stopping``; ``tell`` is called with what is wrong, "" for nothing.
    """

    def __init__(
        self,
        context: Context,
        rules: ListenedTo,
        wake: Callable[[], None],
        start_thread: Callable[[Callable[[], None]], object],
        stopping: threading.Event,
        tell: Callable[[str], object],
    ) -> None:
        self._context, self._rules, self._wake = context, rules, wake
        self._start_thread, self._stopping, self._tell = start_thread, stopping, tell
        self._keep: Callable[[str], None] | None = None

    def use(self, felix: FelixSettings) -> None:
        prefix = felix.policy_sync_prefix
        if self._keep is None and prefix:
            from cni_calico.nodeagent.sync.keeper import SyncKeeper

            context = self._context
            threads = self._start_thread, self._stopping
            keeper = SyncKeeper(context.followed, context.log, *threads, self._tell, self._wake)
            self._rules.listeners += (keeper,)
            self._keep = keeper.use
        if self._keep is not None:
            self._keep(prefix)
