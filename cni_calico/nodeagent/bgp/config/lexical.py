"""PURE: how values are written in a BIRD configuration. Every name and text of a record passes through here.

Rule: nothing that a user wrote can end the text, comment or symbol that contains it. BIRD's texts have no escapes, so
what cannot be written is replaced (in names, which are for people) or has been refused before (passwords, patterns).
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network

from cni_calico.model.digests import sha256

SYMBOL_MAX = 64
_SYMBOL = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")
_HASH_LENGTH = 10


def render_name(name: str) -> str:
    """A record's name for a comment or a description: printable ASCII without quotes, anything else as "?"."""
    return "".join(c if " " <= c <= "~" and c not in "\"'\\" else "?" for c in name[:200])


def render_text(text: str) -> str:
    """A quoted text that the caller knows can be written; otherwise raises ValueError."""
    if any(c == '"' or ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        raise ValueError("a BIRD text cannot hold quotes or control characters")
    return f'"{text}"'


def render_symbol(prefix: str, name: str, suffix: str) -> str:
    """A quoted symbol; different names give different symbols, even if they are too long or have characters BIRD
    refuses.
    """
    room = SYMBOL_MAX - len(prefix) - len(suffix)
    safe = "".join(c if c in _SYMBOL else "_" for c in name)
    if safe != name or len(safe) > room:
        # ":" is allowed in BIRD's symbols and never part of an unchanged name. JSON may have lone surrogates.
        digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        safe = f"{safe[: room - _HASH_LENGTH - 1]}:{digest[:_HASH_LENGTH]}"
    return f"'{prefix}{safe}{suffix}'"


def render_set(networks: Iterable[IPv4Network | IPv6Network], *, inside: bool = False) -> str:
    """A prefix set: the networks themselves, or with ``inside`` also everything in them."""
    mark = "+" if inside else ""
    ordered = sorted(set(networks), key=lambda n: (n.version, n.network_address, n.prefixlen))
    return "[ " + ", ".join(f"{network}{mark}" for network in ordered) + " ]"


def render_block(head: str, lines: Iterable[str]) -> list[str]:
    """``head { ... }`` with the lines inside indented."""
    return [f"{head} {{", *(f"  {line}" for line in lines), "}"]
