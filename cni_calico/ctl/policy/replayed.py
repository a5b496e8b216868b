"""Recorded flows, judged by two states of policy.

Rule: a flow counts as changed or unchanged only if everything about it is known that its verdict needs; else it is
uncertain, with the reason. Labels are those that were recorded, in a second round for workloads that have others now;
network sets and services are those of now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from cni_calico.ctl.policy.at_hosts.facts import KnownHosts, read_host_facts
from cni_calico.ctl.policy.at_hosts.outcomes import PORTS
from cni_calico.ctl.policy.at_hosts.replayed import JudgedFlow, ReplayedHosts, ToldOfFlow, parse_told_of
from cni_calico.ctl.policy.changed_rows import PROTOCOL_NAMES, describe_decider
from cni_calico.ctl.policy.end_names import EndNames
from cni_calico.ctl.policy.flow_ends import (
    NO_FLOW,
    FlowEnds,
    NeedsWorkload,
    ReplayedEnd,
    SeenConnections,
    Uncertain,
    has_labels_of_now,
    parse_point,
)
from cni_calico.ctl.policy.proposed import ProposedChange
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.policy.told_labels import ToldLabels
from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.cells import AskedEachTime, Cell, plane_of
from cni_calico.policy.judge.workloads import WorkloadJudge
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.wanted import Direction, Wanted

_REMEMBERED = 100_000  # verdicts
_HOST = "decided by a host endpoint that is not known"
_NOBODY = JudgedFlow(False, None)


@dataclass(slots=True)
class ReplayedRow(SeenConnections):
    """Flows that change in one way."""

    source: str = field(kw_only=True)
    destination: str = field(kw_only=True)
    traffic: str = field(kw_only=True)
    before: JudgedFlow = field(kw_only=True)
    after: JudgedFlow = field(kw_only=True)


RowName = tuple[str, str, str, int, int]  # the ends, the traffic, and which verdicts


class Replay:
    """``add`` each flow, then ``finish``. ``changed``: what would be decided otherwise; ``drifted``: what is decided
    otherwise than was recorded, without any change; ``uncertain``: connections by reason; ``same``, ``others``:
    connections that nothing changes for, and those that no policy decided about; ``of_now``: that were judged by labels
    of now, because those of an end were not recorded. ``facts``: of host endpoints; None: only what the records say.
    ``told``: knows workloads as flows tell them; None: labels are those of now.
    """

    def __init__(
        self,
        records: PolicyRecords,
        before: Wanted,
        after: Wanted,
        facts: KnownHosts | None = None,
        told: ToldLabels | None = None,
    ) -> None:
        self.changed: dict[RowName, ReplayedRow] = {}
        self.drifted: dict[RowName, ReplayedRow] = {}
        self.uncertain: Counter[str] = Counter()
        self.same = self.others = self.of_now = 0
        self._names = EndNames(records)
        self._judges = WorkloadJudge(before), WorkloadJudge(after)
        judges = self._judges[0].judge, self._judges[1].judge
        known = facts or (read_host_facts(None, records, []) if before.hosts else None)
        self._hosts = None if known is None else ReplayedHosts(known, records, before, after, judges)
        self._keys = before.endpoints.keys() & after.endpoints.keys()
        self._addresses = {key: before.endpoints[key].addresses for key in self._keys}
        self._told = told
        there = {key: record for key, record in records.endpoints.items() if told is None or not told.has_made(key)}
        self._ends = FlowEnds(there, self._addresses, self._kind, told)
        self._known: dict[tuple[object, ...], tuple[JudgedFlow, JudgedFlow]] = {}
        self._verdicts: dict[JudgedFlow, JudgedFlow] = {}
        self._verdict_of: dict[int, tuple[Decision, JudgedFlow]] = {}  # by which object the decision is

    def add(self, flow: Mapping[str, Any]) -> None:
        """A document of ``calicoctl flows``. Raises InvalidConfig."""
        try:
            connections, last = int(flow.get("connections", 1)), str(flow["last"])
            decided, verdict = flow["decided"], str(flow["verdict"])
            ends = flow["source"], flow["destination"]
            reporter = str(flow.get("reporter"))
            if any("reason" in one for one in decided):
                self.others += connections
                return
            try:
                source, destination = self._find(ends)
                if source.key is None and destination.key is None and self._hosts is None:
                    raise Uncertain(_HOST)
                protocol, *point = parse_point(flow, len(source.address))
                told = None if self._hosts is None else parse_told_of(flow)
                was, now = self._judge(source, destination, (protocol, point[0], point[1]), told)
            except NeedsWorkload:
                self._leave(flow, connections)
                return
            except Uncertain as e:
                self.uncertain[str(e)] += connections
                return
        except NO_FLOW as e:
            raise InvalidConfig(f"cannot replay: a line is no flow as 'calicoctl flows' writes it: {e!r}") from e
        if has_labels_of_now(ends[0], source) or has_labels_of_now(ends[1], destination):
            self.of_now += connections
        if was.denied != (verdict == "denied"):
            recorded = self._verdict(None, denied=verdict == "denied")
            row = self._row(self.drifted, source, destination, protocol, point[0], recorded, was)
        elif was.denied != now.denied:
            row = self._row(self.changed, source, destination, protocol, point[0], was, now)
        else:
            self.same += connections
            return
        row.add(reporter, connections, last)

    def _leave(self, flow: Mapping[str, Any], connections: int) -> None:
        """To the second round."""
        assert self._told is not None
        try:
            self._told.keep(flow)
        except Uncertain as e:
            self.uncertain[str(e)] += connections

    def finish(self, change: ProposedChange) -> None:
        """The second round, of flows whose workloads the records have not as they were recorded."""
        told = self._told
        if told is None or not told.flows:
            return
        before, after = told.make(change)
        second = Replay(change.records, before, after, change.hosts, told)
        for flow in told.flows:
            second.add(flow)
        self.uncertain.update(second.uncertain)
        self.same += second.same
        self.of_now += second.of_now
        for mine, its in ((self.changed, second.changed), (self.drifted, second.drifted)):
            alike = {(row.source, row.destination, row.traffic, row.before, row.after): row for row in mine.values()}
            for name, row in its.items():
                known = alike.get((row.source, row.destination, row.traffic, row.before, row.after))
                if known is None:
                    mine[name] = row
                else:
                    known.join(row)

    def _row(
        self,
        rows: dict[RowName, ReplayedRow],
        source: ReplayedEnd,
        destination: ReplayedEnd,
        protocol: int,
        first: int,
        before: JudgedFlow,
        after: JudgedFlow,
    ) -> ReplayedRow:
        name = PROTOCOL_NAMES.get(protocol, str(protocol))
        traffic = f"{name}/{first}" if protocol in WITH_PORTS else name
        names = self._shown(source), self._shown(destination), traffic
        at = *names, id(before), id(after)
        found = rows.get(at)
        if found is None:
            found = rows[at] = ReplayedRow(
                source=names[0], destination=names[1], traffic=traffic, before=before, after=after
            )
        return found

    def _verdict(self, by: Decision | None, *, denied: bool) -> JudgedFlow:
        """Equal ones are the same object, which stays."""
        known = None if by is None else self._verdict_of.get(id(by))
        if known is not None:
            return known[1]
        found = self._same(JudgedFlow(denied, by))
        if by is not None:
            self._verdict_of[id(by)] = by, found
        return found

    def _same(self, made: JudgedFlow) -> JudgedFlow:
        return self._verdicts.setdefault(made, made)

    def _find(self, ends: Iterable[Mapping[str, Any]]) -> list[ReplayedEnd]:
        """Raises Uncertain; NeedsWorkload, after both were asked for."""
        found, missing = list[ReplayedEnd](), None
        for end in ends:
            try:
                found.append(self._ends.find(end))
            except NeedsWorkload as e:
                missing = e
        if missing is not None:
            raise missing
        return found

    def _shown(self, end: ReplayedEnd) -> str:
        return str(ip_address(end.address)) if end.key is None else self._names.group_of(end.key)

    # -- ends ---------------------------------------------------------------------------------------------------------

    def _kind(self, key: ResourceKey) -> tuple[object, ...]:
        found: list[object] = []
        for judge in (one.judge for one in self._judges):
            found += [judge.of_workload(key, "ingress")[0], *(judge.classes.of(one) for one in self._addresses[key])]
        return tuple(found)

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def _judge(
        self, source: ReplayedEnd, destination: ReplayedEnd, point: tuple[int, int, int], told: ToldOfFlow | None
    ) -> tuple[JudgedFlow, JudgedFlow]:
        """``point``: protocol, first and second number. Raises Uncertain."""
        at = source.token, destination.token, point, told
        known = self._known.get(at)
        if known is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            known = self._by(0, source, destination, *point), self._by(1, source, destination, *point)
            if self._hosts is not None and told is not None:
                was, now = self._hosts.judge(told, (source, destination), point, known)
                known = self._same(was), self._same(now)
            self._known[at] = known
        return known

    def _by(
        self, which: int, source: ReplayedEnd, destination: ReplayedEnd, protocol: int, first: int, second: int
    ) -> JudgedFlow:
        judge, by = self._judges[which], None
        if source.key is None and destination.key is None:
            return _NOBODY
        sides: tuple[tuple[Direction, ReplayedEnd], ...] = (("egress", source), ("ingress", destination))
        for direction, own in sides:
            if own.key is None:
                continue
            cell = judge.cell(own.key, direction, source.address, destination.address, protocol)
            if second >= 0 or not cell.asks_seconds:
                by = cell.find(first, second).decision
                assert by is not None
            else:
                by = _whatever_the_second(cell, first, protocol, 4 if len(source.address) == 4 else 6)
            if by.verdict == "Deny":
                return self._verdict(by, denied=True)
        return self._verdict(by, denied=False)


def _whatever_the_second(cell: Cell | AskedEachTime, first: int, protocol: int, family: int) -> Decision:
    """Raises Uncertain if the second number decides."""
    if isinstance(cell, AskedEachTime):
        raise Uncertain(PORTS)
    answers = [judged for _, judged in cell.across(first, plane_of(protocol, family))]
    decisions = [one.decision for one in answers if one.decision is not None]
    if len({one.verdict for one in decisions}) > 1:
        raise Uncertain(PORTS)
    return decisions[0]


def describe_judged(judged: JudgedFlow) -> str:
    verdict = "DENIED" if judged.denied else "allowed"
    found = verdict if judged.by is None else f"{verdict} {describe_decider(judged.by)}"
    return f"{found}, at {judged.at}" if judged.at else found
