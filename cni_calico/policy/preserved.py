"""PURE: the graph's values as JSON and back, to keep the last valid version of a record that became unreadable. Rule:
parsing gives a value equal to the one that was rendered, or raises BadPreserved: each value is stored with its type,
and a type whose fields differ in this version is refused. Only the types listed here are ever built.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_interface,
    ip_network,
)
from typing import Any

from cni_calico.model.resources import IPNAT, EndpointPort, IPPool, Metadata, Node, Resource, WorkloadEndpoint
from cni_calico.model.selector_forms import normalized, parse_tree
from cni_calico.model.selectors import InvalidSelector, Selector
from cni_calico.policy.hosts import HostRecord
from cni_calico.policy.records import (
    Labelled,
    NamedPort,
    PolicyRecord,
    ProfileRecord,
    ServiceMembers,
    TierRecord,
)
from cni_calico.policy.sources import NodeSource, PortSource, SelectorSource, ServiceSource
from cni_calico.policy.wanted import PeerTexts, PolicyId, WantedHttp, WantedPolicy, WantedRule, WantedSide

KNOWN: Mapping[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        EndpointPort,
        HostRecord,
        IPNAT,
        IPPool,
        Labelled,
        Metadata,
        NamedPort,
        Node,
        NodeSource,
        PeerTexts,
        PolicyId,
        PolicyRecord,
        PortSource,
        ProfileRecord,
        Resource,
        SelectorSource,
        ServiceMembers,
        ServiceSource,
        TierRecord,
        WantedHttp,
        WantedPolicy,
        WantedRule,
        WantedSide,
        WorkloadEndpoint,
    )
}
_SEQUENCES: tuple[tuple[type[Any], str], ...] = ((tuple, "tuple"), (list, "list"), (frozenset, "set"))


class BadPreserved(ValueError):
    """A text that was not rendered by this module, or by a version of it with other types."""


def render_value(value: Any) -> Any:
    """A value as JSON (also Infinity); the first item of each list names its type. Raises TypeError for other
    values.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, (IPv4Network, IPv6Network)):
        return ["net", str(value)]
    if isinstance(value, (IPv4Interface, IPv6Interface)):  # which are addresses, too
        return ["interface", str(value)]
    if isinstance(value, (IPv4Address, IPv6Address)):
        return ["address", str(value)]
    if isinstance(value, Selector):
        return ["selector", value.text]
    if isinstance(value, Mapping):
        return ["map", *([render_value(key), render_value(one)] for key, one in value.items())]
    cls = type(value)
    if KNOWN.get(cls.__name__) is cls:  # of which some are tuples, too
        return ["record", cls.__name__, {name: render_value(getattr(value, name)) for name in _fields(cls)}]
    for sequence, name in _SEQUENCES:
        if isinstance(value, sequence):
            rendered = [render_value(one) for one in value]
            return [name, *(sorted(rendered, key=repr) if name == "set" else rendered)]
    raise TypeError(f"no form for a {cls.__name__}")


def parse_value(raw: Any) -> Any:
    """Raises BadPreserved."""
    if raw is None or isinstance(raw, (bool, int, float, str)):
        return raw
    try:
        kind, *rest = raw
        return _parse(kind, rest)
    except BadPreserved:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, InvalidSelector) as e:
        raise BadPreserved(f"not a value: {type(e).__name__}: {e}") from e


def _parse(kind: str, rest: list[Any]) -> Any:
    if kind == "bytes":
        return bytes.fromhex(rest[0])
    if kind == "net":
        return ip_network(rest[0])
    if kind == "interface":
        return ip_interface(rest[0])
    if kind == "address":
        return ip_address(rest[0])
    if kind == "selector":
        return normalized(parse_tree(rest[0]))
    if kind == "map":
        return {parse_value(key): parse_value(one) for key, one in rest}
    for cls, name in _SEQUENCES:
        if kind == name:
            return cls(map(parse_value, rest))
    if kind != "record":
        raise BadPreserved(f"unknown kind of value {kind!r}")
    name, fields = rest
    known = KNOWN[name]
    if known is PortSource and "port" in fields:  # an older version's: one set for each name
        fields = {"ports": ["set", fields["port"]], **{k: v for k, v in fields.items() if k != "port"}}
    if known is WantedSide and "texts" not in fields:  # an older version's, which had only the sets
        fields = {**fields, "texts": None}
    if known is WantedRule and isinstance(had_http := fields.get("http"), bool):
        if had_http:
            raise BadPreserved("a rule of another version, which did not keep what it asks of requests")
        fields = {**fields, "http": None}
    if set(fields) != set(_fields(known)):
        raise BadPreserved(f"a {name} of another version")
    return known(**{field: parse_value(one) for field, one in fields.items()})


def _fields(cls: type[Any]) -> tuple[str, ...]:
    """The names, which the classes of the frozen executables have, too."""
    names: tuple[str, ...] = cls.__match_args__
    return names
