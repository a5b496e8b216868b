"""Tells listeners which rules are in force, as changes of what is wanted.

Rule: only what has come into force is told, in the engine's thread, which never waits for a listener. Without one
nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.flushed import OtherNeeds
from cni_calico.policy.graph import Graph
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.wanted import PolicyId, Wanted, WantedChanges

_MOST = 100  # changes that wait because rounds fail; then everything is told anew


class RulesListener(Protocol):
    """``tell``: these changes have come into force since the last time, None for more than were kept; ``wanted`` gives
    everything, and costs as much. ``tell_lifted``: none are in force any more.
    """

    def listens(self) -> bool: ...

    def tell(self, changes: Sequence[WantedChanges] | None, wanted: Callable[[], Wanted]) -> None: ...

    def tell_lifted(self) -> None: ...


class RecordsListener(Protocol):
    """Hears the records of policy, in force or not: ``begin`` with all of them (the budget of rules, and whom it
    spares) if it ``wants_all``, then ``put`` while it ``hears``; ``forget`` if they begin anew. ``needs``: what else it
    wants to be known.
    """

    @property
    def wants_all(self) -> bool: ...

    @property
    def hears(self) -> bool: ...

    @property
    def needs(self) -> OtherNeeds: ...

    def begin(
        self,
        records: Iterable[tuple[ResourceKey, GraphRecord]],
        budget: int | None,
        spared: Mapping[PolicyId, int],
        total: int | None,
    ) -> None: ...

    def put(self, key: ResourceKey, record: GraphRecord | None) -> None: ...

    def forget(self) -> None: ...


class RulesInForce:
    """For the engine's thread; ``listeners`` and ``records`` (who hears of records) may be set from any."""

    def __init__(self) -> None:
        self.listeners: tuple[RulesListener, ...] = ()
        self.records: RecordsListener | None = None
        self._waiting: list[WantedChanges] | None = None

    def begin(self) -> None:
        """The changes that follow are from nothing on."""
        self._waiting = None
        if self.records is not None:
            self.records.forget()

    def put(self, key: ResourceKey, record: GraphRecord | None) -> None:
        """A record has come, or is gone."""
        if self.records is not None and self.records.hears:
            self.records.put(key, record)

    def offer(self, graph: Graph) -> None:
        """All records, to who wants them."""
        if self.records is not None and self.records.wants_all:
            self.records.begin(graph.records(), graph.budget, graph.spared, graph.room.total)

    def needs(self, own: OtherNeeds) -> OtherNeeds:
        """What has to be known besides, for the engine and for who hears of records."""
        return own if self.records is None else own.with_these(self.records.needs)

    def note(self, changes: WantedChanges) -> None:
        """They are calculated, and not in force yet."""
        if not any(listener.listens() for listener in self.listeners):
            self._waiting = []
        elif changes and self._waiting is not None:
            self._waiting = None if len(self._waiting) >= _MOST else [*self._waiting, changes]

    def applied(self, wanted: Callable[[], Wanted]) -> None:
        """Everything that was noted is in force."""
        waiting, self._waiting = self._waiting, []
        for listener in self.listeners:
            if listener.listens():
                listener.tell(waiting, wanted)

    def lifted(self) -> None:
        self._waiting = []
        for listener in self.listeners:
            if listener.listens():
                listener.tell_lifted()
