"""What the stored records ask of a node's kernel: by feature, which of them do.

Rule: it only reads. A record that cannot be read asks for nothing here; other commands name it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cni_calico.ctl.session import Session, shown_key
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.kubernetes.policies import NETWORK_POLICY

POOLS, SETTINGS = "IPPool", "FelixConfiguration"
POLICIES = ("GlobalNetworkPolicy", "NetworkPolicy")
SCTP = ("SCTP", "132")
_SHOWN = 3

Documents = Iterable[tuple[ResourceKey, Mapping[str, Any]]]


def read_asked(session: Session) -> dict[str, str]:
    """By feature (ipip, vxlan, wireguard, sctp, NAT): the records that ask for it. Raises DatastoreError."""
    kubernetes = (NETWORK_POLICY,) if session.store.kind == "kubernetes" else ()
    return select_asked(
        (item.key, item.value)
        for kind in (POOLS, SETTINGS, *POLICIES, *kubernetes)
        for item in session.store.list(ResourceList(kind), session.deadline).items
        if isinstance(item.key, ResourceKey)
    )


def select_asked(documents: Documents) -> dict[str, str]:
    """PURE: the same from the documents."""
    found: dict[str, list[str]] = defaultdict(list)
    for key, document in documents:
        spec = document.get("spec")
        for feature in set(_features(key, spec if isinstance(spec, Mapping) else {})):
            found[feature].append(shown_key(key))
    return {feature: _listed(sorted(names)) for feature, names in found.items()}


def _features(key: ResourceKey, spec: Mapping[str, Any]) -> Iterator[str]:
    if key.kind == POOLS:
        for feature, field in (("ipip", "ipipMode"), ("vxlan", "vxlanMode")):
            if spec.get(field, "Never") not in ("Never", ""):
                yield feature
        if spec.get("natOutgoing") is True:
            yield "NAT"
    elif key.kind == SETTINGS:
        if spec.get("wireguardEnabled") is True or spec.get("wireguardEnabledV6") is True:
            yield "wireguard"
    elif any(str(rule.get("protocol")).upper() in SCTP for rule in _rules(spec)):
        yield "sctp"


def _rules(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Calico's rules, and the ports of Kubernetes' rules, which have the protocol there."""
    for direction in ("ingress", "egress"):
        rules = spec.get(direction)
        for rule in rules if isinstance(rules, list) else ():
            if isinstance(rule, Mapping):
                yield rule
                ports = rule.get("ports")
                yield from (port for port in ports if isinstance(port, Mapping)) if isinstance(ports, list) else ()


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
