"""PURE: which of the namespaces' policies in force there is room for in the packet filter of one node.

Rule: each change of rules makes the kernel walk through all rules of the table, whoever makes it, so what all
namespaces put there together is bounded. Room is given in the order of what a namespace will have then, least first,
each namespace's smallest policies first: a namespace that needs no more than half of an equal part never goes without
because of others, and the first EACH of a namespace always have room. Of those that need about as much (between one
power of two and the next) who has room keeps it, so equals do not drive each other out. What has gone without comes
back by being put again, as if it were new, because what is large is made ready in slices.

Policies of no namespace, and profiles, do not count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from cni_calico.policy.budget import DEFAULT
from cni_calico.policy.wanted import PolicyId

TOTAL = 2 * DEFAULT
EACH = 1000  # rules and sets
SETTING = "FELIX_POLICYRULETOTAL"
RECONSIDER_S = 5.0
SparedSizes = Mapping[PolicyId, int]


def select_without_room(
    counts: Mapping[PolicyId, int], total: int, spared: SparedSizes, held: Collection[PolicyId] = ()
) -> set[PolicyId]:
    """``counts``: rules and sets that each may need. ``spared``: those that stay besides, up to this size, so that
    nothing which was in force goes for them; ``held``: those that have room now.
    """
    its: dict[str, int] = {}
    order: list[tuple[int, bool, int, str, PolicyId]] = []
    used = 0
    for name, count in sorted(counts.items(), key=lambda one: (one[1], str(one[0]))):
        if count <= spared.get(name, 0):
            continue
        together = its[name.namespace] = its.get(name.namespace, 0) + count
        order.append(((together - 1).bit_length(), name not in held, together, str(name), name))
    without: set[PolicyId] = set()
    for _, _, together, _, name in sorted(order):
        if together > EACH and used + counts[name] > total:
            without.add(name)
        else:
            used += counts[name]
    return without


class FilterRoom:
    """``total``: rules and sets for all; None: any number. ``without``: the policies in force that deny because there
    is no room for them, and what they may need. ``stood``: those whose rules were in the kernel when the agent started,
    and whose records have not had their turn yet.
    """

    def __init__(self) -> None:
        self.total: int | None = None
        self.without: dict[PolicyId, int] = {}
        self.stood: set[PolicyId] = set()
        self._counts: dict[PolicyId, int] = {}
        self._sum = 0
        self._held: set[PolicyId] = set()
        self._tried_at = float("-inf")

    def note(self, name: PolicyId, count: int | None) -> None:
        """A policy in force may need so much; None: it is not in force. Then ``judge``."""
        self._sum -= self._counts.pop(name, 0)
        if count is None:
            self.without.pop(name, None)
            self._held.discard(name)
        elif name.namespace:
            self._counts[name] = count
            self._sum += count

    def reserve(self, name: PolicyId, count: int) -> None:
        """For one that has been admitted, and is made ready to be in force."""
        self.note(name, count)
        if name in self._counts:
            self._held.add(name)

    def judge(self, changed: Collection[PolicyId], spared: SparedSizes) -> set[PolicyId]:
        """Decide anew, once all of ``changed`` have been noted. Returns which others go without from now on."""
        if not changed:
            return set()
        found = self._without(self._counts, self._sum, spared)
        more = found - self.without.keys()
        for name in changed:
            self.without.pop(name, None)
        self.without.update((name, self._counts[name]) for name in found.intersection(changed) | more)
        self._held = self._counts.keys() - self.without.keys()
        return more.difference(changed)

    def admits(self, name: PolicyId, count: int, spared: SparedSizes) -> bool:
        """Whether a policy would have room that may need so much."""
        return name not in self.goes_without(name, count, spared)

    def goes_without(self, name: PolicyId, count: int, spared: SparedSizes) -> set[PolicyId]:
        """Which would have no room, and have some now, if this one may need so much; maybe itself."""
        if not name.namespace:
            return set()
        needed = self._sum - self._counts.get(name, 0) + count
        return self._without({**self._counts, name: count}, needed, spared) - (self.without.keys() - {name})

    def _without(self, counts: Mapping[PolicyId, int], needed: int, spared: SparedSizes) -> set[PolicyId]:
        if self.total is None or needed <= self.total:
            return set()
        return select_without_room(counts, self.total, spared, self._held)

    def reconsider(self, now: float, spared: SparedSizes) -> PolicyId | None:
        """One that would have room now, every RECONSIDER_S. ``now``: seconds of any clock."""
        if not self.without or now - self._tried_at < RECONSIDER_S:
            return None
        self._tried_at = now
        fit = self.without.keys() - self._without(self._counts, self._sum, spared)
        return min(fit, key=lambda name: (self.without[name], str(name)), default=None)


def describe_no_room(count: int, total: int) -> str:
    return (
        f"its rules may need {count} rules and sets of the packet filter, and a node has room for {total}, which the "
        f"namespaces get first that need least: make the policies of its namespace smaller, or raise {SETTING}"
    )
