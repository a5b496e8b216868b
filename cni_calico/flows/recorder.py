"""The process that records flows (``calico-node -flow-recorder``): reads what rules report, pairs, keeps, serves.

Rule: enforcement never waits for it and does not notice when it is stopped or killed: the kernel drops what it does not
read, and numbers it, so the loss is known exactly. What it has to know is in files: the agent's numbers of rules and
names of addresses.

Files, all in ``<state>/flows/``: ring (connections), flows.db (their sums), names (of their ends), losses, numbers (the
agent's).
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.accounting import RuleAccounting
from cni_calico.flows.aggregates import MOST_BYTES, MOST_DENIED_BYTES, FlowAggregates
from cni_calico.flows.aggregates import NAME as SUMS
from cni_calico.flows.arrivals import Arrivals
from cni_calico.flows.clock_steps import ClockSteps
from cni_calico.flows.comparison import Comparison
from cni_calico.flows.counted import CountedRecords
from cni_calico.flows.deciders import Decider
from cni_calico.flows.elsewhere import EndsElsewhere
from cni_calico.flows.export.wanted import EXPORT
from cni_calico.flows.given_names import GivenName, GivenNames
from cni_calico.flows.groups import read_pair, write_pair
from cni_calico.flows.judging.unjudged import UnjudgedFlows
from cni_calico.flows.labels import LabelVersions
from cni_calico.flows.limits import AppliedLimits
from cni_calico.flows.live import LiveFlows
from cni_calico.flows.losses import ALLOWED, AWAY, Loss, Losses
from cni_calico.flows.names import FOLDED_SET, Deciders, EndName, Names
from cni_calico.flows.query import ONLY_DENIED, Describer, FlowQuery
from cni_calico.flows.records import FlowRecord
from cni_calico.flows.ring import Ring
from cni_calico.flows.selection import Selection
from cni_calico.flows.serving import FlowServer
from cni_calico.flows.sums import BUCKET_S, BUCKET_US, record_of
from cni_calico.flows.together import TakenTogether
from cni_calico.flows.totals import FlowTotals
from cni_calico.flows.tracking import ConnectionTracking
from cni_calico.flows.untranslated import UntranslatedDecisions
from cni_calico.log import Log

if TYPE_CHECKING:
    from cni_calico.flows.export.exporter import Exporter
    from cni_calico.flows.judging.judged import JudgedFlows

DIRECTORY = "flows"
RING_BYTES, DENIED_RING_BYTES = 64 << 20, 8 << 20
_SLEEP_S, _FOLLOWED_S, _IDLE_S, _REST_S, _ROUNDS = 0.2, 0.02, 0.25, 20.0, 200
_CALM_S, _CALM, _FEW = 0.4, 4_000, 30_000  # while no more has come at once, and no more can end at once
_TOUCH_S = 5.0


class Recorder:
    """In the network namespace of the calling thread. ``now`` is wall-clock time, ``clock`` never steps. Raises
    KernelError (EPERM, EBUSY: other programs listen to all of our groups), OSError.
    """

    def __init__(
        self,
        state_dir: str,
        run_dir: str,
        log: Log,
        ring_bytes: int = RING_BYTES,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        agent_fd: int | None = None,
        *,
        allowed: bool = True,
    ) -> None:
        """``agent_fd``: where the agent tells which rules are in force; None: nothing is judged. ``allowed``: also what
        is let through, not only what is denied.
        """
        self._clock, self._next_touch = ClockSteps(now, clock), 0.0
        self._run_dir, self._log = run_dir, log
        self._exporter: Exporter | None = None
        directory = f"{state_dir}/{DIRECTORY}"
        self._elsewhere = EndsElsewhere(run_dir, now)
        self._elsewhere.look()
        self._deciders = Deciders(directory)
        self._names = Names(directory, run_dir, now, self._elsewhere.get)
        self.losses = Losses(directory)
        with ExitStack() as opened:
            self._ring = opened.enter_context(closing(Ring(f"{directory}/ring", ring_bytes)))
            self._aggregates = FlowAggregates(
                *(f"{directory}/{SUMS}", self._names.get, log, now(), MOST_BYTES if allowed else MOST_DENIED_BYTES),
                within=self._set_number,
                labels_of=self._labels_told,
            )
            opened.callback(lambda: self._aggregates.close(self._clock.now()))
            self._records = CountedRecords(self._ring, self._aggregates.sums)
            live = LiveFlows(self._records, self._deciders.get, self._names.number_of)
            self._deciding = UntranslatedDecisions(live, self._deciders.get)
            self._tracking = ConnectionTracking(log, count=allowed)
            asked = read_pair(run_dir)
            self._arrivals = opened.enter_context(closing(Arrivals(clock, asked, allowed=allowed)))
            if self._arrivals.pair != asked:
                write_pair(run_dir, self._arrivals.pair)
            self._names.limited = AppliedLimits(lambda: self._names.limits, self._arrivals.limit, live.limit)
            self._comparison = opened.enter_context(closing(Comparison(live, log, clock))) if allowed else None
            accounting = RuleAccounting(self._arrivals, self._deciders.get, log, clock)
            self._accounting = opened.enter_context(closing(accounting))
            self._judged = UnjudgedFlows() if agent_fd is None else self._judging(agent_fd, clock)
            self._together = TakenTogether(self._deciding, self._records, self._judged.reports, self._names)
            self._server = opened.enter_context(closing(FlowServer(f"{run_dir}/{FLOW_SOCKET}", self, clock)))
            for descriptor in (*self._arrivals.descriptors(), *(() if agent_fd is None else (agent_fd,))):
                self._server.wake_for(descriptor)
            self._opened = opened.pop_all()
        self._deciding.live.note_all_read(self._micros())
        self._note_absence()
        if allowed:
            self._deciding.live.resume(self._ring.newest_first())

    def wake_for(self, descriptor: int) -> None:
        """What can be read there ends a ``step`` that waits."""
        self._server.wake_for(descriptor)

    def close(self) -> None:
        self.losses.flush()
        self._deciding.release(all_of_them=True)
        self._records.settle()
        if self._exporter is not None:
            self._exporter.close()
        self._opened.close()

    def step(self) -> None:
        """Wait a moment, serving readers; then take in what has arrived. A moment lets reports gather, a longer one
        while there is room for all that may come; where nothing has arrived lately, until something does.
        """
        came = bool(self._arrivals.came) or self._server.wait_for_anything(self._pause_s())
        self._look()  # whoever asks now hears the names of now
        calm = self._arrivals.came < _CALM and len(self._deciding.live) < _FEW
        gather_s = _FOLLOWED_S if self._server.followed else _CALM_S if calm else _SLEEP_S
        if came or not self._rests:
            self._server.wait(gather_s)
            self._look()
        self._judged.receive()
        new: dict[int, None] = {}
        self._arrivals.came = 0
        if set_by_s := self._clock.take_step():
            self._log.info(f"the clock was set by {set_by_s:+.0f} s")
            self._deciding.note_step(self._micros())
        for _ in range(_ROUNDS):
            if not self._take(new):
                if not self._arrivals.is_behind:
                    self._deciding.live.note_all_read(self._micros())
                    self._accounting.go_on()
                break
            self._server.wait(0)
        if self._comparison is not None:
            self._comparison.go_on(self._arrivals.overrun, self._arrivals.lost().get(ALLOWED, 0), self._micros)
        now = self._clock.now()
        new |= dict.fromkeys(self._deciding.tidy(self._micros()))
        self._records.settle()
        self._ring.flush()
        self._aggregates.keep(self._names.kept_s)
        self._aggregates.flush(now)
        if now >= self._next_touch:
            self._next_touch = now + _TOUCH_S
            self._ring.touch()
            self._tracking.look()
            if strange := self._arrivals.describe_strange():
                self._log.warning(strange)
            self._begin_export()
        if self._exporter is not None:
            self._go_on_exporting(self._exporter)
        for loss in self._arrivals.new_losses(now):
            self.losses.add(loss)
        self.losses.flush(now)
        self._judged.settle()
        self._tell_new(new)

    @property
    def _rests(self) -> bool:
        return self._comparison is None and bool(self._judged.refusal)

    def _pause_s(self) -> float:
        """While nothing arrives; long where only what is denied is recorded, and nothing is due."""
        if not self._rests or len(self._server) or self._deciding.holds_any or self.losses.wait or self._exporter:
            return _IDLE_S
        return max(_IDLE_S, min(_REST_S, self._accounting.due_s(), self._aggregates.due_s(self._clock.now())))

    def _look(self) -> None:
        """What the agent says of names."""
        self._names.look()
        if self._elsewhere.look():
            self._names.look_elsewhere_again()

    def _take(self, new: dict[int, None]) -> bool:
        """Returns whether there may be more at once. Decisions come before the ends of what they are about. ``new`` is
        what those who follow are told: a connection, and once more if its other side denies it later.
        """
        decisions, ended, more = self._arrivals.take()
        now, live = self._micros(), self._deciding.live
        self._judged.note_late((now - live.all_read) / 1e6)
        live.all_read = max(live.all_read, now - int(self._arrivals.behind_s() * 1e6))
        self._together.receive(decisions, ended, now, new if self._server.followed else None)
        return more

    def _tell_new(self, new: Mapping[int, None]) -> None:
        if not new or not self._server.followed:
            return
        describer = self._describer(steps=True)
        for where in new:
            if (record := self._ring.read(where)) is not None:
                self._server.tell(describer.describe(record))

    def _judging(self, agent_fd: int, clock: Callable[[], float]) -> JudgedFlows:
        """What it needs is loaded only where the agent tells which rules are in force."""
        from cni_calico.flows.judging.host_sides import HostSides
        from cni_calico.flows.judging.judged import JudgedFlows
        from cni_calico.kernel.ways import KernelWays

        hosts = HostSides(KernelWays(clock), lambda: self._names.hosts)
        return JudgedFlows(agent_fd, self._deciders.get, self._log, clock, self._names.has_moved, hosts)

    def _begin_export(self) -> None:
        """If the agent says that flows are exported; gRPC is loaded only then."""
        if self._exporter is not None or not os.path.exists(f"{self._run_dir}/{EXPORT}"):
            return
        from cni_calico.flows.export.exporter import Exporter

        judged, names = self._judged, self._names
        find = self._deciders.get, names.get, judged.passed_by, names.is_here, self._elsewhere.find
        rest = judged.staged.pending, self._elsewhere.network_sets.find, self._log, self._clock.now, self._clock.clock
        services = self._elsewhere.services.find
        self._exporter = Exporter(self._run_dir, lambda: self._ring.oldest, *find, *rest, service_of=services)
        self._records.also = self._exporter.note

    def _go_on_exporting(self, exporter: Exporter) -> None:
        exporter.look()
        if not exporter.wanted:
            self._records.also = self._exporter = None
            exporter.close()

    def _micros(self) -> int:
        return int(self._clock.now() * 1e6)

    def _note_absence(self) -> None:
        """From when to when there was no recorder, if there was one before."""
        if self._ring.alive:
            self.losses.add(Loss(self._ring.alive, self._clock.now(), ALLOWED, AWAY, None))
            self.losses.flush()  # now: this one may be killed as well

    # -- what is served ---------------------------------------------------------------------------------------------

    def _describer(self, *, steps: bool, names: Sequence[GivenName] = (), staged: bool = False) -> Describer:
        given = GivenNames(names).get if names else None
        describer = Describer(
            *(self._names.node, self._deciders.get, self._names.get),
            given=given,
            labels_of=self._aggregates.labels_of,
            computed_by=self._computed,
            set_of=sets.find if (sets := self._elsewhere.network_sets) else None,
            service_of=self._elsewhere.services.find,
        )
        if steps or staged:
            describer = replace(describer, staged_by=self._judged.staged.describe)
        return replace(describer, passed_by=self._judged.passed_by) if steps else describer

    def _computed(self, record: FlowRecord, number: int) -> Decider | None:
        return self._judged.compute(record, number, self._names.get)

    def _set_number(self, address: bytes, other: int) -> int:
        """Of the network set in which an address is, for who has a name of that number; 0 for none."""
        end = self._names.get(other)
        found = self._elsewhere.network_sets.find(address, "" if end is None else end.namespace)
        return 0 if found is None else self._names.number_for(EndName(FOLDED_SET, found.namespace, found.name))

    def refusal(self, request: FlowQuery) -> str:
        return self._judged.refusal if request.asks_staged else ""

    def _labels_told(self, name: EndName) -> LabelVersions:
        return self._names.labels_of(name) or self._elsewhere.labels_of(name)

    def documents(self, request: FlowQuery) -> Iterator[dict[str, Any]]:
        """What meets the request, the oldest first; an empty one from time to time, so that others have their turn."""
        if request.follow and request.last is None and request.since is None:
            return
        describer = self._describer(steps=request.steps, names=request.names, staged=request.asks_staged)
        ring = self._ring
        if request.aggregate and request.last is None:
            yield from self._totals(request, describer)
            return
        if request.last is None:
            left = ring.count if request.first is None else request.first
            for piece in self._selected(request, describer, newest_first=False):
                yield from (describer.describe(record) for _, record in piece[:left])
                left -= len(piece)
                if left <= 0:
                    return
                yield {}
            return
        numbers = array("Q")
        for piece in self._selected(request, describer, newest_first=True):
            numbers.extend(number for number, _ in piece[: request.last - len(numbers)])
            if len(numbers) >= request.last:
                break
            yield {}
        for number in reversed(numbers):
            record = ring.read(number)
            yield {} if record is None else describer.describe(record)  # it may have been overwritten meanwhile

    def _selected(
        self, request: FlowQuery, describer: Describer, *, newest_first: bool
    ) -> Iterator[list[tuple[int, FlowRecord]]]:
        selection = Selection(request.conditions, describer)
        since, until = int(max(0.0, request.since or 0.0) * 1e6), request.until
        before = None if until is None else until * 1e6
        for piece in self._ring.pieces(newest_first=newest_first, since=since):
            yield [one for one in piece if (before is None or one[1].began <= before) and selection.has(one[1])]

    def _totals(self, request: FlowQuery, describer: Describer) -> Iterator[dict[str, Any]]:
        """Of the sums, as far as they are older than the ring, and of the ring."""
        totals, until = FlowTotals(self._aggregates.labels_of), request.until
        first = int(max(0.0, request.since or 0.0) // BUCKET_S)
        complete = self._complete_since() if self._aggregates.is_readable else first
        if first < complete:
            end = complete if until is None else min(complete, int(max(0.0, until) // BUCKET_S) + 1)
            for part in self._aggregates.read(first, end):
                names: list[EndName | None] = []
                there = replace(describer, name_of=names.__getitem__)
                selection = Selection(request.conditions, there)
                for key, source, destination, counts in part:
                    names += (source, destination)
                    known = key._replace(source_end=len(names) - 2, destination_end=len(names) - 1)
                    if key.is_rest or selection.has(record_of(known, counts)):
                        totals.add(key, source, destination, counts)
                yield {}
        for piece in self._selected(request, describer, newest_first=False):
            for _, record in piece:
                if first >= complete or record.began // BUCKET_US >= complete:
                    totals.add_record(record, describer.name_of)
            yield {}
        yield from totals.documents(describer)

    def _complete_since(self) -> int:
        """The first five minutes (bucket) of which the ring has everything: what it has forgotten was appended before
        its oldest records were last seen.
        """
        seen = [record.last for piece in islice(self._ring.pieces(newest_first=False), 1) for _, record in piece]
        return min(seen, default=self._micros()) // BUCKET_US + 1

    def status(self) -> dict[str, Any]:
        live, ring, usage = self._deciding.live, self._ring, os.times()
        return {
            "allowed": live.allowed,
            "denied": live.denied,
            "live": len(live),
            "unfollowed": live.dropped,
            "unknown": live.unknown,
            "reports": self._arrivals.recorded(),
            "lost": self._arrivals.lost(),
            "losses": [(*what, count) for what, count in self.losses.counts.items()],
            "malformed": self._arrivals.strange,
            "slow": self._arrivals.slow,
            "readers": len(self._server),
            "services": len(self._elsewhere.services),
            "oldest": self._oldest(),
            "counted": self._tracking.counted and not self._tracking.trouble,
            "without_room": self._tracking.without_room(),
            "unaccounted": self._accounting.unaccounted,
            "denied_packets": self._accounting.denied_packets(),
            **self._judged.status(),
            "cpu_seconds": round(usage.user + usage.system, 3),
            **({} if self._exporter is None else {"export": self._exporter.status()}),
            "store_bytes": self._aggregates.size,
            "oldest_sums": self._aggregates.oldest,
            "uncounted": self._aggregates.lost,
            "groups": self._arrivals.groups,
            "troubles": [one.trouble for one in (ring, self._names, self._aggregates, self._tracking) if one.trouble],
        }

    def _oldest(self) -> float | None:
        """When the oldest connection of the ring was last seen, in seconds since 1970; None if there is none."""
        record = self._ring.read(self._ring.oldest)
        return None if record is None else record.last / 1e6

    def ending(self, since: float | None, until: float | None) -> dict[str, Any]:
        lost = [
            {"from": one.begin, "to": one.end, "source": one.source, "why": one.why, "count": one.count}
            for one in self.losses.between(since, until)
        ]
        return {
            "end": True,
            "node": self._names.node,
            "lost": lost,
            "kept": {"flows": self._oldest(), "sums": self._aggregates.oldest},
            **({ONLY_DENIED: [self._names.node]} if self._comparison is None else {}),
        }
