"""PURE: the goal without an operation that the kernel refused.

Rule: each step makes the goal smaller, so that any sequence of refusals ends: a policy or a class becomes a deny, an
endpoint's entry a drop, and what is refused even then is withheld.
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.netfilter.tables import AddRules, AddVerdicts, Operation, TableId, object_of
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
    if isinstance(operation, AddVerdicts) and name in _ENTRIES:
        keys = {stages.interface_key(one.interface): one.interface for one in goal.endpoints.all.values()}
        denied = [goal.deny_interface(keys[key], why) for key in operation.verdicts if key in keys]
        return any(denied) or goal.refused.withhold(operation, why)
    if isinstance(operation, AddVerdicts):  # a host endpoint's: what it leads to is at fault
        chains = {one.chain for one in operation.verdicts.values()}
        denied = [goal.deny_host_chain(chain, why) for chain in sorted(chains)]
        if any(denied):
            return True
    if goal.deny_host_chain(name, why):
        return True
    if goal.tables.is_spare_part(table, name):
        ahead = _policy_of(goal.chains.staged, name)
        if ahead is not None:
            goal.chains.unstage(ahead)  # it is made at once when it is its turn, and given up then
            return True
    leading = goal.tables.chains_with_part(table, name)  # a part may be that of several classes
    name = whole_name(name)
    policy, classes = _policy_of(goal.policies, name), _classes_of(goal, {name, *leading})
    if policy is not None and goal.give_up(policy, why):
        return True
    if policy is not None:  # its deny is refused, too: no packet may reach its chain
        using = sorted(one.id for one in goal.classes.values() if policy in one.policy_ids())
        classes = [(one, ingress) for one in using for ingress in (True, False)]
        if _deny_in_hosts(goal, policy):
            return True
    denied = [goal.deny_class(class_id, ingress, why) for class_id, ingress in classes]
    if any(denied):
        return True
    if policy is None and _deny_endpoints(goal, {class_id for class_id, _ in classes}, why):
        return True
    users = _users_of_set(goal, table, name)
    withheld = goal.refused.withhold(operation, why)
    wanted = goal.tables.of[table]
    is_left = bool(name) and name not in wanted.chains and name not in wanted.sets
    if classes or policy is not None or is_left:
        goal.refused.spare.add((table, name))
    if users or goal.sets.has(name.removesuffix(NETWORKS)):  # perhaps it is made ahead, and used only later
        goal.refused.spare.add((table, name))
        goal.give_up_set(name.removesuffix(NETWORKS), why)
    for one in users:
        goal.give_up(one, f"the kernel refuses a set of its rules ({name}): {why}")
    return withheld


def _classes_of(goal: Goal, chains: set[str]) -> list[tuple[str, bool]]:
    """The classes to which the chains belong, and whether ingress."""
    both = ((class_id, ingress) for class_id in goal.classes for ingress in (True, False))
    return [(class_id, ingress) for class_id, ingress in both if class_chain(class_id, ingress) in chains]


def _deny_endpoints(goal: Goal, classes: set[str], why: str) -> bool:
    found = [one.interface for one in goal.endpoints.all.values() if one.class_id in classes]
    denied = [goal.deny_interface(interface, why) for interface in found]
    return any(denied)


def _deny_in_hosts(goal: Goal, policy: PolicyId) -> bool:
    using = any(policy in one.policy_ids() for one in goal.hosts.classes.values())
    if policy in goal.hosts.denied or not using:
        return False
    goal.hosts.denied.add(policy)
    goal.render_hosts()
    return True


def _policy_of(policies: Iterable[PolicyId], chain: str) -> PolicyId | None:
    return next((one for one in policies if whole_name(chain) in policy_chains(one)), None)


def _users_of_set(goal: Goal, table: TableId, name: str) -> list[PolicyId]:
    """The policies whose rules look it up, by its own name or in a list."""
    stem = name.removesuffix(NETWORKS)
    found = {policy.id for policy in goal.policies.values() if any(stem in rule.set_ids() for rule in policy.rules())}
    chains = goal.tables.chains_with_list(table, name)
    found |= {policy for chain in chains if (policy := _policy_of(goal.policies, chain)) is not None}
    return sorted(found, key=str)
