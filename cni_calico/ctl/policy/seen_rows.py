"""How often what a change decides otherwise has been used, by recorded flows.

Rule: a flow counts for a line if both of its ends are among the line's, and it is decided as the line says, before and
after. What cannot be judged is counted, and never as unseen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cni_calico.ctl.policy.changed_rows import UNNAMED, ChangedRow
from cni_calico.ctl.policy.flow_ends import (
    NO_FLOW,
    FlowEnds,
    ReplayedEnd,
    SeenConnections,
    Uncertain,
    has_labels_of_now,
    parse_point,
)
from cni_calico.ctl.policy.networks_around import NetworksAround
from cni_calico.ctl.policy.recorded_workloads import PresentWorkloads
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.policy.told_labels import ToldLabels
from cni_calico.errors import InvalidConfig
from cni_calico.policy.judge.cells import AskedEachTime, JudgedPacket, plane_of
from cni_calico.policy.judge.outside import OutsidePart
from cni_calico.policy.judge.worlds import ComparedEnd, WorldPair
from cni_calico.policy.wanted import Direction, Packed

_SIDES: tuple[Direction, ...] = ("egress", "ingress")
_BothJudged = tuple[JudgedPacket | None, JudgedPacket | None]


class SeenRows:
    """``add`` each flow, then ``seen`` of a line. ``uncertain``: connections that could not be judged; ``of_now``: of
    the others those that do not tell the labels of an end. A flow counts
    for the workloads of now that have the labels which it tells (``told``), by name only if it tells none.
    """

    def __init__(self, records: PolicyRecords, worlds: WorldPair, rows: Sequence[ChangedRow], told: ToldLabels) -> None:
        self.uncertain = self.of_now = 0
        self._worlds, self._rows = worlds, rows
        keys = worlds.before.endpoints.keys() & worlds.after.endpoints.keys()
        addresses = {key: worlds.after.endpoints[key].addresses for key in keys}
        endpoints = records.endpoints
        labels = {key: tuple(sorted(endpoints[key].metadata.labels.items())) for key in keys & endpoints.keys()}
        present = PresentWorkloads(endpoints, addresses, told)
        self._ends = FlowEnds(endpoints, addresses, lambda key: labels.get(key, ()), present)
        ends = (end for its in worlds.everybody.values() for end in its)
        parts = [end for end in ends if isinstance(end, OutsidePart)]
        self._parts = NetworksAround((one.around or (bytes(len(one.example)), 0), one) for one in parts)
        self._outside: dict[Packed, OutsidePart | None] = {}
        self._lines: dict[tuple[Direction, _BothJudged], list[int]] = {}
        for number, row in enumerate(rows):
            if row.reach is None:
                self._lines.setdefault((row.direction, (row.before, row.after)), []).append(number)
        self._seen: dict[int, SeenConnections] = {}

    def seen(self, row: ChangedRow) -> SeenConnections | None:
        """None: by nobody."""
        return self._seen.get(id(row))

    def add(self, flow: Mapping[str, Any]) -> None:
        """A document of ``calicoctl flows``. Raises InvalidConfig."""
        try:
            count, last, reporter = int(flow.get("connections", 1)), str(flow["last"]), str(flow.get("reporter"))
            try:
                source, destination = self._ends.find(flow["source"]), self._ends.find(flow["destination"])
                protocol, first, second = parse_point(flow, len(source.address))
                found = [
                    number
                    for direction in _SIDES
                    for number in self._of(direction, source, destination, protocol, first, second)
                ]
            except Uncertain:
                self.uncertain += count
                return
        except NO_FLOW as e:
            raise InvalidConfig(f"cannot count: a line is no flow as 'calicoctl flows' writes it: {e!r}") from e
        if found and any(map(has_labels_of_now, (flow["source"], flow["destination"]), (source, destination))):
            self.of_now += count
        for number in found:
            self._seen.setdefault(id(self._rows[number]), SeenConnections()).add(reporter, count, last)

    def _of(
        self,
        direction: Direction,
        source: ReplayedEnd,
        destination: ReplayedEnd,
        protocol: int,
        first: int,
        second: int,
    ) -> list[int]:
        """The lines that the flow is one of. Raises Uncertain."""
        own = destination if direction == "ingress" else source
        if own.key is None:
            return []
        judged: list[JudgedPacket | None] = []
        for judge in self._worlds.judges:
            cell = judge.cell(judge.of_workload(own.key, direction), source.address, destination.address, protocol)
            if second >= 0:
                judged.append(cell.find(first, second))
                continue
            if isinstance(cell, AskedEachTime):
                raise Uncertain("the source port decides")
            answers = {one for _, one in cell.across(first, plane_of(protocol, 4 if len(source.address) == 4 else 6))}
            if len(answers) > 1:
                raise Uncertain("the source port decides")
            judged += answers
        lines = self._lines.get((direction, (judged[0], judged[1])), ())
        ends = self._end(source), self._end(destination)
        within = [
            number
            for number in lines
            if ends[0] in self._rows[number].sources and ends[1] in self._rows[number].destinations
        ]
        named = [number for number in within if _names(self._rows[number], protocol, first)]
        return named or [number for number in within if self._rows[number].traffic.startswith(UNNAMED)]

    def _end(self, end: ReplayedEnd) -> ComparedEnd | None:
        if end.key is not None:
            return end.key
        known = self._outside.get(end.address)
        if known is None:
            known = self._outside[end.address] = self._part_of(end.address)
        return known

    def _part_of(self, address: Packed) -> OutsidePart | None:
        """The smallest network that is named and has the address; else what is in none."""
        return next(self._parts.of(address), None)


def _names(row: ChangedRow, protocol: int, first: int) -> bool:
    return any(of == protocol and one.firsts[0] <= first <= one.firsts[1] for of, one in row.pieces)
