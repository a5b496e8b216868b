"""PURE: what decided about a connection, as a value, as a line of the file of numbers, in words and in documents.

Rule: the agent writes a line for each number before the kernel gets it; whoever reads the lines takes those that it
understands, and a number that has none is said to be unknown, never guessed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

FIRST = 256  # numbers below are reasons that do not depend on any record
NUMBERS_BYTES = 64 << 20  # of the file of numbers: 90,000 lines with the longest names that there may be
END, REFUSED = -1, -2
ALLOWED_GROUP, DENIED_GROUP = 61790, 61791  # numbers that nobody else uses, as far as is known
# never change the number of a reason: old recordings have it
FIXED = {
    "a source that is not the workload's": 1,
    "invalid": 2,
    "no endpoint": 3,
    "VXLAN from a workload": 4,
    "IPIP from a workload": 5,
    "DefaultEndpointToHostAction": 6,
    "service loop": 7,
    "over the packet rate": 8,
    "over the number of connections": 9,
    "Ipv6Support is off": 10,
    "127.0.0.0/8 from a workload": 11,
    "127.0.0.0/8 to a workload": 12,
    "VXLAN from an unknown node": 13,
    "IPIP from an unknown node": 14,
    "the kernel refuses its rules": 15,
}
REASONS = {number: reason for reason, number in FIXED.items()}


@dataclass(frozen=True, slots=True)
class Decider:
    """What decided. ``index``: of the rule, from 0; END: the end of the tier, of which the policy named is the last one
    that applies, or of the profiles, and then there is no name; REFUSED: the policy denies because it cannot be
    enforced. ``action``: Allow, Deny. ``digest``: of the rule's text. ``untranslated``: it decides before destinations
    are translated.
    """

    kind: str
    namespace: str
    name: str
    tier: str
    ingress: bool
    index: int
    action: str
    digest: str = ""
    untranslated: bool = False

    @property
    def path(self) -> str:
        """The policy, as people write it."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def sentence(self) -> str:
        direction = "ingress" if self.ingress else "egress"
        if self.index == END and self.tier:
            return f"{direction}: end of tier {self.tier} (policies: {self.path})"
        if self.index == END:
            return f"{direction}: no policy or profile allowed it"
        if self.index == REFUSED:
            return f"{direction}: {self.path}, which cannot be enforced"
        what = "profile " if self.kind == "Profile" else ""
        return f"{direction}: {what}{self.path} rule {self.index}"


_RARE = "untranslated"  # told only where it is so
_NAMES = [name for name in Decider.__match_args__ if name != _RARE]
_TYPES: dict[str, type] = {name: {"ingress": bool, "index": int}.get(name, str) for name in _NAMES}


def render_line(number: int, decider: Decider) -> str:
    """With its end of line."""
    fields = {name: getattr(decider, name) for name in _TYPES}
    fields |= {_RARE: True} if decider.untranslated else {}
    return json.dumps({"number": number, **fields}, separators=(",", ":")) + "\n"


def parse_line(line: str) -> tuple[int, Decider] | None:
    """None for a line that is not one of ours."""
    try:
        found = json.loads(line)
    except ValueError:
        return None
    if not isinstance(found, dict) or type(found.get("number")) is not int:
        return None
    given: dict[str, Any] = {name: found.get(name) for name in _TYPES}
    if any(type(value) is not _TYPES[name] for name, value in given.items()) or not FIRST <= found["number"] < 1 << 32:
        return None
    return found["number"], Decider(**given, untranslated=found.get(_RARE) is True)


def describe_decider(number: int, decider: Decider | None, *, denied: bool) -> dict[str, Any]:
    """For documents."""
    action = "Deny" if denied else "Allow"
    if decider is None:
        reason = REASONS.get(number)
        if reason is not None:
            return {"action": action, "reason": reason, "said": reason}
        return {"action": action, "number": f"{number:#x}", "unknown": True, "said": f"rule {number:#x}, unknown"}
    direction = "ingress" if decider.ingress else "egress"
    policy = {"kind": decider.kind, "namespace": decider.namespace, "name": decider.name}
    found: dict[str, Any] = {"direction": direction, "action": action, "tier": decider.tier}
    if decider.index == END:
        found |= {"endOfTier": True, "trigger": policy} if decider.tier else {"noProfile": True}
    elif decider.index == REFUSED:
        found |= {**policy, "refused": True}
    else:
        found |= {**policy, "rule": decider.index}
    return {**found, "said": decider.sentence()}
