"""PURE: rules of policies that an earlier run of the agent had in force, while this one has only stand-ins for them.

Rule: what an earlier run let through or denied stays as it was until the policy itself has its turn; a stand-in, which
denies, is written only where there was nothing. Rules that are not wholly known are not kept: they may look up
something that is gone, or mark packets with other bits. A set that the goal has, too, has the goal's members; any other
one has those that it was found with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.netfilter.difference import Touched, leads_to_chains
from cni_calico.netfilter.rules import Dispatch, NftRule, PortInEither, SetMark, Unrecognised
from cni_calico.netfilter.tables import NftSet, NftTable, TableId
from cni_calico.nodeagent.policing.tables.naming import policy_chain, policy_chains
from cni_calico.nodeagent.policing.tables.parts import whole_name
from cni_calico.policy.wanted import PolicyId


class KeptPolicies:
    """True while there are any. ``marking``: whose rules may pass a packet on to the next tier, by whether ingress."""

    def __init__(self) -> None:
        self._of: dict[PolicyId, dict[TableId, NftTable]] = {}  # chains with all that they lead to and look up
        self._released: dict[TableId, Touched] = {}
        self.marking: dict[bool, set[PolicyId]] = {True: set(), False: set()}

    def __bool__(self) -> bool:
        return bool(self._of)

    def __iter__(self) -> Iterator[PolicyId]:
        return iter(self._of)

    def begin(
        self,
        goal: Mapping[TableId, NftTable],
        held: Mapping[TableId, NftTable],
        policies: Collection[PolicyId],
        pass_mark: int,
    ) -> None:
        """``held``: the tables as they were found. ``goal`` has stand-ins for these policies."""
        for policy in policies:
            found = {
                table: left
                for table, there in held.items()
                if (left := _left(there, goal[table], policy, pass_mark)) is not None
            }
            if found:
                self._of[policy] = found
            for ingress, marking in self.marking.items():
                if any(_sets_marks(left, policy_chain(policy, True), ingress=ingress) for left in found.values()):
                    marking.add(policy)

    def only(self, policies: Collection[PolicyId]) -> None:
        """Of others, nothing is kept any more."""
        for marking in self.marking.values():
            marking.intersection_update(policies)
        for policy in self._of.keys() - set(policies):
            for table, left in self._of.pop(policy).items():
                released = self._released.setdefault(table, Touched())
                released.chains.update(left.chains)
                released.sets.update(left.sets)

    def take_released(self) -> dict[TableId, Touched]:
        """What was kept, and may have to be removed now."""
        released, self._released = self._released, {}
        return released

    def over(self, table: TableId, goal: NftTable) -> NftTable:
        """The goal with what is kept in place of its stand-ins."""
        kept = [found[table] for found in self._of.values() if table in found]
        if not kept:
            return goal
        chains, sets, elements, verdicts = dict(goal.chains), dict(goal.sets), dict(goal.elements), dict(goal.verdicts)
        for left in kept:
            chains.update(left.chains)
            for name, spec in left.sets.items():
                if name not in goal.sets:
                    sets[name] = spec
                    (verdicts if spec.verdicts else elements).update(_content(left, spec))
        return replace(goal, chains=chains, sets=sets, elements=elements, verdicts=verdicts)


def _content(table: NftTable, spec: NftSet) -> dict[str, Any]:
    """What a set or map holds, by its name."""
    return {spec.name: (table.verdicts if spec.verdicts else table.elements)[spec.name]}


def _left(held: NftTable, goal: NftTable, policy: PolicyId, pass_mark: int) -> NftTable | None:
    """What the table has of the policy, in those directions that it governs now; None: nothing, or not all is known."""
    found = NftTable(held.family, held.name)
    coming = [name for name in policy_chains(policy) if name in goal.chains and name in held.chains]
    if all(held.chains[name].rules == goal.chains[name].rules for name in coming):
        return None  # a stand-in itself
    while coming:
        name = coming.pop()
        if name in found.chains:
            continue
        chain = held.chains.get(name)
        if chain is None:
            return None
        found.chains[name] = chain
        for rule in chain.rules:
            if not _is_known(rule, pass_mark) or not all(_copy_set(held, one, found) for one in rule.lookups()):
                return None
            if rule.verdict is not None and rule.verdict.chain:
                coming.append(rule.verdict.chain)
    return found


def _is_known(rule: NftRule, pass_mark: int) -> bool:
    """Whether it is known what the rule depends on, and it marks packets, if at all, as policies do now."""
    for part in (*rule.tests, *rule.actions):
        if isinstance(part, Dispatch | PortInEither) or (isinstance(part, Unrecognised) and not part.is_known):
            return False
        if isinstance(part, SetMark) and part != SetMark(pass_mark):
            return False
    return True


def _sets_marks(table: NftTable, ingress_chain: str, *, ingress: bool) -> bool:
    chains = (chain for name, chain in table.chains.items() if (whole_name(name) == ingress_chain) is ingress)
    return any(isinstance(action, SetMark) for chain in chains for rule in chain.rules for action in rule.actions)


def _copy_set(held: NftTable, name: str, found: NftTable) -> bool:
    """Returns whether it is a set of elements, or a map that leads to no chain."""
    if name not in held.sets or (name not in held.elements and leads_to_chains(held.verdicts[name])):
        return False
    if name not in found.sets:
        found.sets[name] = held.sets[name]
        if name in held.elements:
            found.elements[name] = set(held.elements[name])
        else:
            found.verdicts[name] = dict(held.verdicts[name])
    return True
