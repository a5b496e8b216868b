"""PURE: the fields that upstream fills in when a resource is written, and those it shows when one is read.

Rule: given values stay unchanged, except AS numbers in dotted form, which are stored as numbers, and durations, which
are stored as Go writes them. Source: upstream's client library and its vectors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from cni_calico.model.documents.fields import JSON, as_number_of
from cni_calico.model.documents.tiers import TIERS
from cni_calico.model.resources import BLOCK_SIZES
from cni_calico.model.validation.felix_fields import DURATIONS

TIER_LABEL = "projectcalico.org/tier"
_ENDPOINT_LABELS = "projectcalico.org/"
_AS_NUMBERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "Node": (("bgp", "asNumber"),),
    "BGPPeer": (("asNumber",), ("localASNumber",)),
    "BGPConfiguration": (("asNumber",),),
}
_TIMED: Mapping[str, frozenset[str]] = {
    "FelixConfiguration": DURATIONS | {"timeout"},
    "BGPPeer": frozenset(("keepaliveTime", "maxRestartTime")),
    "BGPConfiguration": frozenset(("nodeMeshMaxRestartTime",)),
    "KubeControllersConfiguration": frozenset(("etcdV3CompactionPeriod", "reconcilerPeriod", "leakGracePeriod")),
}
_PART = re.compile(r"(\d{1,18})(?:\.(\d{0,18}))?(h|ms|m|s|us|µs|ns)")
_SECOND = 10**9
_NANOSECONDS = {"h": 3600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND, "ms": 10**6, "us": 1000, "µs": 1000, "ns": 1}
# values shown for fields that a record does not have; never stored
_SHOWN: Mapping[str, Mapping[str, Any]] = {
    "FelixConfiguration": {
        "bpfConnectTimeLoadBalancing": "TCP",
        "bpfHostNetworkedNATWithoutCTLB": "Enabled",
        "floatingIPs": "Disabled",
        "nftablesMode": "Auto",
    },
    "BGPConfiguration": {"serviceLoadBalancerAggregation": "Enabled"},
}
_WITH_STATUS = ("Tier", "Node")


def with_defaults(document: JSON) -> dict[str, Any]:
    """The document with the fields that upstream fills in when a resource is written."""
    kind, spec = str(document.get("kind")), document.get("spec")
    if not isinstance(spec, Mapping):
        return dict(document)
    changed: dict[str, Any] = _with_durations(_with_as_numbers(kind, spec), _TIMED.get(kind, frozenset()))
    fill = _FILLED.get(kind)
    out = {**document, "spec": fill(document, changed) if fill else changed}
    labels = _labels_of(kind, out)
    metadata = document.get("metadata")
    if labels and isinstance(metadata, Mapping) and isinstance(metadata.get("labels") or {}, Mapping):
        out["metadata"] = {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}}
    return out


def as_shown(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the defaults that upstream shows.

    Only the cluster's configuration gets them: in a node's configuration they would, once it is applied again, override
    the cluster's.
    """
    kind, spec = str(document.get("kind")), document.get("spec")
    if kind in _SHOWN and isinstance(spec or {}, Mapping) and document["metadata"].get("name") == "default":
        document = {**document, "spec": {**_SHOWN[kind], **(spec or {})}}
    if isinstance(spec, Mapping) and _FILLED.get(kind) is _fill_policy:
        document = {**document, "spec": _filled(spec, tier="default")}  # versions without tiers stored none
    if isinstance(spec, Mapping) and kind == "IPPool":
        document = {**document, "spec": _fill_pool(document, spec)}
    if kind in _WITH_STATUS and "status" not in document:
        document = {**document, "status": {}}
    return document


# -- by kind ----------------------------------------------------------------------------------------------------------


def _fill_pool(document: JSON, spec: JSON) -> dict[str, Any]:
    size = BLOCK_SIZES[6 if ":" in str(spec.get("cidr")) else 4][2]
    return _filled(
        spec,
        blockSize=size,
        ipipMode="Never",
        vxlanMode="Never",
        nodeSelector="all()",
        allowedUses=["Workload", "Tunnel"],
        assignmentMode="Automatic",
    )


def _fill_policy(document: JSON, spec: JSON) -> dict[str, Any]:
    types = ["Ingress"] if spec.get("ingress") or not spec.get("egress") else []
    if spec.get("egress"):
        types.append("Egress")
    if spec.get("stagedAction") == "Delete":
        return _filled(spec, tier="default")
    return _filled(spec, tier="default", types=types)


def _fill_tier(document: JSON, spec: JSON) -> dict[str, Any]:
    metadata = document.get("metadata")
    name = str(metadata.get("name")) if isinstance(metadata, Mapping) else ""
    return _filled(spec, defaultAction=TIERS[name][1] if name in TIERS else "Deny")


def _filled(spec: JSON, **defaults: Any) -> dict[str, Any]:
    return {**spec, **{name: value for name, value in defaults.items() if not spec.get(name)}}


_FILLED: Mapping[str, Callable[[JSON, JSON], dict[str, Any]]] = {
    "IPPool": _fill_pool,
    "Tier": _fill_tier,
    **dict.fromkeys(
        ("NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy"), _fill_policy
    ),
}


def _labels_of(kind: str, document: JSON) -> dict[str, str]:
    """Labels by which upstream finds the resource again."""
    spec = document["spec"]
    if _FILLED.get(kind) is _fill_policy:
        return {TIER_LABEL: str(spec["tier"])}
    if kind != "WorkloadEndpoint":
        return {}
    metadata = document.get("metadata")
    found = {
        "namespace": metadata.get("namespace") if isinstance(metadata, Mapping) else None,
        "orchestrator": spec.get("orchestrator"),
        "serviceaccount": spec.get("serviceAccountName"),
    }
    return {_ENDPOINT_LABELS + name: value for name, value in found.items() if isinstance(value, str) and value}


def _with_durations(value: Any, names: frozenset[str], name: str = "") -> Any:
    """The value with its durations (the fields with these names) as Go writes them."""
    if isinstance(value, str):
        return normal_duration(value) if name in names else value
    if isinstance(value, Mapping):
        return {key: _with_durations(within, names, str(key)) for key, within in value.items()} if names else value
    return [_with_durations(within, names) for within in value] if isinstance(value, list) and names else value


def normal_duration(text: str) -> str:
    """A duration as Go writes it: "5m" is "5m0s", "90s" "1m30s", "1500ms" "1.5s". Any other text stays as it is."""
    parts = list(_PART.finditer(text))
    if text != "0" and (not parts or "".join(part[0] for part in parts) != text):
        return text  # validation reports it
    total = 0
    for part in parts:
        fraction, size = part[2] or "", _NANOSECONDS[part[3]]
        total += int(part[1]) * size + int(fraction or 0) * size // 10 ** len(fraction)
    for unit in ("ms", "µs", "ns"):
        if _NANOSECONDS[unit] <= total < _SECOND:
            return f"{_quotient(total, _NANOSECONDS[unit])}{unit}"
    minutes, rest = divmod(total, _NANOSECONDS["m"])
    hours, minutes = divmod(minutes, 60)
    shown = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return f"{shown}{_quotient(rest, _SECOND)}s"


def _quotient(count: int, unit: int) -> str:
    """``count`` divided by ``unit``, a power of ten, as a decimal without zeros at its end."""
    whole, rest = divmod(count, unit)
    fraction = str(rest + unit)[1:].rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)


def _with_as_numbers(kind: str, spec: JSON) -> dict[str, Any]:
    out = dict(spec)
    for path in _AS_NUMBERS.get(kind, ()):
        *above, name = path
        within: Any = out
        for step in above:
            inner = within.get(step)
            if not isinstance(inner, Mapping):
                within = None
                break
            within[step] = within = dict(inner)
        if isinstance(within, dict) and isinstance(within.get(name), str):
            number = as_number_of(within[name])
            within[name] = within[name] if number is None else number  # validation reports any other text
    return out
