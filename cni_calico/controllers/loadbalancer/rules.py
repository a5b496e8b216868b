"""PURE: what a Service asks of the load-balancer controller.

Rule: a request is parsed completely before any address is assigned; an unusable one is a BadRequest with a text for the
Service's owner. Source: upstream's annotations.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.ipam.pools import LOAD_BALANCER, pool_of
from cni_calico.model.documents.fields import brief
from cni_calico.model.resources import Address, IPPool

CLASS = "calico"
ALL_SERVICES, REQUESTED_ONLY = "AllServices", "RequestedServicesOnly"
POOLS = {4: "projectcalico.org/ipv4pools", 6: "projectcalico.org/ipv6pools"}
ADDRESSES = "projectcalico.org/loadBalancerIPs"
_FAMILIES = {"IPv4": 4, "IPv6": 6}


class BadRequest(ValueError):
    """A Service asks for something impossible; the text is for its owner."""


@dataclass(frozen=True, slots=True)
class LoadBalancerService:
    """The part of a Service that matters for addresses. ``families`` are in the order of its spec; ``ingress`` are the
    addresses in its status.
    """

    namespace: str
    name: str
    uid: str
    type: str
    load_balancer_class: str | None
    families: tuple[int, ...]
    annotations: Mapping[str, str]
    ingress: tuple[str, ...]

    @property
    def handle_id(self) -> str:
        return handle_of(self.name, self.namespace, self.uid)

    @property
    def attributes(self) -> dict[str, str]:
        """The owner as recorded with each address, without the timestamp."""
        return {"service": self.name, "namespace": self.namespace, "type": self.type}


def handle_of(name: str, namespace: str, uid: str) -> str:
    digest = hashlib.sha256(f"{name}-{namespace}-{uid}".lower().encode()).digest()
    text = base64.urlsafe_b64encode(digest).decode()
    return "lb-" + "".join(c for c in text if c not in "-_.=")


def read_service(obj: Mapping[str, Any]) -> LoadBalancerService:
    """Raises CorruptRecord."""
    try:
        metadata, spec = obj["metadata"], obj.get("spec") or {}
        status = (obj.get("status") or {}).get("loadBalancer") or {}
        names = spec.get("ipFamilies") or ("IPv4",)
        return LoadBalancerService(
            namespace=str(metadata["namespace"]),
            name=str(metadata["name"]),
            uid=str(metadata.get("uid") or ""),
            type=str(spec.get("type") or "ClusterIP"),
            load_balancer_class=spec.get("loadBalancerClass"),
            families=tuple(_FAMILIES[name] for name in names),
            annotations={
                name: str(text)
                for name, text in (metadata.get("annotations") or {}).items()
                if name in (*POOLS.values(), ADDRESSES)
            },
            ingress=tuple(str(entry.get("ip") or "") for entry in status.get("ingress") or ()),
        )
    except (KeyError, TypeError, AttributeError) as e:
        raise CorruptRecord(f"cannot read a Service: {type(e).__name__}: {brief(str(e))}") from e


def is_managed(service: LoadBalancerService, assign_ips: str) -> bool:
    """Whether this controller assigns the Service's addresses."""
    if service.type != "LoadBalancer":
        return False
    if service.load_balancer_class is not None:
        return service.load_balancer_class == CLASS
    return assign_ips == ALL_SERVICES or any(service.annotations.values())


@dataclass(frozen=True, slots=True)
class AddressWish:
    """``addresses``: exactly these. If there are none: one of each family, from ``pools`` (names) if any has that
    family.
    """

    families: tuple[int, ...]
    addresses: tuple[Address, ...] = ()
    pools: Mapping[int, tuple[str, ...]] | None = None

    def pools_of(self, family: int) -> tuple[str, ...]:
        return (self.pools or {}).get(family, ())


def parse_wish(service: LoadBalancerService) -> AddressWish:
    """Raises BadRequest."""
    texts = _names(service, ADDRESSES)
    addresses = tuple(_address(text) for text in texts)
    for family in (4, 6):
        if sum(address.version == family for address in addresses) > 1:
            raise BadRequest(f"annotation {ADDRESSES}: one IPv{family} address at most, not {brief(', '.join(texts))}")
    for address in addresses:
        if address.version not in service.families:
            raise BadRequest(f"annotation {ADDRESSES}: {address}: the Service has no IPv{address.version}")
    pools = {family: _names(service, name) for family, name in POOLS.items()}
    return AddressWish(service.families, addresses, {family: names for family, names in pools.items() if names})


def _names(service: LoadBalancerService, annotation: str) -> tuple[str, ...]:
    text = service.annotations.get(annotation)
    if not text:
        return ()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(item, str) and item for item in found):
        raise BadRequest(
            f'annotation {annotation}: expected a JSON list of strings like ["a"], not {brief(repr(text))}'
        )
    return tuple(found)


def _address(text: str) -> Address:
    try:
        if "%" in text:
            raise ValueError("a zone")
        return ip_address(text)
    except ValueError:
        raise BadRequest(f"annotation {ADDRESSES}: {brief(repr(text))} is not an IP address") from None


def fits(address: Address, wish: AddressWish, pools: Sequence[IPPool]) -> bool:
    """Whether a Service may keep an address that it has; ``pools`` are all pools."""
    if wish.addresses:
        return address in wish.addresses
    if address.version not in wish.families:
        return False
    pool = pool_of([pool for pool in pools if LOAD_BALANCER in pool.allowed_uses], address)
    if pool is None:
        return False
    named = wish.pools_of(address.version)
    if named:
        return pool.metadata.name in named or str(pool.cidr) in named
    return pool.assignment_mode == "Automatic"


def select_kept(service: LoadBalancerService, held: Iterable[Address]) -> set[Address]:
    """The addresses that a Service keeps: one of each family, preferably the one in its status. It may hold two of a
    family after its requested address has changed.
    """
    kept: dict[int, Address] = {}
    for address in sorted(held, key=lambda a: (str(a) not in service.ingress, int(a))):
        kept.setdefault(address.version, address)
    return set(kept.values())


def missing_families(wish: AddressWish, held: Iterable[Address]) -> tuple[int, ...]:
    """The families for which an address must be chosen."""
    if wish.addresses:
        return ()
    have = {address.version for address in held}
    return tuple(family for family in wish.families if family not in have)


def desired_ingress(wish: AddressWish, held: Iterable[Address]) -> tuple[str, ...]:
    """The addresses for the status, in the order of the Service's families."""
    order = {family: place for place, family in enumerate(wish.families)}
    return tuple(str(address) for address in sorted(held, key=lambda a: (order.get(a.version, 9), int(a))))
