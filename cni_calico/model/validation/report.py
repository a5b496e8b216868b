"""PURE: the parts of validation: problems, the report that collects them, and checks of single values.

Rule: a check records what is wrong with a value and where, returns the parsed value or None, and never raises.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import brief, shown, without_zone
from cni_calico.model.documents.kinds import parse_as_number
from cni_calico.model.resources import Address, Network
from cni_calico.model.selectors import InvalidSelector, parse_selector

Spec = Mapping[str, Any]  # of a resource, as it was given: not checked yet

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_MAC = re.compile(r"[0-9A-Fa-f]{2}(:[0-9A-Fa-f]{2}){5}")
_DURATION = re.compile(r"-?(0|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)")
NAME_MAX = 253
SWITCH = ("Enabled", "Disabled")
SEVERITIES = ("Trace", "Debug", "Info", "Warning", "Error", "Fatal")
LABEL_MAX = 63


class InvalidResource(InvalidConfig):
    """A resource that cannot be stored; the text lists every problem."""

    hint = "correct the fields named above"


@dataclass(frozen=True, slots=True)
class Problem:
    """``at`` is the path of the field, as "IPPool.spec.blockSize"."""

    at: str
    value: Any
    reason: str

    def __str__(self) -> str:
        return f"{brief(self.at)} = {shown(self.value)} ({brief(self.reason, 1000)})"


@dataclass(slots=True)
class Report:
    """What was found in one resource: errors prevent storing it, warnings do not."""

    kind: str
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)

    def wrong(self, at: str, value: Any, reason: str) -> None:
        self.problems.append(Problem(f"{self.kind}.{at}", value, reason))

    def odd(self, at: str, value: Any, reason: str) -> None:
        self.warnings.append(Problem(f"{self.kind}.{at}", value, reason))

    def text(self) -> str:
        """All problems in one message, in upstream's wording."""
        if len(self.problems) == 1:
            return f"error with field {self.problems[0]}"
        return "error with the following fields:\n" + "\n".join(f"-  {problem}" for problem in self.problems)

    # -- shapes -------------------------------------------------------------------------------------------------------

    def object(self, at: str, raw: Any) -> Mapping[str, Any]:
        """``raw``, or an empty object if it is absent or not an object."""
        if raw is not None and not isinstance(raw, Mapping):
            self.wrong(at, raw, "must be an object")
        return raw if isinstance(raw, Mapping) else {}

    def list(self, at: str, raw: Any) -> Sequence[Any]:
        if raw is not None and not isinstance(raw, (list, tuple)):
            self.wrong(at, raw, "must be a list")
        return raw if isinstance(raw, (list, tuple)) else ()

    def string(self, at: str, raw: Any) -> str:
        """A text; "" if it is absent or not a text."""
        if raw is not None and not isinstance(raw, str):
            self.wrong(at, raw, "must be a text")
        return raw if isinstance(raw, str) else ""

    def boolean(self, at: str, raw: Any) -> None:
        if raw is not None and not isinstance(raw, bool):
            self.wrong(at, raw, "must be true or false")

    def number(self, at: str, raw: Any, low: int, high: int) -> int | None:
        if raw is None:
            return None
        if type(raw) is int and low <= raw <= high:
            return raw
        self.wrong(at, raw, f"must be a whole number from {low} to {high}")
        return None

    def choice(self, at: str, raw: Any, choices: Sequence[str]) -> str:
        """One of ``choices``; absent or empty is fine."""
        if raw in (None, ""):
            return ""
        if isinstance(raw, str) and raw in choices:
            return raw
        self.wrong(at, raw, "must be one of " + ", ".join(choices))
        return ""

    # -- values -------------------------------------------------------------------------------------------------------

    def name(self, at: str, raw: Any) -> None:
        if not isinstance(raw, str) or not raw:
            self.wrong(at, raw, "must be given")
        elif len(raw) > NAME_MAX or not SUBDOMAIN.fullmatch(raw):
            self.wrong(
                at,
                raw,
                "must consist of lower case letters, digits, '-' and '.', begin and end with a letter or digit, "
                f"and have at most {NAME_MAX} characters",
            )

    def label(self, at: str, key: str, value: Any) -> None:
        prefix, slash, name = key.rpartition("/")
        good_prefix = not slash or (len(prefix) <= NAME_MAX and SUBDOMAIN.fullmatch(prefix))
        if not good_prefix or len(name) > LABEL_MAX or not _QUALIFIED.fullmatch(name):
            self.wrong(at, key, "is not a valid label name")
        if not isinstance(value, str) or len(value) > LABEL_MAX or (value and not _QUALIFIED.fullmatch(value)):
            self.wrong(f"{at}[{key}]", value, "is not a valid label value")

    def selector(self, at: str, raw: Any) -> None:
        try:
            parse_selector(self.string(at, raw))
        except InvalidSelector as e:
            self.wrong(at, raw, str(e))

    def network(self, at: str, raw: Any, version: int = 0, *, strict: bool = False) -> Network | None:
        """A network; with ``strict`` no bit beyond the prefix may be set. None if it is wrong."""
        text = self.string(at, raw)
        try:
            network = ip_network(without_zone(text), strict=False)
            if "/" in text and version in (0, network.version):
                if strict and ip_interface(text).ip != network.network_address:
                    self.wrong(at, raw, f"has bits set beyond its prefix; did you mean {network}?")
                    return None
                return network
        except ValueError:
            pass
        if raw is None or isinstance(raw, str):
            self.wrong(
                at,
                raw,
                f"must be an IPv{version} network in CIDR notation"
                if version
                else "must be a network in CIDR notation",
            )
        return None

    def address(self, at: str, raw: Any, version: int = 0) -> Address | None:
        text = self.string(at, raw)
        try:
            address = ip_address(without_zone(text))
            if version in (0, address.version):
                return address
        except ValueError:
            pass
        if raw is None or isinstance(raw, str):
            self.wrong(at, raw, f"must be an IPv{version} address" if version else "must be an IP address")
        return None

    def network_or_address(self, at: str, raw: Any, version: int = 0) -> None:
        if "/" in str(raw):
            self.network(at, raw, version)
        else:
            self.address(at, raw, version)

    def names(self, at: str, raw: Any) -> None:
        """A list of names of resources."""
        for i, name in enumerate(self.list(at, raw)):
            self.name(f"{at}[{i}]", name)

    def as_number(self, at: str, raw: Any) -> None:
        try:
            if raw is not None:
                parse_as_number(raw, at)
        except ValueError:
            self.wrong(at, raw, "must be an AS number: 0 to 4294967295, or two numbers up to 65535 joined by a dot")

    def mac(self, at: str, raw: Any) -> None:
        if raw not in (None, "") and not (isinstance(raw, str) and _MAC.fullmatch(raw)):
            self.wrong(at, raw, "must be a MAC address")

    def duration(self, at: str, raw: Any) -> None:
        if raw is not None and not (isinstance(raw, str) and _DURATION.fullmatch(raw)):
            self.wrong(at, raw, "must be a duration such as 90s or 5m0s")
