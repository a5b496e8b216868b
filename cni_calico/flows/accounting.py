"""Compares what rules have counted with what they have reported, each minute or so: ``calico_flows_unaccounted_total``.

Rule: it costs at most a thousandth of a processor, however many rules there are, and what cannot be compared is said to
be unknown. What the kernel has dropped, and no later report tells of, is known from here: no loss waits for traffic.
Legacy iptables has no table of ours, and is not compared.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.flows.accounts import RuleAccounts, RuleCount, RulePath
from cni_calico.flows.arrivals import Arrivals
from cni_calico.flows.deciders import Decider
from cni_calico.flows.losses import ALLOWED, DENIED
from cni_calico.kernel.filter.nf_tables.reporting import read_reporting
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import Log
from cni_calico.netfilter.tables import POLICY, TableId

_EVERY_S, _SHARE, _READ_S = 60.0, 1000.0, 30.0
_ARRIVED_S = 0.2  # reports wait in the kernel for others, a quarter of that
_PARTS = 8  # datagrams of rules at once
_MOST_RULES = 20_000
MOST_POLICIES = 500
OTHERS = "other", ""


class RuleAccounting:
    """``go_on`` when everything that was reported has been read. ``decider_of``: what a number stands for, None if that
    is unknown; ``clock`` never steps; ``worked``: processor time.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        decider_of: Callable[[int], Decider | None],
        log: Log,
        clock: Callable[[], float],
        worked: Callable[[], float] = time.thread_time,
    ) -> None:
        self._arrivals, self._decider_of, self._log = arrivals, decider_of, log
        self._clock, self._worked = clock, worked
        self._accounts = RuleAccounts()
        self._rules: Nfnetlink | None = None
        self._steps: Iterator[None] | None = None
        self._next = clock()
        self._trouble = ""
        self._told = 0
        self._awaits_report = False
        self.readings = 0

    def close(self) -> None:
        self._steps = None
        if self._rules is not None:
            self._rules.close()
            self._rules = None

    def due_s(self) -> float:
        """How long ``go_on`` has nothing to do, unless something is reported."""
        if self._steps is not None:
            return float("inf") if self._awaits_report else 0.0
        return max(0.0, self._next - self._clock())

    def go_on(self) -> None:
        """A part of it."""
        if self._steps is None:
            if self._clock() < self._next:
                return
            self._steps = self._compare()
        begun = self._worked()
        try:
            if next(self._steps, self) is self:
                self._steps = None
        except CalicoError as e:
            self.close()
            self._note(str(e))
        self._next = max(self._next, self._clock() + _SHARE * (self._worked() - begun))

    def _compare(self) -> Iterator[None]:
        self._next = self._clock() + _EVERY_S
        reported, lost = self._arrivals.numbers.copy(), self._arrivals.unread()
        rules: dict[RulePath, RuleCount] = {}
        for _ in self._read(rules):
            yield
        if len(rules) > _MOST_RULES:
            self._note(f"more than {_MOST_RULES} rules report")
            return
        self._note("")
        self._accounts.receive(rules, reported, lost)
        self.readings += bool(rules)
        read = self._clock()
        while self._clock() < read + _ARRIVED_S:
            yield
        totals, came = self._arrivals.totals.copy(), self._arrivals.totals
        open_ones = {*self._accounts.suspects(self._arrivals.numbers)}
        while open_ones := {one for one in open_ones if came[one] == totals[one] and not self._is_lost(one)}:
            self._awaits_report = True
            yield  # a report that is numbered tells what was lost before it
        self._awaits_report = False
        self._accounts.settle(self._arrivals.unread())
        self._tell()

    def _is_lost(self, source: str) -> bool:
        """Whether what is missing was dropped by the kernel, or its numbers say that it was; then it is counted."""
        count = self._accounts.unexplained(source, self._arrivals.unread().get(source, 0))
        return not count or self._arrivals.assume_lost(source, count)

    def _read(self, rules: dict[RulePath, RuleCount]) -> Iterator[None]:
        self._rules = self._rules or Nfnetlink()
        allowed, denied = self._arrivals.groups
        sources, listened = {allowed: ALLOWED, denied: DENIED}, self._arrivals.unread()
        deadline = Deadline.after(_READ_S)
        for family in ("ip", "ip6"):
            for number, part in enumerate(read_reporting(self._rules, TableId(family, POLICY), deadline), 1):
                for rule in part:
                    source = sources.get(rule.group, "")
                    if source in listened:
                        rules[family, rule.handle] = RuleCount(source, rule.number, rule.packets)
                if not number % _PARTS:
                    yield
            yield

    def _note(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._log.warning(f"what rules have counted is not compared with flows: {trouble}")
        self._trouble = trouble

    def _tell(self) -> None:
        missing = self._accounts.missing
        if missing > self._told:
            self._log.warning(f"{missing} packets that rules have counted were neither recorded nor lost so far")
        self._told = missing

    @property
    def unaccounted(self) -> int | None:
        """Packets that rules have counted and that are neither recorded nor lost; None while nothing is known."""
        return self._accounts.missing if self.readings > 1 else None

    def denied_packets(self) -> list[tuple[str, str, int]]:
        """(kind, policy, packets) that its rules, or the ends of its tiers, have denied since this recorder began."""
        found = Counter[tuple[str, str]]()
        for number, count in self._accounts.grown.items():
            decider = self._decider_of(number)
            if count and decider is not None and decider.action == "Deny":
                policy = decider.kind, decider.path
                found[policy if policy in found or len(found) < MOST_POLICIES else OTHERS] += count
        return [(*policy, count) for policy, count in sorted(found.items())]
