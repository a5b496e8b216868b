"""PURE: what a pod and its namespace request with annotations.

Rule: all of them are parsed before anything is allocated; a wrong one is an error that names the annotation, its object
and its value. Quality-of-service annotations follow upstream: an invalid value is left out and reported.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any, TypeVar

from cni_calico.cni.netconf import NetConf
from cni_calico.errors import FeatureDisabled, InvalidAnnotation
from cni_calico.model.documents.fields import brief
from cni_calico.model.names import IDENTITY, STICKY
from cni_calico.model.qos import parse_qos
from cni_calico.model.resources import Address, Network

ParsedAnnotation = TypeVar("ParsedAnnotation")

PREFIX = "cni.projectcalico.org/"
_SHOWN_MAX = 120
_IDENTITY_MAX = 63
_ENDS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
_NAME = _ENDS | {"-", "."}
_FAMILIES = {"IPv4": 4, "IPv6": 6}


@dataclass(frozen=True, slots=True)
class PodRequest:
    """What a pod asks for.

    ``families``, ``pools4`` and ``pools6`` are None if the network configuration decides. ``addresses`` are assigned
    through IPAM, ``addresses_no_ipam`` are not. ``ignored`` names annotations that were left out. ``sticky``: its
    addresses outlast it, "true" or "keep"; ``identity``: under which name, "" for its StatefulSet's.
    """

    families: frozenset[int] | None = None
    pools4: tuple[str, ...] | None = None
    pools6: tuple[str, ...] | None = None
    addresses: tuple[Address, ...] = ()
    addresses_no_ipam: tuple[Address, ...] = ()
    floating_ips: tuple[Address, ...] = ()
    mac: bytes | None = None
    source_prefixes: tuple[Network, ...] = ()
    qos: Mapping[str, int] = field(default_factory=dict)
    namespace_labels: Mapping[str, str] | None = None
    ignored: tuple[str, ...] = ()
    sticky: str = ""
    identity: str = ""


def parse_pod_annotations(pod: Mapping[str, Any], namespace: Mapping[str, Any] | None, conf: NetConf) -> PodRequest:
    """The request of a pod (a Kubernetes object) in its namespace. Raises InvalidAnnotation, FeatureDisabled."""
    own, above = _Annotations("pod", pod), _Annotations("namespace", namespace or {})
    qos, ignored = parse_qos(own.values)
    addresses, direct = _parse_addresses(own, conf)
    sticky, identity = _parse_sticky(own, above)
    return PodRequest(
        families=_first((own, above), "ipFamilies", _parse_families),
        pools4=_first((own, above), "ipv4pools", _pools_of(4)),
        pools6=_first((own, above), "ipv6pools", _pools_of(6)),
        addresses=addresses,
        addresses_no_ipam=direct,
        floating_ips=_parse_floating(own, conf),
        mac=own.parse("hwAddr", _parse_mac),
        source_prefixes=own.parse("allowedSourcePrefixes", _parse_prefixes) or (),
        qos=qos,
        namespace_labels=None if namespace is None else labels_of(namespace),
        ignored=ignored,
        sticky=sticky,
        identity=identity,
    )


def labels_of(obj: Mapping[str, Any]) -> dict[str, str]:
    """The labels of a Kubernetes object."""
    labels = (obj.get("metadata") or {}).get("labels") or {}
    return {str(name): str(value) for name, value in labels.items()}


class _WrongAnnotation(ValueError):
    """The text says what was expected."""


class _Annotations:
    """The annotations of one object, and its name for messages."""

    def __init__(self, kind: str, obj: Mapping[str, Any]) -> None:
        metadata = obj.get("metadata") or {}
        self.values: Mapping[str, str] = metadata.get("annotations") or {}
        self.owner = f"{kind} {'/'.join(filter(None, (metadata.get('namespace'), metadata.get('name'))))}"

    def has(self, name: str) -> bool:
        """An empty annotation counts as absent, as upstream does it."""
        return bool(self.values.get(PREFIX + name))

    def parse(self, name: str, parse: Callable[[str], ParsedAnnotation]) -> ParsedAnnotation | None:
        if not self.has(name):
            return None
        try:
            return parse(self.values[PREFIX + name])
        except _WrongAnnotation as e:
            raise self.wrong(name, str(e)) from e

    def wrong(self, name: str, why: str) -> InvalidAnnotation:
        value = self.values[PREFIX + name]
        shown = value if len(value) <= _SHOWN_MAX else value[: _SHOWN_MAX - 3] + "..."
        return InvalidAnnotation(f"cannot use annotation {PREFIX}{name} of {self.owner}: {brief(why)}, got {shown!r}")


def _first(
    levels: tuple[_Annotations, ...], name: str, parse: Callable[[str], ParsedAnnotation]
) -> ParsedAnnotation | None:
    """The value of the first object that has the annotation."""
    for level in levels:
        if level.has(name):
            return level.parse(name, parse)
    return None


def _parse_list(text: str, what: str) -> list[str]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise _WrongAnnotation(f"expected a JSON list of {what}") from e
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise _WrongAnnotation(f"expected a JSON list of {what}")
    return found


def _parse_sticky(own: _Annotations, above: _Annotations) -> tuple[str, str]:
    """Whether a pod's addresses outlast it, and the name of its identity. Raises InvalidAnnotation."""
    identity = own.values.get(IDENTITY) or ""
    is_name = (
        len(identity) <= _IDENTITY_MAX and _NAME.issuperset(identity) and _ENDS.issuperset(identity[:1] + identity[-1:])
    )
    if identity and not is_name:
        raise InvalidAnnotation(
            f"cannot use annotation {IDENTITY} of {own.owner}: expected at most {_IDENTITY_MAX} lower case letters, "
            f"digits, '-' and '.', a letter or digit at each end, got {identity[:_SHOWN_MAX]!r}"
        )
    for level in (own, above):
        wish = level.values.get(STICKY) or ""
        if wish not in ("", "true", "false", "keep"):
            raise InvalidAnnotation(
                f"cannot use annotation {STICKY} of {level.owner}: expected true, false or keep, "
                f"got {wish[:_SHOWN_MAX]!r}"
            )
        if wish:
            return ("", "") if wish == "false" else (wish, identity)
    return ("true", identity) if identity else ("", "")


def _parse_families(text: str) -> frozenset[int]:
    names = _parse_list(text, "IPv4, IPv6")
    if not names or any(name not in _FAMILIES for name in names):
        raise _WrongAnnotation("expected a JSON list of IPv4, IPv6 or both")
    return frozenset(_FAMILIES[name] for name in names)


def _pools_of(family: int) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        pools = _parse_list(text, f"names or CIDRs of IPv{family} pools")
        for pool in pools:
            if "/" in pool or ":" in pool:
                _require_pool_cidr(pool, family)
            elif not pool:
                raise _WrongAnnotation("expected names or CIDRs of pools")
        return tuple(pools)

    return parse


def _require_pool_cidr(pool: str, family: int) -> None:
    try:
        network = ip_network(pool, strict=False)
    except ValueError as e:
        raise _WrongAnnotation(f'error parsing pool "{pool}": invalid CIDR address: {pool}') from e
    if network.version != family:
        raise _WrongAnnotation(f"expected IPv{family} pools")


def _parse_ips(text: str) -> tuple[Address, ...]:
    found: list[Address] = []
    for item in _parse_list(text, "IP addresses"):
        try:
            address = ip_address(item)
        except ValueError as e:
            raise _WrongAnnotation("expected a JSON list of IP addresses") from e
        zoned = isinstance(address, IPv6Address) and address.scope_id
        if zoned or address.is_unspecified or address.is_multicast or address.is_loopback:
            raise _WrongAnnotation("expected addresses that a pod can have")
        found.append(address)
    return tuple(found)


def _parse_one_per_family(text: str) -> tuple[Address, ...]:
    found = _parse_ips(text)
    if not found or len({address.version for address in found}) != len(found):
        raise _WrongAnnotation("expected a JSON list of one IPv4 address, one IPv6 address, or both")
    return found


def _parse_addresses(own: _Annotations, conf: NetConf) -> tuple[tuple[Address, ...], tuple[Address, ...]]:
    """Addresses asked for by ``ipAddrs`` and ``ipAddrsNoIpam``."""
    if own.has("ipAddrs") and own.has("ipAddrsNoIpam"):
        raise InvalidAnnotation(
            "can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time",
            details=f"remove one of them from {own.owner}",
        )
    if own.has("ipAddrsNoIpam") and not conf.ip_addrs_no_ipam:
        raise _disabled("ip_addrs_no_ipam", own)
    if own.has("ipAddrs") and not conf.ipam.is_calico:
        raise own.wrong("ipAddrs", f"ipAddrs is not compatible with configured IPAM: {conf.ipam.type}")
    return (
        own.parse("ipAddrs", _parse_one_per_family) or (),
        own.parse("ipAddrsNoIpam", _parse_one_per_family) or (),
    )


def _parse_floating(own: _Annotations, conf: NetConf) -> tuple[Address, ...]:
    if own.has("floatingIPs") and not conf.floating_ips:
        raise _disabled("floating_ips", own)
    return own.parse("floatingIPs", _parse_ips) or ()


def _disabled(feature: str, own: _Annotations) -> FeatureDisabled:
    return FeatureDisabled(
        f"requested feature is not enabled: {feature}",
        details=f"{own.owner} asks for it; enable it with feature_control.{feature} in the network configuration",
    )


def _parse_mac(text: str) -> bytes:
    """Six bytes as aa:bb:cc:dd:ee:ff, aa-bb-cc-dd-ee-ff or aabb.ccdd.eeff."""
    for separator, count, width in ((":", 6, 2), ("-", 6, 2), (".", 3, 4)):
        parts = text.split(separator)
        if len(parts) == count and all(len(part) == width for part in parts):
            break
    else:
        raise _WrongAnnotation("expected a MAC address")
    try:
        mac = bytes.fromhex("".join(parts))
    except ValueError as e:
        raise _WrongAnnotation("expected a MAC address") from e
    if len(mac) != 6 or mac[0] & 1 or not any(mac):
        raise _WrongAnnotation("expected the MAC address of one interface, neither zero nor a group address")
    return mac


def _parse_prefixes(text: str) -> tuple[Network, ...]:
    found = []
    for item in _parse_list(text, "networks in CIDR notation"):
        try:
            if "/" not in item:
                raise ValueError("no prefix length")
            found.append(ip_network(item, strict=False))
        except ValueError as e:
            raise _WrongAnnotation("expected a JSON list of networks in CIDR notation") from e
    return tuple(found)
