"""PURE: settings that come as texts (environment variables, parameters), declared once, parsed and described.

Rule: a setting is a field of a frozen dataclass that carries its name, parser, schema and meaning; the parser raises
ValueError saying what it expected. The code that reads settings and the code that documents them use the same fields.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from ipaddress import IPv4Address, ip_network
from typing import Any, TypeVar

from cni_calico.model.documents.fields import as_number_of
from cni_calico.model.resources import Network

SettingValue = TypeVar("SettingValue")

TRUE = frozenset(("true", "1", "yes", "y", "t"))
FALSE = frozenset(("false", "0", "no", "n", "f"))
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Kind:
    """A setting's type: how a text becomes a value; ``schema`` describes the accepted texts."""

    parse: Callable[[str], Any]
    schema: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One declared setting; ``shown_default`` is for the reference page if the value alone says too little."""

    attribute: str
    name: str
    kind: Kind
    meaning: str
    section: str
    default: Any
    shown_default: str


def setting(
    name: str, kind: Kind, default: SettingValue, meaning: str, *, section: str = "", shown_default: str | None = None
) -> SettingValue:
    """A dataclass field for the setting ``name``."""
    metadata = {"name": name, "kind": kind, "meaning": meaning, "section": section, "shown_default": shown_default}
    return field(default=default, metadata=metadata)


def settings_of(cls: type[Any]) -> Iterator[Setting]:
    """The settings declared in a dataclass, in order."""
    section = ""
    for item in fields(cls):
        if "name" not in item.metadata:
            continue
        section = item.metadata["section"] or section
        yield _setting(item, section)


def parse_each(cls: type[Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a dataclass in the environment: (value by attribute, problem by variable). An empty variable
    counts as not set.
    """
    values: dict[str, Any] = {}
    wrong: dict[str, str] = {}
    for item in settings_of(cls):
        text = environ.get(item.name, "").strip()
        if not text:
            continue
        try:
            values[item.attribute] = item.kind.parse(text)
        except ValueError as e:
            wrong[item.name] = f"{item.name}={text!r}: {e}"
    return values, wrong


def _setting(item: Field[Any], section: str) -> Setting:
    shown = item.metadata["shown_default"]
    return Setting(
        attribute=item.name,
        name=item.metadata["name"],
        kind=item.metadata["kind"],
        meaning=item.metadata["meaning"],
        section=section,
        default=item.default,
        shown_default=_show(item.default) if shown is None else shown,
    )


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}s"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


# -- parsers ----------------------------------------------------------------------------------------------------------


def parse_flag(text: str) -> bool:
    lower = text.lower()
    if lower in TRUE:
        return True
    if lower in FALSE:
        return False
    raise ValueError("expected true or false")


def parse_duration_s(text: str) -> float:
    """A duration in Go's notation ("90s", "1m30s", "0"), in seconds."""
    if text == "0":
        return 0.0
    parts = list(_DURATION.finditer(text))
    if not parts or "".join(part.group(0) for part in parts) != text:
        raise ValueError("expected a duration such as 60s or 1m30s")
    return sum(float(part.group(1)) * _UNIT_S[part.group(2)] for part in parts)


def parse_seconds(text: str) -> float:
    """A number of seconds, or a duration in Go's notation."""
    try:
        value = float(text)
    except ValueError:
        return parse_duration_s(text)
    if not 0 <= value < 1e9:
        raise ValueError("expected a number of seconds, 0 or more")
    return value


def parse_as_number(text: str) -> int:
    number = as_number_of(text)
    if number is None:
        raise ValueError("expected an AS number from 0 to 4294967295, or in the form 65000.1")
    return number


def parse_router_id(text: str) -> str:
    if text == "hash":
        return text
    try:
        return str(IPv4Address(text))
    except ValueError as e:
        raise ValueError("expected an IPv4 address or hash") from e


def _choice(*values: str, spellings: dict[str, str] | None = None) -> Callable[[str], str]:
    known = {value.lower(): value for value in values} | (spellings or {})

    def parse(text: str) -> str:
        try:
            return known[text.lower()]
        except KeyError as e:
            raise ValueError(f"expected one of {', '.join(values)}") from e

    return parse


def choice(*values: str, spellings: dict[str, str] | None = None) -> Kind:
    """One of ``values`` in any case; ``spellings`` maps further spellings (lower case) to one of them."""
    return Kind(_choice(*values, spellings=spellings), ", ".join(values))


def number(low: int, high: int) -> Kind:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,10}", text) or not low <= int(text) <= high:
            raise ValueError(f"expected a whole number from {low} to {high}")
        return int(text)

    return Kind(parse, f"number {low}-{high}")


def pool_cidr(family: int) -> Kind:
    """A network of one family, or "none"."""

    def parse(text: str) -> Network | str:
        if text == "none":
            return text
        try:
            network = ip_network(text, strict=False)
        except ValueError as e:
            raise ValueError(f"expected an IPv{family} network in CIDR notation, or none") from e
        if network.version != family:
            raise ValueError(f"expected an IPv{family} network, or none")
        return network

    return Kind(parse, f"IPv{family} CIDR or none")


def parse_names(text: str) -> tuple[str, ...]:
    """Comma-separated names without blanks around them."""
    names = tuple(filter(None, (part.strip() for part in text.split(","))))
    if not names:
        raise ValueError("expected names separated by commas")
    return names


def parse_networks(text: str) -> tuple[Network, ...]:
    """Comma-separated networks of any family."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(ip_network(part, strict=False))
        except ValueError as e:
            raise ValueError(f"expected networks in CIDR notation separated by commas, got {part!r}") from e
    return tuple(found)


TEXT = Kind(lambda text: text, "text")
FLAG = Kind(parse_flag, "true or false")
DURATION = Kind(parse_duration_s, "duration, such as 60s")
SECONDS = Kind(parse_seconds, "seconds, or a duration such as 1m30s")
AS_NUMBER = Kind(parse_as_number, "AS number (65000 or 65000.1)")
ROUTER_ID = Kind(parse_router_id, "IPv4 address or hash")
NAMES = Kind(parse_names, "names separated by commas")
NETWORKS = Kind(parse_networks, "CIDRs separated by commas")
PORT = number(1, 65535)
MTU = number(0, 65535)
