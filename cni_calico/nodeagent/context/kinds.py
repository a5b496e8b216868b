"""PURE: types of Felix's parameters that no other setting has.

Rule: a kind refuses what cannot mean anything here, and says what it expected.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv6Address

from cni_calico.daemon.settings_table import Kind, choice, number
from cni_calico.model.access import parse_relay_address
from cni_calico.model.qos import parse_dscp

_LOGS = "/var/log/"


def parse_mark_mask(text: str) -> int:
    """A 32-bit number, decimal or after 0x, with the two bits that are needed. Raises ValueError."""
    mask = int(text, 0)
    if not 0 < mask <= 0xFFFFFFFF or mask.bit_count() < 2:
        raise ValueError("expected at least two bits of a 32-bit mark")
    return mask


def parse_log_rate(text: str) -> str:
    """The unchanged text. Raises ValueError."""
    count, _, unit = text.partition("/")
    if unit not in ("second", "minute", "hour", "day") or not count.isdigit() or not 0 < int(count) <= 10000:
        raise ValueError("expected a rate such as 10/second, 5/minute, 2/hour or 1/day")
    return text


def parse_relay(text: str) -> str:
    """The unchanged text. Raises ValueError."""
    parse_relay_address(text)
    return text


def parse_log_file(text: str) -> str:
    """A path, "" for none. Raises ValueError: whoever writes a FelixConfiguration must not choose any file at all."""
    if text.lower() == "none":
        return ""
    if "\0" in text or not text.startswith(_LOGS) or {"", ".", ".."} & set(text.split("/")[1:]):
        raise ValueError(f"expected a file below {_LOGS}, or none")
    return text


def parse_expression(text: str) -> re.Pattern[str]:
    """Raises ValueError."""
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as e:
        raise ValueError(f"expected a regular expression: {e}") from e


ENABLED = choice("Enabled", "Disabled")
NOT_CHANGED = "DoNothing"
SOURCE_CHECK = choice(NOT_CHANGED, "Enable", "Disable")
DENY = choice("Drop", "Reject")
MARK_MASK = Kind(parse_mark_mask, "bits, such as 0xffff0000")
LOG_RATE = Kind(parse_log_rate, "N/second, N/minute, N/hour or N/day")
PRIORITY = number(1, 2147483646)
DSCP = Kind(parse_dscp, "0-63, or a name such as EF, CS1, AF41")
RELAY = Kind(parse_relay, "host:port")
LOG_FILE = Kind(parse_log_file, "a file below /var/log/, or none")
EXPRESSION = Kind(parse_expression, "regular expression")
V4, V6 = Kind(IPv4Address, "IPv4 address"), Kind(IPv6Address, "IPv6 address")
SEVERITIES = choice(
    "debug",
    "info",
    "warning",
    "error",
    "none",
    spellings={"trace": "debug", "warn": "warning", "fatal": "error", "panic": "error"},
)
CLIENT_AUTH = choice(
    "RequireAndVerifyClientCert", "RequireAnyClientCert", "VerifyClientCertIfGiven", "NoClientCert", "RequestClientCert"
)
