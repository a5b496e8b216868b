"""PURE: about what a change costs the engine, in units of a rule (some 0.1 ms), from its size alone.

Rule: a weight decides only whose turn it is, never what is in force; it takes a fraction of the time that it estimates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.budget import count_rules
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.records import Labelled, PolicyRecord

LARGE = 1000  # from here on a document is decoded only when it is its turn
UNREAD_FROM = 8 << 10  # from so many bytes on a text is read only when it is its turn
_TEXT = 50  # bytes of such a text: as much as a rule
_CHARACTERS, _MEMBERS, _WORKLOAD = 100, 20, 5  # of text, of a set: as much as a rule; a workload's endpoint


def weigh_text(size: int) -> int:
    """A document of so many bytes that has not been read."""
    return 1 + size // _TEXT


def weigh_document(spec: Any) -> int:
    """The spec of a policy, of any kind, that has not been decoded."""
    found = 1
    rules = [rules for name in ("ingress", "egress") if isinstance(rules := spec.get(name), list)] if spec else []
    for listed in rules:
        step = 1 + len(listed) // LARGE  # of very many only some are looked at
        found += step * sum(1 + _weigh_parts(rule, 3) for rule in listed[::step])
    return found


def _weigh_parts(part: Any, depth: int) -> int:
    if isinstance(part, str):
        return len(part) // _CHARACTERS
    found = 0
    parts: Iterable[Any] = ()
    if isinstance(part, list):
        found, parts = len(part), part[:LARGE]
    elif isinstance(part, dict):
        parts = part.values()
    if depth:
        for one in parts:
            if isinstance(one, str):
                found += len(one) // _CHARACTERS
            elif isinstance(one, list | dict):
                found += _weigh_parts(one, depth - 1)
    return found


def weigh_change(change: object) -> int:
    """A record; anything else costs little."""
    if isinstance(change, PolicyRecord):
        rules = tuple(change.wanted.rules())
        nets = sum(len(side.nets) + len(side.not_nets) for rule in rules for side in (rule.source, rule.destination))
        return 1 + count_rules(change.wanted) + nets + len(change.sources)
    if isinstance(change, Labelled):
        return 1 + (len(change.nets) + len(change.addresses)) // _MEMBERS
    return _WORKLOAD if isinstance(change, WorkloadEndpoint | ClaimedEndpoint) else 1
