"""PURE: about how much memory a policy needs, from its size alone: in the graph, in the goal, in the kernel.

Rule: it is estimated as if the policy were in force on this node, because a pod that it selects may come at any time,
and rather too high: from measurements of rules with one and with 16 alternatives, of networks, ports and selectors.
"""

from __future__ import annotations

from typing import Any

from cni_calico.model.kubernetes.policies import CLUSTER_NETWORK_POLICY, NETWORK_POLICY
from cni_calico.policy.budget import count_alternatives
from cni_calico.policy.records import PolicyRecord
from cni_calico.policy.sets import NETWORK_SET
from cni_calico.policy.sources import PortSource
from cni_calico.policy.wanted import WantedRule, WantedSide

POLICY_BYTES, RULE_BYTES, ALTERNATIVE_BYTES = 4000, 2000, 2000  # an alternative: a rule of the filter in both families
MEMBER_BYTES, NET_BYTES = 200, 100  # of a set, once it is in the graph: in the goal and the kernel; of a network set
ENTRY_BYTES, SELECTOR_BYTES, CHARACTER_BYTES = 500, 6000, 10
_KUBERNETES = (NETWORK_POLICY, CLUSTER_NETWORK_POLICY)
_PROTOCOLS = 3
_LISTS = frozenset(("nets", "notNets", "ports", "notPorts"))
_SELECTORS = ("selector", "notSelector", "namespaceSelector")


def estimate_document(kind: str, spec: Any) -> int:
    """Bytes, for the spec of the document of a policy, or of a network set that nothing selects."""
    if kind == NETWORK_SET:
        return NET_BYTES * len(_listed(spec, "nets"))
    rules = [rule for name in ("ingress", "egress") for rule in _listed(spec, name) if isinstance(rule, dict)]
    estimate = _kubernetes_rule if kind in _KUBERNETES else _rule
    return POLICY_BYTES + sum(map(estimate, rules))


def count_selectors(spec: Any) -> int:
    """How many a policy's document has at most, each a set of its own in both families."""
    rules = [rule for name in ("ingress", "egress") for rule in _listed(spec, name) if isinstance(rule, dict)]
    peers = sum(not (isinstance(peer, dict) and "ipBlock" in peer) for rule in rules for peer in _peers(rule))
    sides = [side for rule in rules for name in ("source", "destination") if isinstance(side := rule.get(name), dict)]
    return peers + sum(any(isinstance(side.get(name), str) for name in _SELECTORS) for side in sides)


def _peers(rule: dict[str, Any]) -> list[Any]:
    return _listed(rule, "from") + _listed(rule, "to")


def _listed(raw: Any, name: str) -> list[Any]:
    value = raw.get(name) if isinstance(raw, dict) else None
    return value if isinstance(value, list) else []


def _rule(rule: dict[str, Any]) -> int:
    alternatives, found = 1, RULE_BYTES
    for name in ("source", "destination"):
        side = rule.get(name)
        if not isinstance(side, dict):
            continue
        selectors = 0
        for part, value in side.items():  # once, and no function is called: there may be ten thousand rules
            if isinstance(value, list) and part in _LISTS:
                found += ENTRY_BYTES * len(value)
                if part == "ports" and str in (kinds := set(map(type, value))) and _has_names(value):
                    found += SELECTOR_BYTES
                    alternatives *= 1 + (len(kinds) > 1)
            elif isinstance(value, str) and part in _SELECTORS:
                selectors += 1
                found += SELECTOR_BYTES + CHARACTER_BYTES * len(value)
        alternatives *= 1 + bool(selectors)
    return found + alternatives * ALTERNATIVE_BYTES


def _has_names(ports: list[Any]) -> bool:
    return any(isinstance(port, str) and not port.replace(":", "").isdecimal() for port in ports)


def _kubernetes_rule(rule: dict[str, Any]) -> int:
    """Each peer becomes a rule for each protocol; all have the same list of ports."""
    ports = _listed(rule, "ports") + _listed(rule, "protocols")
    peers = _peers(rule)
    protocols = {str(port.get("protocol")) for port in ports if isinstance(port, dict)}
    nets = sum(isinstance(peer, dict) and isinstance(peer.get("ipBlock"), dict) for peer in peers)
    selectors = len(peers) - nets
    kinds = {type(port.get("port")) for port in ports if isinstance(port, dict)}
    each = ALTERNATIVE_BYTES * max(1, len(kinds))
    copies = min(_PROTOCOLS, max(1, len(protocols)))
    rules = copies * (max(1, nets) * (RULE_BYTES + each) + selectors * (RULE_BYTES + 2 * each))
    excepted = sum(len(_listed(peer.get("ipBlock"), "except")) for peer in peers if isinstance(peer, dict))
    return rules + selectors * SELECTOR_BYTES + ENTRY_BYTES * (len(ports) + len(peers) + excepted)


def estimate_record(policy: PolicyRecord) -> int:
    """The same for a policy that has been decoded; of equal lists there is one."""
    lists: set[int] = set()
    rules = sum(_wanted_rule(rule, lists) for rule in policy.wanted.rules())
    names = sum(len(source.ports) for source in policy.sources.values() if isinstance(source, PortSource))
    return POLICY_BYTES + rules + SELECTOR_BYTES * len(policy.sources) + ENTRY_BYTES * names


def _wanted_rule(rule: WantedRule, lists: set[int]) -> int:
    sides = rule.source, rule.destination
    found = RULE_BYTES + ALTERNATIVE_BYTES * count_alternatives(rule)
    for listed in (part for side in sides for part in _lists_of(side)):
        if id(listed) not in lists:
            lists.add(id(listed))
            found += ENTRY_BYTES * len(listed)
    return found


def _lists_of(side: WantedSide) -> tuple[tuple[object, ...], ...]:
    return side.nets, side.not_nets, side.ports, side.not_ports
