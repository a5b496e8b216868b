"""PURE: the values of IP, IP6 and the autodetection variables.

Rule: only texts are parsed here; nodeagent/startup/address.py decides which of the host's addresses they mean.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_interface, ip_network

from cni_calico.model.resources import Interface, Network

METHODS = "first-found, kubernetes-internal-ip, can-reach=, interface=, skip-interface= or cidr="


@dataclass(frozen=True, slots=True)
class Method:
    """``kind`` is one of the names above; the other fields belong to the kinds that need them."""

    kind: str
    text: str
    target: str = ""
    patterns: tuple[re.Pattern[str], ...] = ()
    networks: tuple[Network, ...] = ()


@dataclass(frozen=True, slots=True)
class AddressSetting:
    """``mode`` is "keep" (empty), "autodetect", "none" or "fixed"; ``with_prefix``: whether a fixed address had a
    prefix.
    """

    mode: str = "keep"
    address: Interface | None = None
    with_prefix: bool = False


def parse_method(text: str) -> Method:
    """Raises ValueError saying what is wrong; an empty text means first-found."""
    kind, equals, argument = text.strip().partition("=")
    if not equals and kind in ("", "first-found", "kubernetes-internal-ip"):
        return Method(kind or "first-found", text)
    if not equals or not argument.strip():
        raise ValueError(f"expected {METHODS} with a value after the equals sign")
    parts = tuple(filter(None, (part.strip() for part in argument.split(","))))
    if kind == "can-reach":
        return Method(kind, text, target=argument.strip())
    if kind in ("interface", "skip-interface"):
        return Method(kind, text, patterns=tuple(map(_parse_pattern, parts)))
    if kind == "cidr":
        return Method(kind, text, networks=tuple(map(_parse_network, parts)))
    raise ValueError(f"expected {METHODS}")


def _parse_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as e:
        raise ValueError(f"expected a regular expression, not {text!r}: {e}") from e


def _parse_network(text: str) -> Network:
    try:
        return ip_network(text, strict=False)
    except ValueError as e:
        raise ValueError(f"expected a network in CIDR notation, got {text!r}") from e


def parse_address_setting(family: int, text: str) -> AddressSetting:
    """The value of IP (family 4) or IP6. Raises ValueError."""
    if text in ("", "autodetect", "none"):
        return AddressSetting(text or "keep")
    try:
        address = ip_interface(text)
    except ValueError as e:
        raise ValueError(f"expected an IPv{family} address with or without prefix, autodetect or none") from e
    if address.version != family:
        raise ValueError(f"expected an IPv{family} address, got one of IPv{address.version}")
    return AddressSetting("fixed", address, "/" in text)
