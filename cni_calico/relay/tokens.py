"""PURE: what can be read from a token before the API server has reviewed it, and who counts as one peer.

Rule: nothing read here is trusted: it only chooses which question the API server is asked.
"""

from __future__ import annotations

import binascii
import json
from base64 import urlsafe_b64decode
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_network

AUDIENCE = "calico-typha"
TOKEN_CHARACTERS = 16 * 1024
NETWORK_BITS = 64  # of IPv6: whoever has one address there has all of them


@dataclass(frozen=True, slots=True)
class Accepted:
    """Which tokens are: of these ``users``, for ``audience`` ("": no own one), and, with ``api_tokens``, also those
    for the API server.
    """

    users: frozenset[str] = frozenset()
    audience: str = AUDIENCE
    api_tokens: bool = True


def is_token(text: str) -> bool:
    """Whether it can be a bearer token at all (RFC 6750: visible ASCII)."""
    return 0 < len(text) <= TOKEN_CHARACTERS and text.isascii() and text.isprintable() and " " not in text


def parse_audiences(token: str) -> frozenset[str] | None:
    """For whom a token says that it is; None: it does not say so, or is no JSON Web Token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (binascii.Error, ValueError, RecursionError):
        return None
    found = claims.get("aud") if isinstance(claims, dict) else None
    if isinstance(found, str):
        return frozenset({found})
    return frozenset(one for one in found if isinstance(one, str)) if isinstance(found, list) else None


def peer_of(address: str) -> str:
    """The name of what counts as one peer: an IPv4 address, or an IPv6 network of 64 bits."""
    host = address.partition("%")[0]
    try:
        parsed = IPv6Address(host)
    except ValueError:
        return host
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ip_network((parsed, NETWORK_BITS), strict=False))
