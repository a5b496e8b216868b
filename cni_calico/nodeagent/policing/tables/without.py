"""PURE: the goal without an operation that the kernel refused.

Rule: each step makes the goal smaller, so that any sequence of refusals ends: a policy or a class becomes a deny, an
endpoint's entry a drop, and what is refused even then is withheld. Which substitutes there are for what is a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from cni_calico.netfilter.tables import (
    AddRules,
    AddVerdicts,
    FilterObject,
    Operation,
    TableId,
    interface_key,
    object_of,
)
from cni_calico.nodeagent.policing.tables import stages
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.matches import NETWORKS
from cni_calico.nodeagent.policing.tables.naming import class_chain, policy_chains
from cni_calico.nodeagent.policing.tables.parts import whole_name
from cni_calico.policy.wanted import PolicyId

_ENTRIES = (stages.FROM.name, stages.TO.name)


def do_without(goal: Goal, operation: Operation, why: str) -> bool:
    """Returns whether the goal changed."""
    table, name = object_of(operation)
    if isinstance(operation, AddRules):
        wanted_chain = goal.tables.of[table].chains.get(name)
        if wanted_chain is not None and wanted_chain.rules != operation.rules:
            return True  # something else is wanted already: the policy was given up for another of its chains
    refused = _describe(goal, operation, why)
    return any(substitute(refused) for substitute in (*_SUBSTITUTES[refused.kind], _withhold))


class _RefusedKind(Enum):
    ENTRY = "an endpoint's, which leads to its class"
    HOST_ENTRY = "a host endpoint's, which leads to the chain of its class in one stage"
    HOST_CHAIN = "of a class of host endpoints in one stage"
    AHEAD = "a part of a policy that is not in force yet"
    POLICY = "a policy's chain, or a part of it"
    CLASS = "a class's chain, or a part that it may share with others"
    SET = "of addresses or networks, or a list that a policy's chain looks up"
    OTHER = "a table, a stage, a standing rule, or what is to be removed"


@dataclass(frozen=True, slots=True)
class _RefusedObject:
    """``policy`` and ``classes`` (and whether ingress): whose it is, if it is theirs alone."""

    goal: Goal
    operation: Operation
    why: str
    kind: _RefusedKind
    policy: PolicyId | None = None
    classes: tuple[tuple[str, bool], ...] = ()

    @property
    def whole(self) -> FilterObject:
        """The object; of a part the chain that it belongs to."""
        table, name = object_of(self.operation)
        return table, whole_name(name)


def _describe(goal: Goal, operation: Operation, why: str) -> _RefusedObject:
    table, name = object_of(operation)
    if isinstance(operation, AddVerdicts):
        is_entry = name in _ENTRIES
        return _RefusedObject(goal, operation, why, _RefusedKind.ENTRY if is_entry else _RefusedKind.HOST_ENTRY)
    if goal.hosts.describe(name):
        return _RefusedObject(goal, operation, why, _RefusedKind.HOST_CHAIN)
    if goal.tables.is_spare_part(table, name):
        ahead = _policy_of(goal.chains.staged, name)
        if ahead is not None:
            return _RefusedObject(goal, operation, why, _RefusedKind.AHEAD, ahead)
    policy = _policy_of(goal.policies, name)
    if policy is not None:
        return _RefusedObject(goal, operation, why, _RefusedKind.POLICY, policy)
    leading = goal.tables.chains_with_part(table, name)  # a part may be that of several classes
    classes = tuple(_classes_of(goal, {whole_name(name), *leading}))
    if classes:
        return _RefusedObject(goal, operation, why, _RefusedKind.CLASS, classes=classes)
    name = whole_name(name)
    # a set may be made ahead, and used only later
    is_set = goal.sets.has(name.removesuffix(NETWORKS)) or bool(_users_of_set(goal, table, name))
    return _RefusedObject(goal, operation, why, _RefusedKind.SET if is_set else _RefusedKind.OTHER)


# -- substitutes: each returns whether the goal changed ----------------------------------------------------------------


def _deny_interfaces(refused: _RefusedObject) -> bool:
    goal, operation = refused.goal, refused.operation
    assert isinstance(operation, AddVerdicts)
    keys = {interface_key(one.interface): one.interface for one in goal.endpoints.all.values()}
    return _any(goal.deny_interface(keys[key], refused.why) for key in operation.verdicts if key in keys)


def _deny_host_chains(refused: _RefusedObject) -> bool:
    """What an entry leads to is at fault."""
    assert isinstance(refused.operation, AddVerdicts)
    chains = {one.chain for one in refused.operation.verdicts.values()}
    return _any(refused.goal.deny_host_chain(chain, refused.why) for chain in sorted(chains))


def _deny_host_chain(refused: _RefusedObject) -> bool:
    return refused.goal.deny_host_chain(object_of(refused.operation)[1], refused.why)


def _unstage(refused: _RefusedObject) -> bool:
    """It is made at once when it is its turn, and given up then."""
    assert refused.policy is not None
    refused.goal.chains.unstage(refused.policy)
    return True


def _give_up(refused: _RefusedObject) -> bool:
    assert refused.policy is not None
    return refused.goal.give_up(refused.policy, refused.why)


def _deny_in_hosts(refused: _RefusedObject) -> bool:
    """A policy's deny is refused, too: no packet may reach its chain."""
    goal, policy = refused.goal, refused.policy
    using = any(policy in one.policy_ids() for one in goal.hosts.classes.values())
    if policy is None or policy in goal.hosts.denied or not using:
        return False
    goal.hosts.denied.add(policy)
    goal.render_hosts()
    return True


def _deny_using(refused: _RefusedObject) -> bool:
    """The same in the classes of workloads."""
    goal = refused.goal
    using = sorted(one.id for one in goal.classes.values() if refused.policy in one.policy_ids())
    return _any(goal.deny_class(one, ingress, refused.why) for one in using for ingress in (True, False))


def _deny_classes(refused: _RefusedObject) -> bool:
    return _any(refused.goal.deny_class(class_id, ingress, refused.why) for class_id, ingress in refused.classes)


def _deny_endpoints(refused: _RefusedObject) -> bool:
    """A class's deny is refused, too."""
    classes = {class_id for class_id, _ in refused.classes}
    found = [one.interface for one in refused.goal.endpoints.all.values() if one.class_id in classes]
    return _any(refused.goal.deny_interface(interface, refused.why) for interface in found)


def _give_up_users(refused: _RefusedObject) -> bool:
    """Every policy that looks a set up denies; the set itself is withheld."""
    goal, (table, name) = refused.goal, refused.whole
    users = _users_of_set(goal, table, name)
    goal.give_up_set(name.removesuffix(NETWORKS), refused.why)
    for one in users:
        goal.give_up(one, f"the kernel refuses a set of its rules ({name}): {refused.why}")
    return False


def _withhold(refused: _RefusedObject) -> bool:
    goal, (table, name) = refused.goal, refused.whole
    wanted = goal.tables.of[table]
    is_left = bool(name) and name not in wanted.chains and name not in wanted.sets
    is_new = goal.refused.withhold(refused.operation, refused.why)
    if is_left or refused.kind in _SPARE:
        goal.refused.spare.add((table, name))
    return is_new


_SUBSTITUTES: dict[_RefusedKind, tuple[Callable[[_RefusedObject], bool], ...]] = {
    _RefusedKind.ENTRY: (_deny_interfaces,),
    _RefusedKind.HOST_ENTRY: (_deny_host_chains,),
    _RefusedKind.HOST_CHAIN: (_deny_host_chain,),
    _RefusedKind.AHEAD: (_unstage,),
    _RefusedKind.POLICY: (_give_up, _deny_in_hosts, _deny_using),
    _RefusedKind.CLASS: (_deny_classes, _deny_endpoints),
    _RefusedKind.SET: (_give_up_users,),
    _RefusedKind.OTHER: (),
}
_SPARE = (_RefusedKind.POLICY, _RefusedKind.CLASS, _RefusedKind.SET)  # no packet gets there any more


# -- whose it is -------------------------------------------------------------------------------------------------------


def _any(denied: Iterable[bool]) -> bool:
    """All of them are denied, also after the first that is new."""
    return any([*denied])


def _classes_of(goal: Goal, chains: set[str]) -> list[tuple[str, bool]]:
    """The classes to which the chains belong, and whether ingress."""
    both = ((class_id, ingress) for class_id in goal.classes for ingress in (True, False))
    return [(class_id, ingress) for class_id, ingress in both if class_chain(class_id, ingress) in chains]


def _policy_of(policies: Iterable[PolicyId], chain: str) -> PolicyId | None:
    return next((one for one in policies if whole_name(chain) in policy_chains(one)), None)


def _users_of_set(goal: Goal, table: TableId, name: str) -> list[PolicyId]:
    """The policies whose rules look it up, by its own name or in a list."""
    stem = name.removesuffix(NETWORKS)
    found = {policy.id for policy in goal.policies.values() if any(stem in rule.set_ids() for rule in policy.rules())}
    chains = goal.tables.chains_with_list(table, name)
    found |= {policy for chain in chains if (policy := _policy_of(goal.policies, chain)) is not None}
    return sorted(found, key=str)
