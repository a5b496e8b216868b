"""PURE: the parameters of encryption between nodes.

Rule: a value that is no value is not used, and nothing is less encrypted for it: the default takes its place.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from cni_calico.daemon.settings_table import (
    FALSE,
    FLAG,
    MTU,
    NAMES,
    PORT,
    Kind,
    number,
    parse_seconds,
    setting,
    settings_table,
)
from cni_calico.model.wireguard import DEFAULT_NAMES
from cni_calico.nodeagent.context.serving import ServingSettings

_NAME = re.compile(r"[a-zA-Z0-9:._+-]{1,15}")
_LONGEST_KEEPALIVE_S = 65535
EVERY_LEAST_S = 3600
TABLE_MAX = 0xFFFFFFFF
PORTS = {"wireguardListeningPort": 51820, "wireguardListeningPortV6": 51821}
_RESERVED_TABLES = range(253, 256)
Ranges = tuple[tuple[int, int], ...]


def _parse_name(text: str) -> str:
    """The unchanged text. Raises ValueError."""
    if not _NAME.fullmatch(text) or text in (".", ".."):
        raise ValueError("expected the name of an interface: at most 15 letters, digits, or any of :._+-")
    return text


def _parse_keepalive(text: str) -> int:
    seconds = math.ceil(parse_seconds(text))
    if seconds > _LONGEST_KEEPALIVE_S:
        raise ValueError("expected at most 65535 seconds")
    return seconds


def _parse_every(text: str) -> int:
    seconds = math.ceil(parse_seconds(text))
    if 0 < seconds < EVERY_LEAST_S:
        raise ValueError("expected 0 or at least an hour")
    return seconds


def _parse_strict(text: str) -> str:
    """Empty for no; else yes, and the unchanged text: whoever wrote what is neither yes nor no wanted something."""
    return "" if text.lower() in FALSE else text


def _parse_table_ranges(text: str) -> Ranges:
    """Ranges such as 1-250,300-400 of numbers of routing tables, without those that the kernel has for itself. Raises
    ValueError.
    """
    ranges = []
    for part in text.split(","):
        low, _, high = part.strip().partition("-")
        if not low.isdecimal() or not high.isdecimal() or not 1 <= int(low) <= int(high) <= TABLE_MAX:
            raise ValueError("expected ranges of numbers of routing tables, such as 1-250,300-400")
        ranges.append((int(low), int(high)))
    return tuple(ranges)


def ranges_text(value: Any) -> str:
    """Of a FelixConfiguration's list of {min, max}, or of the one that it had before."""
    listed = value if isinstance(value, (list, tuple)) else [value]
    return ",".join(f"{one.get('min')}-{one.get('max')}" if isinstance(one, Mapping) else repr(one) for one in listed)


def select_tables(ranges: Ranges, count: int) -> tuple[int, ...]:
    """The first that the agent may use; fewer if there are not so many."""
    found: dict[int, None] = {}
    for low, high in ranges:
        found |= dict.fromkeys(islice((at for at in range(low, high + 1) if at not in _RESERVED_TABLES), count))
    return tuple(islice(found, count))


def describe_own_ports(
    specs: Mapping[str, Mapping[str, Any] | None], default: Mapping[str, Any] | None
) -> Iterator[str]:
    """A sentence for each listening port that a FelixConfiguration of some nodes only has: each node takes its own for
    the others'. ``specs``: by name.
    """
    for field, usual in PORTS.items():
        common = (default or {}).get(field, usual)
        for name, spec in specs.items():
            own = (spec or {}).get(field, common)
            if str(own) != str(common):
                yield (
                    f"{field}={own} of FelixConfiguration {name} differs from {common}, which other nodes use for this "
                    "one, too: they will not find it; set it in FelixConfiguration default"
                )


_DEVICE = Kind(_parse_name, "name of an interface")
_KEEPALIVE = Kind(_parse_keepalive, "seconds or a duration such as 25s, rounded up")
_EVERY = Kind(_parse_every, "seconds or a duration such as 720h, at least an hour")
_STRICT = Kind(_parse_strict, "true or false; anything else counts as true")
_TABLES = Kind(_parse_table_ranges, "MIN-MAX, several separated by commas")

STRICT_VARIABLE = "CALICO_WIREGUARD_STRICT"  # another name of WireguardStrict
ANNOTATIONS = {
    "cni-calico.io/wireguard-strict": "wireguardStrict",
    "cni-calico.io/wireguard-exempt": "wireguardExempt",
    "cni-calico.io/wireguard-rotate-every": "wireguardRotateEvery",
}


@settings_table
class EncryptionSettings(ServingSettings):
    """What pods of different nodes send one another: encrypted, or not."""

    wireguard_enabled: bool = setting(
        "WireguardEnabled",
        FLAG,
        False,
        "Encrypt what pods of different nodes send one another over IPv4 (docs/encryption.md).",
        section="Encryption",
    )
    wireguard_enabled_v6: bool = setting("WireguardEnabledV6", FLAG, False, "The same over IPv6.")
    wireguard_port: int = setting(
        "WireguardListeningPort",
        PORT,
        PORTS["wireguardListeningPort"],
        "UDP port of WireGuard, of all nodes: each takes its own for others'.",
    )
    wireguard_port_v6: int = setting(
        "WireguardListeningPortV6", PORT, PORTS["wireguardListeningPortV6"], "The same for IPv6."
    )
    wireguard_name: str = setting("WireguardInterfaceName", _DEVICE, DEFAULT_NAMES[4], "Name of WireGuard's interface.")
    wireguard_name_v6: str = setting("WireguardInterfaceNameV6", _DEVICE, DEFAULT_NAMES[6], "The same for IPv6.")
    wireguard_mtu: int = setting(
        "WireguardMTU",
        MTU,
        0,
        "MTU of WireGuard's interface; 0: that of the interface with the node's address less 60.",
    )
    wireguard_mtu_v6: int = setting("WireguardMTUV6", MTU, 0, "The same for IPv6; 0: less 80.")
    wireguard_priority: int = setting(
        "WireguardRoutingRulePriority",
        number(1, 32765),
        99,
        "Priority of the routing rule that sends packets to WireGuard's routes.",
    )
    wireguard_keepalive_s: int = setting(
        "WireguardPersistentKeepAlive",
        _KEEPALIVE,
        0,
        "Seconds after which an empty packet keeps a way open; 0: never.",
    )
    wireguard_hosts: bool = setting(
        "WireguardHostEncryptionEnabled",
        FLAG,
        False,
        "NOT SUPPORTED: what hosts send one another is not encrypted; pods are all the same.",
    )
    wireguard_threading: bool = setting(
        "WireguardThreadingEnabled",
        FLAG,
        False,
        "Let the kernel decrypt on several processors (/sys/class/net/NAME/threaded).",
    )
    wireguard_strict: str = setting(
        "WireguardStrict",
        _STRICT,
        "",
        "Not a parameter of upstream's. Drop what pods of different nodes send one another if it is not encrypted; "
        "also CALICO_WIREGUARD_STRICT, or a FelixConfiguration's annotation cni-calico.io/wireguard-strict.",
    )
    wireguard_exempt: tuple[str, ...] = setting(
        "WireguardExempt",
        NAMES,
        (),
        "Not a parameter of upstream's. Nodes whose pods may be reached in plain text all the same; also a "
        "FelixConfiguration's annotation cni-calico.io/wireguard-exempt.",
        shown_default="",
    )
    wireguard_every_s: int = setting(
        "WireguardRotateEvery",
        _EVERY,
        0,
        "Not a parameter of upstream's. Age at which a node's key is replaced, up to a tenth later; 0: only when "
        "somebody asks for it; also a FelixConfiguration's annotation cni-calico.io/wireguard-rotate-every.",
    )
    route_tables: Ranges = setting(
        "RouteTableRanges",
        _TABLES,
        ((1, 250),),
        "Numbers of routing tables that the agent may use; the first two are WireGuard's.",
        shown_default="1-250",
    )
