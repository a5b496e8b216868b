"""Whether a rule of policy sync fits a request: addresses, ports, sets, who is at each end, method and path.

Rule: three answers. Where it cannot be known (a set that is not there, a name that cannot be read, a path with two
readings, a field of a newer agent) the answer is None, and whoever asks must not open for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from google.protobuf.unknown_fields import UnknownFieldSet

from cni_calico.alp.address_sets import SyncedSet
from cni_calico.alp.asked import AskedPeer, AskedRequest
from cni_calico.alp.paths import clean_path, clean_rule_path, is_within
from cni_calico.model.selector_forms import NAMESPACE, read_specially
from cni_calico.model.selectors import InvalidSelector, Labels, Selector, parse_selector
from cni_calico.policy.rules import PROTOCOLS

_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
_PRINCIPAL = re.compile(rf"spiffe://[^/]+/ns/(?P<namespace>{_NAME})/sa/(?P<account>{_NAME})")
_RULE_ID = 201  # a field that is only shown
AnyNetwork = IPv4Network | IPv6Network


@dataclass(slots=True)
class KnownWorld:
    """What rules refer to. ``accounts``: by (namespace, name)."""

    sets: dict[str, SyncedSet]
    namespaces: dict[str, Labels]
    accounts: dict[tuple[str, str], Labels]


@dataclass(frozen=True, slots=True)
class _RuleSide:
    """Nets, ports and sets of a rule's source or destination, and who may be there."""

    nets: tuple[AnyNetwork, ...]
    not_nets: tuple[AnyNetwork, ...]
    ports: tuple[tuple[int, int], ...]
    port_sets: tuple[str, ...]
    not_ports: tuple[tuple[int, int], ...]
    not_port_sets: tuple[str, ...]
    sets: tuple[str, ...]
    not_sets: tuple[str, ...]
    service_sets: tuple[str, ...]
    namespace: str  # "": in any
    namespace_selector: str
    account_selector: str
    accounts: frozenset[str]


@dataclass(frozen=True, slots=True)
class RequestRule:
    """``unclear``: it has fields that are not known here."""

    action: str
    ip_version: int
    protocol: int | None
    not_protocol: int | None
    of_icmp: bool
    source: _RuleSide
    destination: _RuleSide
    methods: frozenset[str]
    exact: frozenset[str]
    prefixes: tuple[str, ...]
    has_paths: bool
    unclear: bool

    def fits(self, asked: AskedRequest, known: KnownWorld) -> bool | None:
        """None: it cannot be known."""
        answers = (
            self._fits_packet(asked),
            _side_fits(self.source, asked.source, asked.protocol, known),
            _side_fits(self.destination, asked.destination, asked.protocol, known),
            self._fits_http(asked),
            None if self.unclear else True,
        )
        return _all(answers)

    def _fits_packet(self, asked: AskedRequest) -> bool:
        if self.of_icmp or (self.protocol is not None and self.protocol != asked.protocol):
            return False
        if self.not_protocol is not None and self.not_protocol == asked.protocol:
            return False
        of = {peer.address.version for peer in (asked.source, asked.destination) if peer.address is not None}
        return not self.ip_version or not of or of == {self.ip_version}

    def _fits_http(self, asked: AskedRequest) -> bool | None:
        """What is no HTTP request has neither method nor path, and fits."""
        if self.methods and asked.method and "*" not in self.methods and asked.method not in self.methods:
            return False
        if not self.has_paths or not asked.path:
            return True
        path = clean_path(asked.path)
        if path is None:
            return None
        return path in self.exact or any(is_within(path, prefix) for prefix in self.prefixes)


# -- reading ----------------------------------------------------------------------------------------------------------


def read_rule(rule: Any, namespace: str) -> RequestRule:
    """``rule``: a message Rule; ``namespace``: of its policy. Raises ValueError."""
    paths = rule.http_match.paths
    exact = {clean_rule_path(one.exact) for one in paths if one.WhichOneof("path_match") == "exact"}
    prefixes = {clean_rule_path(one.prefix) for one in paths if one.WhichOneof("path_match") == "prefix"}
    icmp = rule.WhichOneof("icmp")
    return RequestRule(
        action=rule.action.lower(),
        ip_version=rule.ip_version,
        protocol=_read_protocol(rule, "protocol"),
        not_protocol=_read_protocol(rule, "not_protocol"),
        of_icmp=icmp is not None,
        source=_read_side(rule, "src", namespace),
        destination=_read_side(rule, "dst", namespace),
        methods=frozenset(rule.http_match.methods),
        exact=frozenset(path for path in exact if path is not None),
        prefixes=tuple(sorted(path for path in prefixes if path is not None)),
        has_paths=bool(paths),
        unclear=_has_unknown(rule),
    )


def _has_unknown(rule: Any) -> bool:
    parts = [rule, rule.http_match, rule.src_service_account_match, rule.dst_service_account_match]
    parts += rule.http_match.paths
    return any(field.field_number != _RULE_ID for part in parts for field in _unknown(part))


def _unknown(part: Any) -> Any:
    return UnknownFieldSet(part)


def _read_protocol(rule: Any, field: str) -> int | None:
    if not rule.HasField(field):
        return None
    protocol = getattr(rule, field)
    if protocol.WhichOneof("number_or_name") == "number":
        return int(protocol.number)
    number = PROTOCOLS.get(protocol.name.lower())
    if number is None:
        raise ValueError(f"there is no protocol {protocol.name!r}")
    return number


def _read_side(rule: Any, side: str, namespace: str) -> _RuleSide:
    """Whoever is chosen by labels or accounts is in the policy's namespace, unless the rule chooses namespaces."""

    def field(name: str) -> Any:
        return getattr(rule, name.format(side))

    match = field("{}_service_account_match")
    chosen = field("original_{}_selector") or field("original_not_{}_selector") or match.names or match.selector
    of_namespaces = field("original_{}_namespace_selector")
    for text in (of_namespaces, match.selector):
        parse_selector(text)
    return _RuleSide(
        nets=_nets(field("{}_net")),
        not_nets=_nets(field("not_{}_net")),
        ports=_ports(field("{}_ports")),
        port_sets=tuple(field("{}_named_port_ip_set_ids")),
        not_ports=_ports(field("not_{}_ports")),
        not_port_sets=tuple(field("not_{}_named_port_ip_set_ids")),
        sets=tuple(field("{}_ip_set_ids")),
        not_sets=tuple(field("not_{}_ip_set_ids")),
        service_sets=tuple(rule.dst_ip_port_set_ids) if side == "dst" else (),
        namespace=namespace if chosen and not of_namespaces else "",
        namespace_selector=of_namespaces,
        account_selector=match.selector,
        accounts=frozenset(match.names),
    )


def _nets(texts: Iterable[str]) -> tuple[AnyNetwork, ...]:
    return tuple(ip_network(text, strict=False) for text in texts)


def _ports(ranges: Iterable[Any]) -> tuple[tuple[int, int], ...]:
    return tuple((one.first, one.last) for one in ranges)


# -- one side ---------------------------------------------------------------------------------------------------------


def _side_fits(side: _RuleSide, peer: AskedPeer, protocol: int, known: KnownWorld) -> bool | None:
    return _all(
        (_address_fits(side, peer, known), _port_fits(side, peer, protocol, known), _identity_fits(side, peer, known))
    )


def _address_fits(side: _RuleSide, peer: AskedPeer, known: KnownWorld) -> bool | None:
    if not (side.nets or side.not_nets or side.sets or side.not_sets):
        return True
    address = peer.address
    if address is None or not known.sets.keys() >= {*side.sets, *side.not_sets}:
        return None
    return (
        (not side.nets or any(address in net for net in side.nets))
        and not any(address in net for net in side.not_nets)
        and all(known.sets[name].holds(address) for name in side.sets)
        and not any(known.sets[name].holds(address) for name in side.not_sets)
    )


def _port_fits(side: _RuleSide, peer: AskedPeer, protocol: int, known: KnownWorld) -> bool | None:
    named = {*side.port_sets, *side.not_port_sets, *side.service_sets}
    if not (named or side.ports or side.not_ports):
        return True
    address, port = peer.address, peer.port
    if address is None or port is None or not known.sets.keys() >= named:
        return None

    def in_any(ranges: tuple[tuple[int, int], ...], names: tuple[str, ...]) -> bool:
        in_ranges = any(low <= port <= high for low, high in ranges)
        return in_ranges or any(known.sets[name].holds_port(address, protocol, port) for name in names)

    return (
        (not (side.ports or side.port_sets) or in_any(side.ports, side.port_sets))
        and not in_any(side.not_ports, side.not_port_sets)
        and all(known.sets[name].holds_port(address, protocol, port) for name in side.service_sets)
    )


def _identity_fits(side: _RuleSide, peer: AskedPeer, known: KnownWorld) -> bool | None:
    """Whoever says nothing by a certificate is known by the address alone, and fits."""
    asks = side.namespace or side.namespace_selector or side.accounts or side.account_selector
    if not asks or not peer.principal:
        return True
    found = _PRINCIPAL.fullmatch(peer.principal)
    if found is None:
        return None
    namespace, account = found["namespace"], found["account"]
    if side.namespace and namespace != side.namespace:
        return False
    if side.accounts and account not in side.accounts:
        return False
    return _all(
        (
            _labels_fit(side.namespace_selector, known.namespaces.get(namespace), namespace),
            _labels_fit(side.account_selector, known.accounts.get((namespace, account)), namespace),
        )
    )


def _labels_fit(text: str, labels: Mapping[str, str] | None, namespace: str) -> bool | None:
    """``labels`` None: there is no such object, as far as is known."""
    if not text:
        return True
    return None if labels is None else _special(text).matches({**labels, NAMESPACE: namespace})


@lru_cache(maxsize=1024)
def _special(text: str) -> Selector:
    """``all()`` is any namespace, ``global()`` none."""
    return Selector(text, read_specially(parse_selector(text).tree, NAMESPACE))


def _all(answers: Iterable[bool | None]) -> bool | None:
    """False if one is; else None if one is."""
    found: bool | None = True
    for answer in answers:
        if answer is False:
            return False
        if answer is None:
            found = None
    return found


InvalidRule = (ValueError, InvalidSelector)
