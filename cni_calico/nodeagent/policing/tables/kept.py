"""PURE: rules of policies that an earlier run of the agent had in force, while this one has only stand-ins for them.

Rule: what an earlier run let through or denied stays as it was until the policy itself has its turn; a stand-in, which
denies, is written only where there was nothing. Rules that are not wholly known are not kept: they may look up
something that is gone, or mark packets with other bits. A set that the goal has, too, has the goal's members; any other
one has those that it was found with.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from cni_calico.netfilter.difference import Touched
from cni_calico.netfilter.rules import Dispatch, NftRule, PortInEither, SetMark, Unrecognised
from cni_calico.netfilter.tables import NftTable, TableId
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
        chains, sets, elements = dict(goal.chains), dict(goal.sets), dict(goal.elements)
        for left in kept:
            chains.update(left.chains)
            for name, spec in left.sets.items():
                if name not in goal.sets:
                    sets[name], elements[name] = spec, left.elements[name]
        return replace(goal, chains=chains, sets=sets, elements=elements)


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
    """Returns whether it is a set of elements."""
    if name not in held.sets or name not in held.elements:
        return False
    if name not in found.sets:
        found.sets[name], found.elements[name] = held.sets[name], set(held.elements[name])
    return True
