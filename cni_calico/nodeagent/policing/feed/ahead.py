"""What a large change needs is put into the kernel ahead of it, in slices, between other namespaces' rounds.

Rule: nothing that is made ahead is led to by a packet's way, so a verdict is that of before until the round that takes
the change in, and that of after from then on. First a policy's text is decoded, then the sets that its rules name get
their members, then its chains are made part by part; that round has little left to do. The members of a large network
set come and go in portions: each address counts as before until its portion, and as after from then on. (Where it goes
itself, or gets other labels, its sets do that by themselves: policy/moving.py.)

What is made for a change that never comes, because a newer version removes it, is removed. What a crash leaves behind
nothing leads to, and the next start removes it as it removes everything that is not wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.changes import FedRecord
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.parts import SEARCHED
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.policy.graph import Graph
from cni_calico.policy.records import Labelled, PolicyRecord
from cni_calico.policy.sets import NETWORK_SETS

MOST_REMOVED = 100  # sets that a round removes
FEWEST_SETS = 10  # that a round makes, however many there are
PORTION = 4000  # members of sets that come and go in one round
MOST_PORTIONS = 1000  # of one change: each looks at the whole set


class MadeAhead:
    """For the engine's thread, with the rounds' own ``graph`` and ``goal``."""

    def __init__(self, graph: Graph, goal: Goal) -> None:
        self._graph, self._goal = graph, goal

    def steps(self, key: ResourceKey, record: FedRecord) -> Iterator[bool]:
        """Make what ``record`` needs, a part at each step; True: go on only after a round."""
        if isinstance(record, Labelled) and key.kind in NETWORK_SETS:
            yield from self._exchange_members(key, record)
        if not isinstance(record, PolicyRecord) or not self._goal.chains.is_large(record.wanted):
            return
        making, steps = self._graph.make_ahead(record), 0
        while True:
            try:
                next(making)
            except StopIteration as e:
                if not e.value:
                    return
                break
            steps += 1  # a set at most
            is_enough = steps >= self._most_sets()
            yield is_enough
            steps = 0 if is_enough else steps
        yield True  # the sets are in the goal then, and their members in the kernel with or before the rules
        for _ in self._goal.chains.stage(record.wanted):
            yield True  # to write a part takes twice as long as a slice

    def _most_sets(self) -> int:
        """How many sets a round may make: for each the kernel searches all that there are."""
        return max(FEWEST_SETS, SEARCHED // max(1, len(self._goal.tables.of[FILTER[4]].sets)))

    def _exchange_members(self, key: ResourceKey, wanted: Labelled) -> Iterator[bool]:
        """Members come and go in portions: what is not changed yet counts as before."""
        held = self._graph.last_valid(key)
        before = held if isinstance(held, Labelled) else replace(wanted, addresses=(), nets=())
        if (before.labels, before.profiles) != (wanted.labels, wanted.profiles):
            return
        members = {*before.addresses, *before.nets}
        added = [one for one in (*wanted.addresses, *wanted.nets) if one not in members]
        gone = list(members.difference(wanted.addresses, wanted.nets))
        matches = self._graph.count_matches(key, wanted)
        if key.namespace and not self._graph.admits_members(len(added) * (1 + matches)):
            return  # it will wait; what belongs to no namespace never does
        portion = max(1, PORTION // max(1, matches), (len(added) + len(gone)) // MOST_PORTIONS)
        while len(added) + len(gone) > portion:
            members.difference_update(gone[-portion:])
            members.update(added[-portion:])
            del gone[-portion:], added[-portion:]
            addresses = tuple(one for one in members if isinstance(one, bytes))
            nets = tuple(one for one in members if isinstance(one, tuple))
            self._graph.put(key, replace(wanted, addresses=addresses, nets=nets))
            yield True

    def end(self, record: FedRecord) -> None:
        """The change has been taken in, or never will be."""
        if isinstance(record, PolicyRecord):
            self._graph.let_go(record.id)
            self._goal.chains.unstage(record.id)
