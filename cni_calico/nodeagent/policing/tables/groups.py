"""PURE: where many policies of a tier apply, they are asked group by group, in chains of their own.

Rule: where a group ends follows from the names of policies alone, and its chain is named by its content, as parts are.
So classes that ask the same policies share their groups, and one policy more or less gives one other group and one
other chain of the class, which only leads through the groups: the cost of a change does not grow with their rules. A
group in which a packet may be passed on to the next tier skips the rest of itself; the chain skips the groups after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from zlib import crc32

from cni_calico.netfilter.rules import jump
from cni_calico.nodeagent.policing.tables.chains import AskedPolicies, ask_in_turn
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.nodeagent.policing.tables.parts import ChainPart, named_part
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import PolicyId

GROUPED_FROM = 256  # policies of a tier
ABOUT, MOST = 64, 256  # policies of a group
_SPARE = 256  # groups that are remembered besides those in use

_GroupKey = tuple[tuple[PolicyId, ...], bool, frozenset[PolicyId], int]


def plan_groups(policies: Sequence[PolicyId]) -> list[tuple[PolicyId, ...]]:
    """In their order. Whoever chooses names so that groups only end by their size makes his own changes dear."""
    groups: list[tuple[PolicyId, ...]] = []
    begin = 0
    for end, policy in enumerate(policies, 1):
        if end - begin >= MOST or not crc32(policy.name.encode("utf-8", "surrogatepass")) % ABOUT:
            groups.append(tuple(policies[begin:end]))
            begin = end
    if begin < len(policies):
        groups.append(tuple(policies[begin:]))
    return groups


class PolicyGroups:
    """Remembers the chains of groups, because hardly any of them is another one after a change."""

    def __init__(self) -> None:
        self._made: dict[_GroupKey, ChainPart] = {}
        self._limit = _SPARE
        self._planned: tuple[Sequence[PolicyId], list[tuple[PolicyId, ...]]] = ((), [])

    def ask(
        self,
        policies: Sequence[PolicyId],
        ingress: bool,
        settings: FilterSettings,
        passing: AbstractSet[PolicyId],
        used: dict[str, ChainPart],
    ) -> Iterator[AskedPolicies]:
        """What asks each group, and whether it may pass a packet on; their chains are added to ``used``."""
        if policies is not self._planned[0]:
            self._planned = policies, plan_groups(policies)
        for group in self._planned[1]:
            its = frozenset(policy for policy in group if policy in passing) if passing else frozenset[PolicyId]()
            part = self._part(group, ingress, its, settings)
            used[part.chain.name] = part
            yield (jump(part.chain.name),), bool(its)

    def _part(
        self, group: tuple[PolicyId, ...], ingress: bool, passing: frozenset[PolicyId], settings: FilterSettings
    ) -> ChainPart:
        key = group, ingress, passing, settings.pass_mark
        part = self._made.get(key)
        if part is None:
            asked = (((jump(policy_chain(policy, ingress)),), policy in passing) for policy in group)
            part = self._made[key] = named_part("to" if ingress else "from", tuple(ask_in_turn(asked, settings)))
        return part

    def forget(self, in_use: AbstractSet[str]) -> None:
        """Call it after changes: of the chains that are not in use any more only some are kept."""
        if len(self._made) > self._limit:
            self._made = {key: part for key, part in self._made.items() if part.chain.name in in_use}
            self._limit = len(self._made) + _SPARE
