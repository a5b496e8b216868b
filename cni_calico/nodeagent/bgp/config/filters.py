"""PURE: BGPFilter: rules as values, and as BIRD functions that accept, reject or fall through.

Rule: a filter with any wrong rule is wrong as a whole, and the peerings that name it are left out, because leaving out
one rule could announce what it was meant to hold back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.model.documents.fields import Wrong, parse_list, parse_network, parse_object
from cni_calico.model.resources import Network, Resource
from cni_calico.nodeagent.bgp.config.configuration import PRIORITY_MAX
from cni_calico.nodeagent.bgp.config.findings import BgpProblem, SpecReader
from cni_calico.nodeagent.bgp.config.lexical import render_block, render_symbol, render_text
from cni_calico.nodeagent.bgp.config.values import (
    Community,
    parse_as,
    parse_choice,
    parse_community,
    parse_in,
    parse_interface_pattern,
)

PREFERENCE, PREFERENCE_RAISED = 100, 200  # of BGP routes; one with 200 replaces a route of this node
LOCAL_PREF_TOP = 2147483647  # a route's local preference is this number less its priority
_OPERATORS = {"Equal": "=", "NotEqual": "!=", "In": "~", "NotIn": "!~"}


@dataclass(frozen=True, slots=True)
class FilterOperation:
    """Exactly one of the three is set."""

    add_community: Community | None = None
    prepend: tuple[int, ...] = ()
    set_priority: int = 0


@dataclass(frozen=True, slots=True)
class Rule:
    """A route matches if every condition that is set holds; ``lengths`` are the minimum and maximum prefix length."""

    accept: bool
    cidr: Network | None = None
    operator: str = ""
    lengths: tuple[int, int] | None = None
    from_peers: bool = False
    interface: str = ""
    peer_type: str = ""
    community: Community | None = None
    as_path_prefix: tuple[int, ...] = ()
    priority: int = 0
    operations: tuple[FilterOperation, ...] = ()


@dataclass(frozen=True, slots=True)
class BgpFilter:
    """``rules`` by direction ("import", "export") and family (4, 6)."""

    name: str
    rules: Mapping[tuple[str, int], tuple[Rule, ...]]

    def has(self, direction: str, version: int) -> bool:
        return bool(self.rules.get((direction, version)))


# -- parsing ----------------------------------------------------------------------------------------------------------


def _parse_as_list(raw: Any, at: str) -> tuple[int, ...]:
    return tuple(parse_as(item, f"{at}[{i}]") for i, item in enumerate(parse_list(raw, at)))


def _parse_only_community(raw: Any, at: str) -> Community:
    values = parse_list(parse_object(raw, at).get("values"), f"{at}.values")
    if len(values) != 1:
        raise Wrong(f"{at}.values", "exactly one community", values)
    return parse_community(values[0], f"{at}.values[0]")


def _parse_operation(raw: Any, at: str) -> FilterOperation:
    spec = parse_object(raw, at)
    if len(spec) == 1:
        ((name, value),) = spec.items()
        inner = parse_object(value, f"{at}.{name}")
        if name == "addCommunity":
            return FilterOperation(add_community=parse_community(inner.get("value"), f"{at}.{name}.value"))
        if name == "prependASPath":
            prefix = _parse_as_list(inner.get("prefix"), f"{at}.{name}.prefix")
            if prefix and all(prefix):
                return FilterOperation(prepend=prefix)
        if name == "setPriority":
            return FilterOperation(set_priority=parse_in(1, PRIORITY_MAX)(inner.get("value"), f"{at}.{name}.value"))
    raise Wrong(at, "one of addCommunity, prependASPath, setPriority", dict(spec))


def _parse_lengths(raw: Any, at: str, cidr: Network) -> tuple[int, int]:
    spec = parse_object(raw, at)
    parse = parse_in(0, cidr.max_prefixlen)
    low, high = cidr.prefixlen, int(cidr.max_prefixlen)
    if spec.get("min") is not None:
        low = max(low, parse(spec["min"], f"{at}.min"))
    if spec.get("max") is not None:
        high = min(high, parse(spec["max"], f"{at}.max"))
    if low > high:
        raise Wrong(at, f"prefix lengths from {cidr.prefixlen} up, min not above max", dict(spec))
    return low, high


def _parse_cidr(raw: Any, at: str, version: int) -> Network | None:
    if raw == "":
        return None
    cidr = parse_network(raw, at)
    if cidr.version != version:
        raise Wrong(at, f"an IPv{version} network", raw)
    return cidr


def _read_rule(reader: SpecReader, version: int) -> Rule:
    """The rule; if the reader has problems, do not use its value."""
    cidr: Network | None = reader.read("cidr", lambda raw, at: _parse_cidr(raw, at, version), None)
    operator = reader.read("matchOperator", parse_choice(*_OPERATORS), "")
    lengths: tuple[int, int] | None = None
    if cidr is not None:
        network = cidr
        lengths = reader.read("prefixLength", lambda raw, at: _parse_lengths(raw, at, network), None)
    elif reader.read("prefixLength", parse_object, None) is not None:
        reader.error(f"{reader.at}prefixLength needs a cidr")
    if (cidr is None) != (not operator):
        reader.error(f"{reader.at}cidr and matchOperator need one another")
    if lengths is not None and operator not in ("In", "NotIn"):
        reader.error(f"{reader.at}prefixLength goes with matchOperator In or NotIn only")
    action = reader.read("action", parse_choice("Accept", "Reject"), "")
    if not action:
        reader.error(f"{reader.at}action is missing or wrong")
    operations = reader.read_each("operations", _parse_operation)
    if operations and action == "Reject":
        reader.error(f"{reader.at}operations go with action Accept only")
    rule = Rule(
        accept=action == "Accept",
        cidr=cidr,
        operator=operator,
        lengths=lengths,
        from_peers=bool(reader.read("source", parse_choice("RemotePeers"), "")),
        interface=reader.read("interface", lambda raw, at: raw and parse_interface_pattern(raw, at), "") or "",
        peer_type=reader.read("peerType", parse_choice("eBGP", "iBGP"), ""),
        community=reader.read("communities", _parse_only_community, None),
        as_path_prefix=reader.read("asPathPrefix", _parse_as_list, ()),
        priority=reader.read("priority", parse_in(1, PRIORITY_MAX), 0),
        operations=operations,
    )
    for name in sorted(set(reader.spec) - reader.known):
        reader.error(f"{reader.at}{name} is not known to this version: without it the rule would mean something else")
    return rule


def parse_filter(resource: Resource) -> tuple[BgpFilter | None, tuple[BgpProblem, ...]]:
    """Returns the filter (None if one of its rules is wrong) and the problems found in it."""
    reader = SpecReader(f"BGPFilter {resource.metadata.name}", resource.spec)
    rules: dict[tuple[str, int], tuple[Rule, ...]] = {}
    for direction in ("import", "export"):
        for version in (4, 6):
            field = f"{direction}V{version}"
            specs = reader.read_each(field, parse_object)
            rules[direction, version] = tuple(
                _read_rule(reader.inner(spec, f"{field}[{i}]"), version) for i, spec in enumerate(specs)
            )
    reader.done()
    bad = reader.failed
    return None if bad else BgpFilter(resource.metadata.name, rules), tuple(reader.problems)


# -- rendering --------------------------------------------------------------------------------------------------------


def render_community_add(community: Community) -> str:
    attribute = "bgp_large_community" if community.large else "bgp_community"
    return f"{attribute}.add(({', '.join(map(str, community.parts))}));"


def _render_conditions(rule: Rule) -> list[str]:
    out = []
    if rule.peer_type:
        out.append("same_as" if rule.peer_type == "iBGP" else "!same_as")
    if rule.cidr is not None:
        low, high = rule.lengths or (0, 0)
        what = f"[ {rule.cidr}{{{low},{high}}} ]" if rule.lengths else str(rule.cidr)
        out.append(f"(net {_OPERATORS[rule.operator]} {what})")
    if rule.from_peers:
        out.append("(source = RTS_BGP)")
    if rule.interface:
        out.append(f"(defined(ifname) && (ifname ~ {render_text(rule.interface)}))")
    if rule.community is not None:
        attribute = "bgp_large_community" if rule.community.large else "bgp_community"
        out.append(f"(({', '.join(map(str, rule.community.parts))}) ~ {attribute})")
    if rule.as_path_prefix:
        out.append(f"(bgp_path ~ [= {' '.join(map(str, rule.as_path_prefix))} * =])")
    if rule.priority:
        out.append(f"(krt_metric = {rule.priority})")
    return out


def _render_operation(operation: FilterOperation, normal: int) -> list[str]:
    if operation.add_community is not None:
        return [render_community_add(operation.add_community)]
    if operation.prepend:
        # each prepend puts its number in front of the path: the first number comes last
        return [f"bgp_path.prepend({number});" for number in reversed(operation.prepend)]
    priority = operation.set_priority
    return [
        f"krt_metric = {priority};",
        f"bgp_local_pref = {LOCAL_PREF_TOP - priority};",
        f"preference = {PREFERENCE_RAISED if priority < normal else PREFERENCE};",
    ]


def _render_rule(rule: Rule, normal: int) -> str:
    statements = [line for operation in rule.operations for line in _render_operation(operation, normal)]
    statements.append("accept;" if rule.accept else "reject;")
    conditions = _render_conditions(rule)
    body = " ".join(statements)
    return f"if ({' && '.join(conditions)}) then {{ {body} }}" if conditions else body


def filter_symbol(name: str, direction: str, version: int) -> str:
    return render_symbol("bgp_", name, f"_{direction}FilterV{version}")


def render_filter(value: BgpFilter, direction: str, version: int, normal: int) -> list[str]:
    """The function for one direction and family; ``normal`` is the priority of ordinary routes."""
    head = f"function {filter_symbol(value.name, direction, version)}(bool same_as)"
    return render_block(head, (_render_rule(rule, normal) for rule in value.rules[direction, version]))
