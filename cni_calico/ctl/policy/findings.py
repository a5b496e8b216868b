"""What is odd about the policies that a change makes or alters: rules that can never match, selectors that match
nothing, policies that apply to nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.policy.changed_rows import describe_decider
from cni_calico.ctl.policy.proposed import ProposedChange
from cni_calico.policy.judge.unused import MOST_NAMED, unused_rules
from cni_calico.policy.judge.worlds import WorldPair
from cni_calico.policy.records import POLICY_KINDS, policy_id
from cni_calico.policy.wanted import PolicyId, Wanted, WantedRule


@dataclass(frozen=True, slots=True)
class ChangeFinding:
    """``what``: shadowed, matchesNothing, emptySelector, withoutEndpoint. ``rule``: from 1."""

    what: str
    policy: PolicyId
    text: str
    direction: str = ""
    rule: int | None = None

    @property
    def document(self) -> dict[str, Any]:
        at = {} if self.rule is None else {"direction": self.direction, "rule": self.rule}
        return {"what": self.what, "policy": str(self.policy), **at, "text": self.text}


def find_in_change(change: ProposedChange, worlds: WorldPair) -> list[ChangeFinding]:
    """After the worlds have been compared."""
    there = [policy_id(key) for key in change.changed if key.kind in POLICY_KINDS and key in change.records.records]
    found: list[ChangeFinding] = []
    for policy in sorted(there, key=str):
        if policy not in change.after.policies:
            found.append(ChangeFinding("withoutEndpoint", policy, f"{policy} applies to no endpoint"))
    altered = [policy for policy in there if policy in worlds.changed_policies]
    for policy in sorted(altered, key=str):
        if policy in change.after.policies:
            found += _empty_selectors(change.after, policy)
    empty = {(one.policy, one.direction, one.rule) for one in found}
    for one in unused_rules(worlds, altered):
        number = one.rule + 1
        if (one.policy, one.direction, number) in empty:
            continue
        at = f"{one.direction} rule {number} of {one.policy}"
        if one.takers:
            takers = ", and ".join(dict.fromkeys(f"{_taken(taker)}" for taker in one.takers))
            more = " and others" if len(one.takers) == MOST_NAMED else ""
            text = f"{at} can never match: what it would match is decided before, {takers}{more}"
            found.append(ChangeFinding("shadowed", one.policy, text, one.direction, number))
        else:
            text = f"{at} matches nothing that there is now"
            found.append(ChangeFinding("matchesNothing", one.policy, text, one.direction, number))
    return found


def _taken(decision: Any) -> str:
    return describe_decider(decision)


def _empty_selectors(after: Wanted, policy: PolicyId) -> Iterator[ChangeFinding]:
    wanted = after.policies[policy]
    for direction, rules in (("ingress", wanted.ingress), ("egress", wanted.egress)):
        for number, rule in enumerate(rules or (), start=1):
            sides = [side for side in ("source", "destination") if _is_empty(after, rule, side)]
            if sides:
                text = f"{direction} rule {number} of {policy}: its {' and '.join(sides)} selects nothing now"
                yield ChangeFinding("emptySelector", policy, text, direction, number)


def _is_empty(after: Wanted, rule: WantedRule, name: str) -> bool:
    side = rule.source if name == "source" else rule.destination
    asked = (*side.sets, *side.service_sets, *(side.port_sets if not side.ports else ()))
    return any(not after.sets[one] for one in asked)
