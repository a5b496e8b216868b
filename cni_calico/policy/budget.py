"""PURE: how many rules and sets of the packet filter a policy may need, and what happens to one that needs too many.

Rule: the count follows from the policy's text alone. Members of sets and time do not count, so the same policy is
judged alike on every node and at every moment, also by calicoctl. The default has room for a policy of 1 MB that lists
networks, ports and selectors, each once: the densest text is a Kubernetes policy of 22,000 peers, each with three ports
that cannot be asked together (numbers of TCP, of UDP, and names).
"""

from __future__ import annotations

from dataclasses import replace

from cni_calico.policy.wanted import ANY_SIDE, WantedPolicy, WantedRule, WantedSide

DEFAULT = 163840
WAITS_FOR_MEMORY, OVER_BUDGET, NO_ROOM = "waits for memory", "above the budget of rules", "no room for its rules"
SETTING = "FELIX_POLICYRULEBUDGET"


def count_rules(policy: WantedPolicy) -> int:
    """In one family, the larger one, as if every selector's set had networks besides addresses. Each set that the rules
    name counts as one more: the kernel finds sets by searching all of them.
    """
    found, sets = {4: 0, 6: 0}, set[str]()
    for rule in policy.rules():
        needed = 1
        for side in (rule.source, rule.destination):
            if side is not ANY_SIDE:
                sets.update(side.set_ids())
                needed *= _alternatives(side)
        for family in rule.families:
            found[family] += needed
    return max(found.values()) + len(sets)


def count_alternatives(rule: WantedRule) -> int:
    """The rules of the packet filter that one rule may need in a family."""
    return _alternatives(rule.source) * _alternatives(rule.destination)


def _alternatives(side: WantedSide) -> int:
    """Numbers or names of ports; for each set of a selector its addresses or its networks."""
    if not (side.sets or side.port_sets):
        return 1
    ports = bool(side.ports) + len(side.port_sets)
    selectors = sum(not name.startswith("s-service-") for name in side.sets)
    return int(max(1, ports) * 2**selectors)


def describe_size(count: int, budget: int) -> str:
    return (
        f"its rules may need {count} rules and sets of the packet filter, and a policy may need {budget}: split it, "
        f"list networks and ports in fewer rules, or raise {SETTING}"
    )


def denied(policy: WantedPolicy, why: str = OVER_BUDGET) -> WantedPolicy:
    """Denies what the policy governs; it needs no sets. ``why``: for the rule's comment."""
    rules = (WantedRule("Deny", annotations=(("denied", why),), stands_in=True),)
    return replace(
        policy,
        ingress=None if policy.ingress is None else rules,
        egress=None if policy.egress is None else rules,
    )


def is_waiting(policy: WantedPolicy) -> bool:
    """Whether it denies because it waits for memory. Also for a policy whose owner writes just that: then his own."""
    return policy.rules() != () and denied(policy, WAITS_FOR_MEMORY) == policy
