"""What a large change needs is put into the kernel ahead of it, in slices, between other namespaces' rounds.

Rule: nothing that is made ahead is led to by a packet's way, so a verdict is that of before until the round that takes
the change in, and that of after from then on. First a policy's text is decoded, then the sets that its rules name get
their members, then its chains are made part by part; that round has little left to do. What is made for a change that
never comes, because a newer version removes it, is removed. What a crash leaves behind nothing leads to, and the
next start removes it as it removes everything that is not wanted.
"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.nodeagent.dataplane.policy.goal import Goal
from cni_calico.nodeagent.policing.changes import FedRecord
from cni_calico.policy.graph import Graph
from cni_calico.policy.records import PolicyRecord

MOST_REMOVED = 100  # sets that a round removes


class MadeAhead:
    """For the engine's thread, with the rounds' own ``graph`` and ``goal``."""

    def __init__(self, graph: Graph, goal: Goal) -> None:
        self._graph, self._goal = graph, goal

    def steps(self, record: FedRecord) -> Iterator[bool]:
        """Make what ``record`` needs, a part at each step; True: go on only after a round."""
        if not isinstance(record, PolicyRecord) or not self._goal.chains.is_large(record.wanted):
            return
        making = self._graph.make_ahead(record)
        while True:
            try:
                next(making)
            except StopIteration as e:
                if not e.value:
                    return
                break
            yield False
        yield True  # the sets are in the goal then, and their members in the kernel with or before the rules
        for _ in self._goal.chains.stage(record.wanted):
            yield False
        yield True

    def end(self, record: FedRecord) -> None:
        """The change has been taken in, or never will be."""
        if isinstance(record, PolicyRecord):
            self._graph.let_go(record.id)
            self._goal.chains.unstage(record.id)
