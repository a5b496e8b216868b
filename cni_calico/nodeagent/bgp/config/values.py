"""PURE: the small values that BGP resources are made of, each parsed into a type that cannot be wrong.

Rule: parsers take (raw, where) and raise ``fields.Wrong``. Their results can be written into a BIRD configuration
unchanged: numbers in range, addresses, names of a fixed alphabet.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address
from typing import Any

from cni_calico.model.documents.fields import Wrong, parse_int, parse_network, parse_object, parse_text, without_zone
from cni_calico.model.documents.kinds import parse_as_number
from cni_calico.model.resources import Address, Network

U16, U32 = (1 << 16) - 1, (1 << 32) - 1
RESTART_TIME_MAX_S = 4095
PASSWORD_MAX = 80  # bytes: TCP_MD5SIG_MAXKEYLEN
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_LONGEST = 1000  # characters of a duration that are read: Python takes no number of more than 4,300 digits
_UNIT_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "μs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_PATTERN = re.compile(r"[A-Za-z0-9_.*?@+-]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class SecretRef:
    """A key of a Kubernetes Secret in the agent's own namespace."""

    name: str
    key: str


@dataclass(frozen=True, slots=True, order=True)
class Community:
    """Two numbers of 16 bits (standard) or three of 32 (large)."""

    parts: tuple[int, ...]

    @property
    def large(self) -> bool:
        return len(self.parts) == 3

    def __str__(self) -> str:
        return ":".join(map(str, self.parts))


def parse_in(low: int, high: int) -> Callable[[Any, str], int]:
    """A parser of whole numbers in a range."""

    def parse(raw: Any, at: str) -> int:
        number = parse_int(raw, at)
        if not low <= number <= high:
            raise Wrong(at, f"a number from {low} to {high}", raw)
        return number

    return parse


def parse_as(raw: Any, at: str) -> int:
    """An AS number; Go writes 0 for "not set"."""
    number: int = parse_as_number(raw, at)
    return number


def parse_choice(*choices: str) -> Callable[[Any, str], str]:
    def parse(raw: Any, at: str) -> str:
        text = parse_text(raw, at)
        if text and text not in choices:
            raise Wrong(at, "one of " + ", ".join(choices), raw)
        return text

    return parse


def parse_seconds(raw: Any, at: str) -> int:
    """A Go duration ("1m30s") in whole seconds, rounded half away from zero as Go's math.Round does."""
    text = parse_text(raw, at)
    read = text[:_LONGEST]
    scale: int = 10 ** len(read)  # exact, whatever stands behind a point
    nanoseconds, end = 0, 0  # times ``scale``
    for part in _DURATION.finditer(read):
        if part.start() != end:
            break
        whole, _, fraction = part[1].partition(".")
        nanoseconds += int(f"{whole}{fraction}" or "0") * _UNIT_NS[part[2]] * scale // 10 ** len(fraction)
        end = part.end()
    if text != "0" and (not end or end != len(text)):
        raise Wrong(at, 'a duration such as "90s" or "2m"', raw)
    return (2 * nanoseconds + scale * 10**9) // (2 * scale * 10**9)


def parse_restart_time(raw: Any, at: str) -> int:
    """Seconds of a graceful restart: BGP's capability has 12 bits for them (RFC 4724, 3)."""
    return _parse_seconds_up_to(RESTART_TIME_MAX_S, raw, at)


def parse_keepalive(raw: Any, at: str) -> int:
    return _parse_seconds_up_to(U16, raw, at)


def _parse_seconds_up_to(most_s: int, raw: Any, at: str) -> int:
    seconds = parse_seconds(raw, at)
    if not 0 < seconds <= most_s:
        raise Wrong(at, f"a duration from 1s to {most_s}s", raw)
    return seconds


def parse_secret_ref(raw: Any, at: str) -> SecretRef:
    ref = parse_object(parse_object(raw, at).get("secretKeyRef"), f"{at}.secretKeyRef")
    name = parse_text(ref.get("name"), f"{at}.secretKeyRef.name")
    key = parse_text(ref.get("key"), f"{at}.secretKeyRef.key")
    if not name or not key:
        raise Wrong(f"{at}.secretKeyRef", "the name and key of a Secret", dict(ref))
    return SecretRef(name, key)


def parse_community(raw: Any, at: str) -> Community:
    """Written as "aa:nn" or "aa:nn:mm"."""
    parts = parse_text(raw, at).split(":")
    limit = {2: U16, 3: U32}.get(len(parts), -1)
    if all(p.isascii() and p.isdecimal() and len(p) <= 10 for p in parts):
        numbers = tuple(map(int, parts))
        if max(numbers) <= limit:
            return Community(numbers)
    raise Wrong(at, 'a community such as "65000:100" or "65000:100:7"', raw)


def looks_like_community(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]+:[0-9]+(:[0-9]+)?", text))


def parse_interface_pattern(raw: Any, at: str) -> str:
    """An interface name with "*" and "?" in it, limited to characters that can stand between BIRD's quotes."""
    text = parse_text(raw, at)
    if not _PATTERN.fullmatch(text):
        raise Wrong(at, 'an interface name or a pattern such as "eth*"', raw)
    return text


def parse_cidr_of(raw: Any, at: str) -> Network:
    """The network of a {"cidr": ...} object, the form of service ranges."""
    return parse_network(parse_object(raw, at).get("cidr"), f"{at}.cidr")


def parse_peer_address(raw: Any, at: str) -> tuple[Address, int]:
    """(address, port or 0) of "10.0.0.1", "10.0.0.1:179", "fd00::1" or "[fd00::1]:179"."""
    text = parse_text(raw, at)
    host, port = text, ""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        if port[:1] != ":":
            raise Wrong(at, _ADDRESS_FORM, raw)
        port = port[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    if host != text and not (port.isascii() and port.isdecimal() and len(port) <= 5 and 0 < int(port) <= U16):
        raise Wrong(at, _ADDRESS_FORM, raw)
    return parse_host(host, at, raw), int(port or 0)


_ADDRESS_FORM = "an address, or <IPv4>:<port>, or [<IPv6>]:<port>"


def parse_host(text: str, at: str, raw: Any = None) -> Address:
    """An address that a BGP session can be opened to or a route can point to."""
    shown = text if raw is None else raw
    try:
        address = ip_address(without_zone(text))
    except ValueError as e:
        raise Wrong(at, _ADDRESS_FORM, shown) from e
    if address.is_unspecified or address.is_multicast:
        raise Wrong(at, "the address of one host", shown)
    if address.version == 6 and address.is_link_local:
        raise Wrong(at, "an address that is not link-local", shown)
    return address


def parse_gateway(raw: Any, at: str) -> Address:
    return parse_host(parse_text(raw, at), at)


def parse_cluster_id(raw: str) -> IPv4Address | None:
    """A route reflector cluster ID: an IPv4 address, or a number; None if it is neither."""
    try:
        return IPv4Address(int(raw) if raw.isascii() and raw.isdecimal() else raw)
    except ValueError:
        return None


def password_fault(password: str) -> str:
    """Why a password cannot be used; "" if it can.

    BIRD's texts have no escapes: a double quote or a line break ends them.
    """
    if not password:
        return "is empty"
    if len(password.encode("utf-8", "surrogatepass")) > PASSWORD_MAX:
        return f"is longer than {PASSWORD_MAX} bytes, the most that TCP MD5 allows"
    if '"' in password:
        return "contains a double quote, which BIRD cannot read"
    if any(ord(c) < 0x20 or ord(c) == 0x7F or 0xD800 <= ord(c) <= 0xDFFF for c in password):
        return "contains a control character (a line break at its end?)"
    return ""
