"""PURE: parses a stored rule into the kernel's terms: families, protocols, ports, names of sets. Rule: if any
restriction of a rule cannot be understood, the whole policy is refused: without that restriction an Allow would allow
more than intended. Raises Wrong, which names the field. Source: upstream's conversion of rules for its data planes; the
results are the same.

An agent's start is mostly this, and most fields of most rules are absent: what is absent costs no text that names it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_network
from typing import Any, cast, get_args

from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    parse_list,
    parse_object,
    parse_text,
    parse_text_map,
    parse_texts,
    without_zone,
)
from cni_calico.model.kubernetes.policies import NODE_SELECTOR
from cni_calico.model.resources import Network
from cni_calico.model.selector_forms import normalized, parse_tree
from cni_calico.model.selectors import InvalidSelector, Selector
from cni_calico.policy.long_selectors import LONG
from cni_calico.policy.ports import ICMP, PortLists, PortRanges
from cni_calico.policy.sources import (
    ServiceSource,
    SetSource,
    node_source,
    peer_selecting,
    peer_selector,
    port_source,
    selector_source,
    service_source,
)
from cni_calico.policy.steps import Steps, finish
from cni_calico.policy.wanted import ANY_SIDE, Action, Direction, PeerTexts, WantedHttp, WantedRule, WantedSide

PROTOCOLS = {"tcp": 6, "udp": 17, "icmp": 1, "icmpv6": 58, "sctp": 132, "udplite": 136}
_ACTIONS = get_args(Action)
_RULE_FIELDS = frozenset(
    (
        "action",
        "ipVersion",
        "protocol",
        "notProtocol",
        "icmp",
        "notICMP",
        "source",
        "destination",
        "http",
        "metadata",
    )
)
_PEER_FIELDS = frozenset(
    (
        "nets",
        "notNets",
        "ports",
        "notPorts",
        "selector",
        "notSelector",
        "namespaceSelector",
        "serviceAccounts",
        "services",
        NODE_SELECTOR,
    )
)
_HTTP_FIELDS = frozenset(("methods", "paths"))
_EVERYWHERE = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}

_BOTH, _OF_ONE_FAMILY = (4, 6), frozenset(ICMP.values())

_NO_TEXTS = PeerTexts()
_SELECTOR_FIELDS = frozenset(("selector", "notSelector", "namespaceSelector", "serviceAccounts"))
_NOTHING: JSON = {}

SetSources = dict[str, SetSource]  # by their ids


def parse_rules(raw: Any, at: str, namespace: str, direction: Direction, sources: SetSources) -> tuple[WantedRule, ...]:
    """The rules of one direction; the sets that they name are added to ``sources``.

    ``namespace`` is the policy's, "" if it has none. Raises Wrong.
    """
    return finish(parsing_rules(raw, at, namespace, direction, sources))


def parsing_rules(
    raw: Any, at: str, namespace: str, direction: Direction, sources: SetSources
) -> Steps[tuple[WantedRule, ...]]:
    """As ``parse_rules``, a rule at each step, or a part of a long selector."""
    lists, found = PortLists(), list[WantedRule]()
    for i, item in enumerate(() if raw is None else parse_list(raw, at)):
        where = f"{at}[{i}]"
        rule = _parsing_rule(parse_object(item, where), where, namespace, direction, sources, lists)
        found.append((yield from rule))
        yield
    return tuple(found)


def _parsing_rule(
    raw: JSON, at: str, namespace: str, direction: Direction, sources: SetSources, lists: PortLists
) -> Steps[WantedRule]:
    _refuse_unknown(raw, _RULE_FIELDS, at)
    action = raw.get("action")
    if action not in _ACTIONS:
        raise Wrong(f"{at}.action", "one of " + ", ".join(_ACTIONS), action)
    protocol = parse_protocol(named, f"{at}.protocol") if (named := raw.get("protocol")) is not None else None
    not_protocol = parse_protocol(named, f"{at}.notProtocol") if (named := raw.get("notProtocol")) is not None else None
    source = destination = ANY_SIDE
    if peer := _field(raw, "source", at):
        source = _common_side(peer, f"{at}.source", namespace, protocol, sources, lists) or (
            yield from _parsing_side(peer, f"{at}.source", namespace, protocol, False, sources, lists)
        )
    if peer := _field(raw, "destination", at):
        destination = _common_side(peer, f"{at}.destination", namespace, protocol, sources, lists) or (
            yield from _parsing_side(peer, f"{at}.destination", namespace, protocol, True, sources, lists)
        )
    icmp = _parse_icmp(raw, "icmp", at, protocol) if "icmp" in raw else None
    not_icmp = _parse_icmp(raw, "notICMP", at, protocol) if "notICMP" in raw else None
    annotations: Mapping[str, str] = {}
    if metadata := _field(raw, "metadata", at):
        annotations = parse_text_map(metadata.get("annotations") or {}, f"{at}.metadata.annotations")
    is_possible = protocol is None or protocol != not_protocol
    return WantedRule(
        action=cast(Action, action),
        families=_families(raw, at, protocol, source, destination) if is_possible else (),
        protocol=protocol,
        not_protocol=not_protocol if protocol is None else None,
        icmp=icmp,
        not_icmp=not_icmp,
        source=source,
        destination=destination,
        annotations=tuple(sorted(annotations.items())),
        http=_parse_http(named, f"{at}.http") if (named := raw.get("http")) is not None else None,
    )


def _parse_http(raw: Any, at: str) -> WantedHttp | None:
    """None if it asks for nothing."""
    http = parse_object(raw, at)
    _refuse_unknown(http, _HTTP_FIELDS, at)
    methods = parse_texts(http.get("methods") or (), f"{at}.methods")
    paths: dict[str, list[str]] = {"exact": [], "prefix": []}
    for i, item in enumerate(parse_list(http.get("paths") or [], f"{at}.paths")):
        where = f"{at}.paths[{i}]"
        path = {field: text for field, text in parse_object(item, where).items() if text not in (None, "")}
        if len(path) != 1 or not path.keys() <= paths.keys():
            raise Wrong(where, 'either "exact" or "prefix"', item)
        ((field, text),) = path.items()
        paths[field].append(parse_text(text, f"{where}.{field}"))
    return WantedHttp(methods, tuple(paths["exact"]), tuple(paths["prefix"])) or None


def _families(raw: JSON, at: str, protocol: int | None, source: WantedSide, destination: WantedSide) -> tuple[int, ...]:
    """The families in which the rule exists at all."""
    version = raw.get("ipVersion")
    if version is not None and (version not in (4, 6) or isinstance(version, bool)):
        raise Wrong(f"{at}.ipVersion", "4 or 6", version)
    has_nets = source.nets or source.not_nets or destination.nets or destination.not_nets
    if version is None and protocol not in _OF_ONE_FAMILY and not has_nets:
        return _BOTH
    found = []
    for family in (4, 6):
        if version not in (None, family) or protocol == ICMP[10 - family]:
            continue
        if _exists(source, family) and _exists(destination, family):
            found.append(family)
    return tuple(found)


def _exists(side: WantedSide, family: int) -> bool:
    """A rule with networks exists only in the families of its networks, negated or not."""
    for nets in (side.nets, side.not_nets):
        if nets and not any(net.version == family for net in nets):
            return False
    return _EVERYWHERE[family] not in side.not_nets


def _refuse_unknown(raw: JSON, known: frozenset[str], at: str) -> None:
    if raw.keys() <= known:
        return
    for field in raw:
        if field not in known:
            raise Wrong(f"{at}.{field}", "no such field (a newer release may have written this)", raw[field])


def _field(raw: JSON, field: str, at: str) -> JSON:
    """A field that is an object; empty if it is absent."""
    found = raw.get(field)
    return _NOTHING if found is None else parse_object(found, f"{at}.{field}")


# -- protocols and ports ----------------------------------------------------------------------------------------------


def parse_protocol(raw: Any, at: str) -> int:
    number = PROTOCOLS.get(raw.lower()) if isinstance(raw, str) else None
    if number is None and not isinstance(raw, bool):
        text = str(raw)
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 4 else None
    if number is None or not 1 <= number <= 255:
        raise Wrong(at, "the name of a protocol, or a number from 1 to 255", raw)
    return number


def _parse_icmp(rule: JSON, name: str, of: str, protocol: int | None) -> tuple[int, int | None] | None:
    icmp = _field(rule, name, of)
    if not icmp:
        return None
    at = f"{of}.{name}"
    kind, code = icmp.get("type"), icmp.get("code")
    for field, value in (("type", kind), ("code", code)):
        if value is not None and (type(value) is not int or not 0 <= value <= 255):
            raise Wrong(f"{at}.{field}", "a number from 0 to 255", value)
    if kind is None:
        if code is not None:
            raise Wrong(f"{at}.code", "a type in addition", code)
        return None
    if protocol not in ICMP.values():
        raise Wrong(at, "a rule whose protocol is ICMP or ICMPv6", icmp)
    return kind, code


# -- peers ------------------------------------------------------------------------------------------------------------


def parse_nets(raw: Any, at: str) -> tuple[Network, ...]:
    """Networks, in order, each once; an address is one too. Bits beyond the prefix are dropped."""
    if raw is None:
        return ()
    return tuple(dict.fromkeys(parse_net(item, at, i) for i, item in enumerate(parse_list(raw, at))))


def parse_net(item: Any, at: str, place: int) -> Network:
    """One of a list, at this place of it. Raises Wrong."""
    try:
        return ip_network(without_zone(parse_text(item, f"{at}[{place}]")), strict=False)
    except Wrong:
        raise
    except ValueError as e:
        raise Wrong(f"{at}[{place}]", "a network in CIDR notation, or an address", item) from e


@lru_cache(maxsize=4096)
def _shared(side: WantedSide) -> WantedSide:
    """The same object for all equal sides: many rules have the same ports."""
    return side


def _parsing_side(
    raw: JSON,
    at: str,
    namespace: str,
    protocol: int | None,
    is_destination: bool,
    sources: SetSources,
    lists: PortLists,
) -> Steps[WantedSide]:
    _refuse_unknown(raw, _PEER_FIELDS, at)
    selected, excluded = yield from _parsing_selectors(raw, at, namespace)
    ranges, names = lists.parse(raw.get("ports"), f"{at}.ports", protocol)
    not_ranges, not_names = lists.parse(raw.get("notPorts"), f"{at}.notPorts", protocol)
    port_sets = [port_source(selected, names, protocol)] if names else []
    not_port_sets = [port_source(selected, not_names, protocol)] if not_names else []
    sets: list[SetSource] = []
    if selected is not None and not (port_sets and not ranges):  # a named port's set includes the selector already
        sets.append(selector_source(selected))
    not_sets = [] if excluded is None else [selector_source(excluded)]
    service_sets: list[SetSource] = []
    service = _parse_service(raw, at, namespace, is_destination)
    if service is not None:
        (service_sets if is_destination else sets).append(service)
    if NODE_SELECTOR in raw:
        if names or not_names:
            raise Wrong(f"{at}.ports", f"numbers where there is a {NODE_SELECTOR}", raw.get("ports"))
        sets.append(_parse_nodes(raw, at))
    for source in (*port_sets, *not_port_sets, *sets, *not_sets, *service_sets):
        sources[source.id] = source
    side = WantedSide(
        nets=parse_nets(raw.get("nets"), f"{at}.nets"),
        not_nets=parse_nets(raw.get("notNets"), f"{at}.notNets"),
        ports=ranges,
        port_sets=_ids(port_sets),
        not_ports=not_ranges,
        not_port_sets=_ids(not_port_sets),
        sets=_ids(sets),
        not_sets=_ids(not_sets),
        service_sets=_ids(service_sets),
        texts=_texts(raw, service),
    )
    listed = len(side.nets) + len(side.not_nets) + len(side.ports) + len(side.not_ports)
    return side if listed > 64 or side.set_ids() else _shared(side)  # long ones would outlive their rules


def _common_side(
    raw: JSON, at: str, namespace: str, protocol: int | None, sources: SetSources, lists: PortLists
) -> WantedSide | None:
    """A side that has only a selector, or only numbers of ports, as most have: one object for all that are equal. None
    for any other, and for what cannot be understood.
    """
    if len(raw) != 1:
        return None
    ((field, value),) = raw.items()
    if field == "ports" and value is not None:
        ranges, names = lists.parse(value, f"{at}.ports", protocol)
        return None if names else _side_of_ports(ranges)
    if field != "selector" or not isinstance(value, str) or not 0 < len(value) < LONG:
        return None
    try:
        side, source = side_of_selector(value, namespace)
    except InvalidSelector:
        return None
    sources[source.id] = source
    return side


@lru_cache(maxsize=4096)
def _side_of_ports(ranges: PortRanges) -> WantedSide:
    return WantedSide(ports=ranges)


@lru_cache(maxsize=1024)
def side_of_selector(selector: str, namespace: str) -> tuple[WantedSide, SetSource]:
    """Raises InvalidSelector."""
    selected = peer_selector(selector, "", "", (), "", namespace)
    assert selected is not None  # there is a selector
    source = selector_source(selected)
    return WantedSide(sets=(source.id,), texts=PeerTexts(selector)), source


def _texts(raw: JSON, service: SetSource | None) -> PeerTexts | None:
    """What of a side has been parsed, as it is written."""
    fields = ("selector", "notSelector", "namespaceSelector")
    selected, excluded, namespaces = (raw.get(field) or "" for field in fields)
    accounts = raw.get("serviceAccounts") or _NOTHING
    names, wanted = tuple(accounts.get("names") or ()), accounts.get("selector") or ""
    named = (service.name, service.namespace) if isinstance(service, ServiceSource) else ("", "")
    return _shared_texts(PeerTexts(selected, excluded, namespaces, names, wanted, *named))


@lru_cache(maxsize=4096)
def _shared_texts(texts: PeerTexts) -> PeerTexts | None:
    """The same object for all equal ones: most rules of a cluster say one of a few things."""
    return None if texts == _NO_TEXTS else texts


def _ids(sources: Iterable[SetSource]) -> tuple[str, ...]:
    return tuple(source.id for source in sources)


def _parsing_selectors(raw: JSON, at: str, namespace: str) -> Steps[tuple[Selector | None, Selector | None]]:
    """The selectors of what is selected and, where nothing is, of what is excluded."""
    if raw.keys().isdisjoint(_SELECTOR_FIELDS):
        return None, None
    texts = {
        field: parse_text(found, f"{at}.{field}") if (found := raw.get(field)) else ""
        for field in ("selector", "notSelector", "namespaceSelector")
    }
    accounts, names, wanted = _field(raw, "serviceAccounts", at), tuple[str, ...](), ""
    if accounts:
        names = parse_texts(accounts.get("names") or (), f"{at}.serviceAccounts.names")
        wanted = parse_text(accounts.get("selector") or "", f"{at}.serviceAccounts.selector")
    try:
        selected = yield from peer_selecting(
            texts["selector"], texts["notSelector"], texts["namespaceSelector"], names, wanted, namespace
        )
        only_excluded = selected is None and texts["notSelector"]
        excluded = (yield from peer_selecting(texts["notSelector"], "", "", (), "", "")) if only_excluded else None
    except InvalidSelector as e:
        raise Wrong(at, f"selectors that can be read ({e})", dict(raw)) from e
    return selected, excluded


def _parse_nodes(side: JSON, of: str) -> SetSource:
    at = f"{of}.{NODE_SELECTOR}"
    text = parse_text(side[NODE_SELECTOR], at)
    try:
        return node_source(normalized(parse_tree(text)))
    except InvalidSelector as e:
        raise Wrong(at, f"a selector that can be read ({e})", text) from e


def _parse_service(side: JSON, of: str, namespace: str, with_ports: bool) -> SetSource | None:
    service = _field(side, "services", of)
    if not service:
        return None
    at = f"{of}.services"
    name = parse_text(service.get("name") or "", f"{at}.name")
    own = parse_text(service.get("namespace") or "", f"{at}.namespace") or namespace
    if not name or not own:
        raise Wrong(at, "a service's name and namespace", service)
    return service_source(own, name, with_ports)
