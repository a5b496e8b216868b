"""What the rules report of the packets that they drop, once recording is on: each once, with what dropped it.

Rule: the reports are the kernel's, and the names those of the engine's own file of numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager

from cni_calico.deadline import Deadline
from cni_calico.flows.deciders import DENIED_GROUP, FIRST, REASONS
from cni_calico.flows.names import Deciders
from cni_calico.flows.recorder import DIRECTORY
from cni_calico.kernel.netlink.decisions import DecisionReports
from tests.deadlines import until
from tests.netns.policing.lab import Lab
from tests.netns.wire import entered

RECORDED = {"FELIX_FLOWS": "Enabled"}


class ReportedDenials:
    def __init__(self, lab: Lab, reports: DecisionReports) -> None:
        self._deciders = Deciders(f"{lab.root}/state/{DIRECTORY}")
        self._reports = reports
        self._found = Counter[str]()

    def _take(self) -> Counter[str]:
        for number, _ in self._reports.take(10_000):
            decider = self._deciders.get(number)
            reason = REASONS[number] if number < FIRST else decider.sentence() if decider else f"{number:#x}"
            self._found[reason] += 1
        return self._found

    def check(self, *reasons: str) -> None:
        """One of each since the last time; what else comes later is found the next time."""
        wanted = Counter(reasons)
        until(lambda: self._take().total() >= wanted.total(), f"reports of {wanted}")
        assert self._found == wanted
        self._found = Counter()


@contextmanager
def denials_of(lab: Lab) -> Iterator[ReportedDenials]:
    """Of the engine that runs with RECORDED."""
    with entered(lab.host):
        reports = DecisionReports(DENIED_GROUP, 1 << 20, Deadline.after(10))
    with closing(reports):
        yield ReportedDenials(lab, reports)
