"""PURE: what was decided about connections before their destination was translated (preDNAT), and their records.

Rule: such a decision waits a moment for the next one about the same source and source port, which is about the same
connection, with the destination that it has by then. Where none comes, it stands for itself, with the destination to
which it was sent; its end is found by that (``flows.live``). What is denied is read apart from what is let through, so
a denial is not joined where there were several that it may be about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cni_calico.flows.arrivals import DecidedPacket
from cni_calico.flows.deciders import Decider
from cni_calico.flows.live import LiveFlows
from cni_calico.flows.oldest import OldestKeys
from cni_calico.flows.packets import key_as_sent, parts_of, source_of
from cni_calico.kernel.netlink.ended import TrackedConnection

_WAIT_US = 1_000_000
_MOST, _REMEMBERED = 10_000, 10_000


class _SentDecision(NamedTuple):
    """``key``: as it was sent. ``is_only``: no other one of that source waited meanwhile."""

    key: bytes
    number: int
    when: int
    is_only: bool


class UntranslatedDecisions:
    """Before ``live``. ``decider_of``: what a number stands for, None if that is unknown. Times are microseconds since
    1970.
    """

    def __init__(self, live: LiveFlows, decider_of: Callable[[int], Decider | None]) -> None:
        self.live, self._decider_of = live, decider_of
        self._others: set[int] = set()  # numbers that decide after translation
        self._held: dict[bytes, _SentDecision] = {}  # by source
        self._oldest_held = OldestKeys(self._held)

    def decide(self, key: bytes, number: int, now: int, *, allowed: bool, also: int = 0) -> int:
        """As ``LiveFlows.decide``; 0 as long as there is no record."""
        if number not in self._others and self._decides_before(number) and allowed and not also:
            source, is_only = source_of(key), True
            displaced = self._held.pop(source, None)
            if displaced is not None:
                is_only = displaced.key == key and displaced.is_only
            elif len(self._held) >= _MOST:
                displaced = self._held.pop(self._oldest_held.first())
            if displaced is not None and displaced.key != key:
                self.live.decide(*displaced[:3], allowed=True)
            self._held[source] = _SentDecision(key, number, now, is_only)
            return 0
        if self._held:
            self._join(key, now, allowed=allowed)
        return self.live.decide(key, number, now, allowed=allowed, also=also)

    def may_hold(self, decisions: Iterable[DecidedPacket]) -> bool:
        """Whether one of them, or one from before, waits or may wait for another one."""
        known = self._others
        alone = {number for _, _, number, also in decisions if not also and number not in known}
        return bool(self._held) or any(map(self._decides_before, alone))

    def _decides_before(self, number: int) -> bool:
        decider = self._decider_of(number)
        if decider is not None and not decider.untranslated:
            if len(self._others) >= _REMEMBERED:
                self._others.clear()
            self._others.add(number)
        return decider is not None and decider.untranslated

    def _join(self, key: bytes, now: int, *, allowed: bool) -> None:
        """What was decided about the connection before, if anything was."""
        source = source_of(key)
        held = self._held.get(source)
        if held is not None and (allowed or held.key == key):  # which denial is meant is known later
            del self._held[source]
            self._note_sent(self.live.decide(key, held.number, now, allowed=True), held.key)

    @property
    def holds_any(self) -> bool:
        """Whether a decision waits for another one."""
        return bool(self._held)

    def end(self, connection: TrackedConnection, now: int) -> int:
        """As ``LiveFlows.end``."""
        if self._held:
            source = source_of(connection.key)
            held = self._held.get(source)
            if held is not None and held.key == key_as_sent(*connection[:3]):
                del self._held[source]
                self.live.decide(*held[:3], allowed=True)
        return self.live.end(connection, now)

    def note_step(self, now: int) -> None:
        """As ``LiveFlows.note_step``."""
        self.release(all_of_them=True)
        self.live.note_step(now)

    def tidy(self, now: int) -> list[int]:
        """As ``LiveFlows.tidy``; returns the numbers of records that there are now."""
        found = self.release() if self._held else []
        self.live.tidy(now)
        return found

    def release(self, *, all_of_them: bool = False) -> list[int]:
        """Let decisions stand that were the only ones; returns the numbers of their records. Their packets may have
        been denied meanwhile: the kernel's two lists are read in turn.
        """
        before = self.live.all_read - _WAIT_US
        due = [source for source, held in self._held.items() if all_of_them or held.when < before]
        if not due:
            return []
        denied = self.live.denied_since(min(self._held[source].when for source in due) - _WAIT_US)
        attempts: dict[bytes, list[bytes]] = {}
        for key in denied:
            attempts.setdefault(source_of(key), []).append(key)
        found = []
        for source in due:
            sent, number, when, is_only = self._held.pop(source)
            denials = attempts.get(source, [])
            key = denials[0] if is_only and len(denials) == 1 else sent
            found.append(self.live.decide(key, number, when, allowed=True))
            if key != sent:
                self._note_sent(found[-1], sent)
        return found

    def _note_sent(self, where: int, sent: bytes) -> None:
        _, destination, _, _, port = parts_of(sent)
        self.live.note_sent(where, destination, port)
