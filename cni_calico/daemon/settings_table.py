"""PURE: settings that come as texts (environment variables, parameters), declared once, parsed and described.

Rule: a setting is a field of a table (``settings_table``), which carries its name, parser, schema and meaning; the
parser raises ValueError saying what it expected. The code that reads settings and the code that documents them use the
same fields. A table is made without ``dataclasses``, which compile seven functions of it at every start of an agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network
from typing import Any, TypeVar, cast, dataclass_transform

from cni_calico.expanded import Fields, refuse_assignment, refuse_deletion
from cni_calico.model.documents.fields import as_number_of
from cni_calico.model.resources import Network

SettingValue = TypeVar("SettingValue")
DeclaredTable = TypeVar("DeclaredTable")

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


@dataclass(frozen=True, slots=True)
class _Declared:
    """A setting as a table's class declares it, in the place of its value."""

    name: str
    kind: Kind
    default: Any
    meaning: str
    section: str
    shown_default: str | None


def setting(
    name: str, kind: Kind, default: SettingValue, meaning: str, *, section: str = "", shown_default: str | None = None
) -> SettingValue:
    """A field of a table: the setting ``name``."""
    return cast(SettingValue, _Declared(name, kind, default, meaning, section, shown_default))


@dataclass_transform(kw_only_default=True, frozen_default=True)
def settings_table(cls: type[DeclaredTable]) -> type[DeclaredTable]:
    """The class with its settings as fields, as ``@dataclass(frozen=True, slots=True, kw_only=True)`` would make it,
    ``dataclasses.replace`` included. It may inherit from another table.
    """
    own = {name: value for name, value in vars(cls).items() if isinstance(value, _Declared)}
    all_of_it = {**getattr(cls, "__settings__", {}), **own}
    body = {name: value for name, value in vars(cls).items() if name not in own}
    for left in ("__dict__", "__weakref__"):
        body.pop(left, None)
    body |= {"__slots__": tuple(own), "__match_args__": tuple(all_of_it), "__settings__": all_of_it}
    body |= {"__dataclass_fields__": Fields(), "__setattr__": refuse_assignment, "__delattr__": refuse_deletion}
    body |= {"__init__": _init, "__repr__": _repr, "__eq__": _eq, "__hash__": _hash, "__reduce__": _reduce}
    return cast(type[DeclaredTable], type(cls.__name__, cls.__bases__, body))


def _init(self: Any, **given: Any) -> None:
    assign = object.__setattr__
    for name, declared in self.__settings__.items():
        assign(self, name, given.pop(name, declared.default))
    if given:
        raise TypeError(f"{type(self).__name__} has no setting {next(iter(given))}")


def _values(table: Any) -> tuple[Any, ...]:
    return tuple(getattr(table, name) for name in table.__match_args__)


def _repr(self: Any) -> str:
    shown = (f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _reduce(self: Any) -> tuple[Any, ...]:
    """For copies and pickles."""
    return _made_again, (type(self), dict(zip(self.__match_args__, _values(self), strict=True)))


def _made_again(cls: type[Any], values: dict[str, Any]) -> object:
    return cls(**values)


def settings_of(cls: type[Any]) -> Iterator[Setting]:
    """The settings declared in a table, in order."""
    section = ""
    for attribute, declared in cls.__settings__.items():
        section = declared.section or section
        yield _setting(attribute, declared, section)


def parse_each(cls: type[Any], environ: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The settings of a table in the environment: (value by attribute, problem by variable). An empty variable
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


def _setting(attribute: str, declared: _Declared, section: str) -> Setting:
    shown = declared.shown_default
    return Setting(
        attribute=attribute,
        name=declared.name,
        kind=declared.kind,
        meaning=declared.meaning,
        section=section,
        default=declared.default,
        shown_default=_show(declared.default) if shown is None else shown,
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
