"""What staged policies would do to connections, by the rules that the agent says there would be.

Rule: it is judged when somebody asks, by the rules of now and as they would be, and counted when the kernel reports.
What cannot be judged (an end that is another one by now, source ports that are not known) is unknown, never unchanged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from cni_calico.flows.deciders import END, FIRST, Decider, describe_decider
from cni_calico.flows.judging.agreement import point_of
from cni_calico.flows.judging.allowance import Allowance
from cni_calico.flows.judging.computed import deciding_policy
from cni_calico.flows.judging.encoding import BEGIN, AgentMessage, StagedName
from cni_calico.flows.judging.host_sides import HostSides, JudgedConnection, NotJudged, SideJudged
from cni_calico.flows.judging.known import AskedWorkload, KnownRules
from cni_calico.flows.names import FOLDED, EndName
from cni_calico.flows.packets import parts_of
from cni_calico.flows.query import ALLOWED, DENIED, UNKNOWN
from cni_calico.flows.records import COUNTED, ENDED, FlowRecord
from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.cells import JudgedPacket, Passed
from cni_calico.policy.judge.staged import JudgedByTiers, StagedResult, is_denied, staged_results
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.wanted import PolicyId, WantedTier

_REMEMBERED, _SAME_S = 20_000, 1.0
MOST_COUNTED, OTHERS = 500, "other"  # policies with a count of their own
_DIRECTIONS = (False, True)  # ingress
CountedResult = tuple[str, StagedResult]
"""A policy, as it is counted, and what it would do."""


def never_moves(address: bytes, name: EndName) -> bool:
    return False


class StagedFlows:
    """``receive`` what is about staged policies. ``has_moved``: whether an address of this node is not that end's any
    more. ``counts``: reports, by policy and result; ``uncounted``: those that there was no time for, or that cannot be
    judged. ``hosts``: judges host endpoints.
    """

    def __init__(
        self,
        enforced: KnownRules,
        allowance: Allowance,
        has_moved: Callable[[bytes, EndName], bool] = never_moves,
        hosts: HostSides | None = None,
    ) -> None:
        self._enforced, self._would, self._has_moved, self._allowance = enforced, KnownRules(), has_moved, allowance
        self._clock = allowance.clock
        self._hosts, self._recent = hosts, dict[tuple[bytes, bool], float]()
        self._names: dict[PolicyId, StagedName] = {}
        self._counted: dict[tuple[bytes, bool], tuple[CountedResult, ...]] = {}
        self._version = -1, -1, 0.0
        self.counts: Counter[CountedResult] = Counter()
        self.uncounted = 0

    def receive(self, message: AgentMessage, now: float) -> None:
        if message.kind == BEGIN:
            self._names = {}
        self._names |= {one.policy: one for one in message.names}
        self._would.receive(message.kind, message.changes, now)

    def stop(self) -> None:
        self._would.ready = False

    @property
    def ready(self) -> bool:
        return self._would.ready and self._enforced.ready

    # -- counting -----------------------------------------------------------------------------------------------------

    def count(self, key: bytes, decider: Decider | None) -> tuple[CountedResult, ...] | None:
        """The kernel has reported a decision. ``key``: as in ``flows.packets``. Returns what was counted if that is the
        same for any source port, whenever it is reported, by the rules of now; else None.
        """
        if not self.ready:
            return ()
        if decider is None:
            return None
        version, hosts = (self._enforced.version, self._would.version, 0.0), False
        if self._hosts is not None and (self._enforced.hosts or self._would.hosts):
            version, hosts = (*version[:2], self._hosts.version), True
            if self._is_repeated(key, decider.ingress):
                return None
        if version != self._version:
            self._version = version
            self._counted.clear()
        alike = key[:-4] + key[-2:], decider.ingress
        known, lasts = self._counted.get(alike), True
        if known is None:
            if not self._allowance.is_left():
                self.uncounted += 1
                return None
            with self._allowance:
                try:
                    known, lasts = self._results(key, ingress=decider.ingress)
                except NotJudged:
                    self.uncounted += 1
                    return None
            if lasts:
                if len(self._counted) >= _REMEMBERED:
                    self._counted.clear()
                self._counted[alike] = known
        for result in known:
            self.counts[result] += 1
        return known if lasts and not hosts else None

    def _results(self, key: bytes, *, ingress: bool) -> tuple[tuple[CountedResult, ...], bool]:
        """(what is counted, whether it is the same for any source port)."""
        source, destination, protocol, *_ = parts_of(key)
        asked = source, destination, protocol
        was, would = (known.workload(*asked, ingress=ingress) for known in (self._enforced, self._would))
        point, sides, lasts = point_of(key), list[SideJudged](), True
        if was is not None and would is not None:
            before, after = (JudgedByTiers(one.cell.find(*point), one.tiers) for one in (was, would))
            sides.append(SideJudged(ingress, before, after))
            lasts = not (was.cell.asks_seconds or would.cell.asks_seconds)
        if self._hosts is not None:
            found, alike = self._hosts.find(self._enforced, self._would, JudgedConnection(*asked, *point, None, 0))
            sides += [side for side in found if side.ingress == ingress]
            lasts = lasts and alike
        results = (result for side in sides for result in staged_results(side.was, side.would, self._names))
        return tuple((self._counted_as(policy), result) for policy, result in results), lasts

    def _is_repeated(self, key: bytes, ingress: bool) -> bool:
        """Whether another rule has just reported the same direction: a host endpoint's, and then a workload's."""
        now, at = self._clock(), (key, ingress)
        before = self._recent.pop(at, None)
        if len(self._recent) >= _REMEMBERED:
            self._recent.clear()
        self._recent[at] = now
        return before is not None and now - before < _SAME_S

    def _counted_as(self, policy: PolicyId) -> str:
        label, known = self._label(policy), {name for name, _ in self.counts}
        return label if label in known or len(known) < MOST_COUNTED else OTHERS

    def _label(self, policy: PolicyId) -> str:
        one = self._names[policy]
        return f"{one.kind} {policy.namespace}/{one.name}" if policy.namespace else f"{one.kind} {one.name}"

    # -- describing ---------------------------------------------------------------------------------------------------

    def describe(
        self, record: FlowRecord, source: EndName | None, destination: EndName | None
    ) -> dict[str, Any] | None:
        """What would be decided about a connection, for its document; None if there are no staged policies, or the
        decision was no policies'. ``source``, ``destination``: the names of its ends.
        """
        if not self.ready or any(number < FIRST for number in record.numbers()):
            return None
        folded = any(end is not None and end.kind in FOLDED for end in (source, destination))
        sides = None if folded else self._sides(record, {False: source, True: destination})
        if sides is None:
            return {"verdict": UNKNOWN, "decided": []}
        if not sides:
            return None
        was, would = (
            next((DENIED for one in side if is_denied(one.judged)), ALLOWED)
            for side in ([one.was for one in sides], [one.would for one in sides])
        )
        decided = [self._describe(one) for one in sides if one.would.judged.decision is not None]
        if would == DENIED:
            decided = decided[: 1 + next(n for n, one in enumerate(decided) if one["action"] == "Deny")]
        policies = [
            {"policy": self._label(policy), "result": result.value}
            for one in sides
            for policy, result in staged_results(one.was, one.would, self._names)
        ]
        return {"verdict": would, "changes": was != would, "decided": decided, "policies": policies}

    def pending(self, record: FlowRecord, ingress: bool) -> tuple[Decider, list[dict[str, Any]]] | None:
        """What would decide about one side of it, and the steps before; None if that is not known. That is the
        workload's, or a host endpoint's that would deny it in the same direction.
        """
        if not self.ready:
            return None
        asked = self._would.workload(record.source, record.destination, record.protocol, ingress=ingress)
        if asked is None or asked.cell.asks_seconds:
            return None
        would = JudgedByTiers(asked.cell.find(*point_of(record.key)), asked.tiers)
        if self._hosts is not None and (ingress or not is_denied(would.judged)):
            try:
                sides = self._of_hosts(self._hosts, record)
            except NotJudged:
                return None
            would = next((one.would for one in sides if one.ingress == ingress and is_denied(one.would.judged)), would)
        judged = would.judged
        assert judged.decision is not None  # a workload's is always decided
        decider, _ = self._decider(judged.decision, would.tiers, ingress=ingress)
        return decider, [self._describe_pass(step) for step in judged.passed]

    def _sides(self, record: FlowRecord, names: dict[bool, EndName | None]) -> list[SideJudged] | None:
        """Of those ends that are workloads here, and of host endpoints, in the order in which they are asked; None if
        one of them cannot be judged.
        """
        try:
            of_hosts = [] if self._hosts is None else self._of_hosts(self._hosts, record)
        except NotJudged:
            return None
        found = [one for one in of_hosts if one.ingress]
        for ingress in _DIRECTIONS:
            name = names[ingress]
            address = record.destination if ingress else record.source
            if name is not None and self._has_moved(address, name):
                return None
            side = self._side(record, ingress=ingress)
            if side is None:
                continue
            if isinstance(side, str):
                return None
            found.append(side)
        found += [one for one in of_hosts if not one.ingress]
        return found or ([] if not any(names.values()) else None)

    def _of_hosts(self, hosts: HostSides, record: FlowRecord) -> list[SideJudged]:
        """Raises NotJudged."""
        asked: tuple[bytes | None, int] = (None, 0)
        if record.flags & (COUNTED | ENDED) and record.sport:  # sums have neither
            asked = record.asked, record.asked_port
        ends = record.source, record.destination, record.protocol
        return hosts.find(self._enforced, self._would, JudgedConnection(*ends, *point_of(record.key), *asked))[0]

    def _side(self, record: FlowRecord, *, ingress: bool) -> SideJudged | str | None:
        """None: no workload of this node; a text: why it is not known."""
        asked = record.source, record.destination, record.protocol
        was, would = (known.workload(*asked, ingress=ingress) for known in (self._enforced, self._would))
        if was is None or would is None:
            return None
        before, after = self._judge(was, record), self._judge(would, record)
        if before is None or after is None:
            return "the source port decides, and sums have none"
        return SideJudged(ingress, JudgedByTiers(before, was.tiers), JudgedByTiers(after, would.tiers))

    def _judge(self, asked: AskedWorkload, record: FlowRecord) -> JudgedPacket | None:
        if asked.cell.asks_seconds and record.protocol in WITH_PORTS and not record.sport:
            return None
        return asked.cell.find(*point_of(record.key))

    def _describe(self, one: SideJudged) -> dict[str, Any]:
        judged, tiers = one.would
        assert judged.decision is not None  # what decides nothing is left out
        decider, staged = self._decider(judged.decision, tiers, ingress=one.ingress)
        found = describe_decider(0, decider, denied=decider.action == "Deny")
        passed = [self._describe_pass(step) for step in judged.passed]
        before = "(policies: " if decider.index == END else ": "
        said = found["said"].replace(before, f"{before}staged ", 1) if staged else found["said"]
        return {**found, "staged": staged, "passed": passed, "said": said}

    def _decider(self, decision: Decision, tiers: tuple[WantedTier, ...], *, ingress: bool) -> tuple[Decider, bool]:
        policy, index = deciding_policy(decision, tiers), END if decision.rule is None else decision.rule
        if policy is None:
            return Decider("", "", "", decision.tier, ingress, index, decision.verdict), False
        name = self._names.get(policy)
        kind, shown = (policy.kind, policy.name) if name is None else (name.kind, name.name)
        decider = Decider(kind, policy.namespace, shown, decision.tier, ingress, index, decision.verdict)
        return decider, name is not None

    def _describe_pass(self, step: Passed) -> dict[str, Any]:
        name = None if step.policy is None else self._names.get(step.policy)
        found = describe_step(step)
        return (
            found if name is None else {**found, "kind": name.kind, "staged": True, "said": f"staged {found['said']}"}
        )

    def status(self) -> dict[str, Any]:
        """``staged``: of each policy what was counted; absent if there are none and were none."""
        if not self.counts and not self._names:
            return {}
        counted: dict[str, dict[str, int]] = {}
        for (policy, result), count in sorted(self.counts.items()):
            counted.setdefault(policy, {})[result.value] = count
        return {"staged": counted, "staged_policies": len(self._names), "staged_uncounted": self.uncounted}


def describe_step(step: Passed) -> dict[str, Any]:
    """A tier that passed on, for documents."""
    policy = step.policy
    if policy is None:
        return {"tier": step.tier, "endOfTier": True, "said": f"end of tier {step.tier} passes on"}
    path = f"{policy.namespace}/{policy.name}" if policy.namespace else policy.name
    named = {"kind": policy.kind, "namespace": policy.namespace, "name": policy.name, "rule": step.rule}
    return {"tier": step.tier, **named, "said": f"{path} rule {step.rule} passes on"}
