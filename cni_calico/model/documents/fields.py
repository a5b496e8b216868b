"""PURE: JSON fields as typed values, described in tables that are read and written by two functions.

Rule: fields that are unknown or unchanged are written back exactly as they were read. ``Unknown`` makes that possible:
it holds the fields that no table names and remembers the object they came from. So a default that was not in the input
is not in the output either, and our spelling never replaces another one with the same meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

from cni_calico.model.resources import Address, Interface, Network

JSON = Mapping[str, Any]

_SHOWN_MAX = 80
_PLACE_MAX = 200
_EXPECTED_MAX = 500
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)}


class Wrong(ValueError):
    """A value of the wrong shape; the codec turns it into CorruptRecord with the record's name."""

    def __init__(self, at: str, expected: str, got: object) -> None:
        super().__init__(f"{brief(at)}: expected {brief(expected, _EXPECTED_MAX)}, got {shown(got)}")
        self.at = at
        self.expected = expected
        self.got = got


class Unknown(dict[str, Any]):
    """Fields that we do not know; ``source`` is the object they were read from. Compared by the fields alone."""

    __slots__ = ("source",)

    def __init__(self, fields: JSON, source: JSON | None) -> None:
        super().__init__(fields)
        self.source = source


def source_of(extra: JSON) -> JSON | None:
    """The object that a record's ``extra`` was read from; None for a new record."""
    return extra.source if isinstance(extra, Unknown) else None


def shown(value: object) -> str:
    """A value as JSON, short enough for a message."""
    import json

    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 3] + "..."


def brief(text: str, most: int = _PLACE_MAX) -> str:
    """A text that somebody else wrote, as part of a message: one line of at most ``most`` characters."""
    escaped = text[:most].translate(_CONTROL)
    return escaped if len(escaped) == len(text) else escaped[: most - 3] + "..."


# -- shapes -----------------------------------------------------------------------------------------------------------


def parse_object(raw: Any, at: str) -> JSON:
    if type(raw) is not dict and not isinstance(raw, Mapping):  # a test of the abstract class costs ten times as much
        raise Wrong(at, "an object", raw)
    return raw


def parse_list(raw: Any, at: str) -> list[Any] | tuple[Any, ...]:
    if not isinstance(raw, (list, tuple)):
        raise Wrong(at, "a list", raw)
    return raw


def parse_text(raw: Any, at: str) -> str:
    if not isinstance(raw, str):
        raise Wrong(at, "a text", raw)
    return raw


def parse_bool(raw: Any, at: str) -> bool:
    if raw is not True and raw is not False:
        raise Wrong(at, "true or false", raw)
    return raw


def parse_int(raw: Any, at: str) -> int:
    if type(raw) is not int:
        raise Wrong(at, "a whole number", raw)
    return raw


def parse_number_or_text(raw: Any, at: str) -> str:
    """A number or a text, as text: what Go's numorstring reads."""
    return str(raw) if type(raw) is int else parse_text(raw, at)


def as_number_of(text: str) -> int | None:
    """The 32-bit AS number in a text, which may be two 16-bit numbers ("1.10" is 65546); None if it is not one."""
    parts = text.split(".")
    if len(parts) > 2 or not all(part.isascii() and part.isdecimal() and len(part) <= 10 for part in parts):
        return None
    numbers = [int(part) for part in parts]
    if len(numbers) == 1:
        return numbers[0] if numbers[0] < 1 << 32 else None
    return numbers[0] << 16 | numbers[1] if max(numbers) < 1 << 16 else None


def without_zone(text: str) -> str:
    """The text. Raises Wrong if it has a zone ("fe80::1%eth0"), which Go's parsers refuse, while Python's accept any
    text as a zone.
    """
    if "%" in text:
        raise ValueError("an address with a zone")
    return text


def parse_address(raw: Any, at: str) -> Address:
    try:
        return ip_address(without_zone(parse_text(raw, at)))
    except ValueError as e:
        raise Wrong(at, "an IP address", raw) from e


def parse_interface(raw: Any, at: str) -> Interface:
    try:
        return ip_interface(without_zone(parse_text(raw, at)))
    except ValueError as e:
        raise Wrong(at, "an IP address with its prefix length", raw) from e


def parse_network(raw: Any, at: str) -> Network:
    """A network in CIDR notation; bits beyond the prefix are dropped, as in Go's ParseCIDR."""
    try:
        return ip_network(without_zone(parse_text(raw, at)), strict=False)
    except ValueError as e:
        raise Wrong(at, "a network in CIDR notation", raw) from e


def parse_texts(raw: Any, at: str) -> tuple[str, ...]:
    items = tuple(parse_list(raw, at))
    for i, item in enumerate(items):
        if type(item) is not str:
            parse_text(item, f"{at}[{i}]")
    return items


def parse_networks(raw: Any, at: str) -> tuple[Network, ...]:
    return tuple(parse_network(item, f"{at}[{i}]") for i, item in enumerate(parse_list(raw, at)))


def parse_objects(raw: Any, at: str) -> tuple[JSON, ...]:
    return tuple(parse_object(item, f"{at}[{i}]") for i, item in enumerate(parse_list(raw, at)))


def parse_text_map(raw: Any, at: str) -> Mapping[str, str]:
    for key, value in parse_object(raw, at).items():
        if not isinstance(value, str):
            raise Wrong(f"{at}[{shown(key)}]", "a text", value)
    return dict(raw)


def render_same(value: Any) -> Any:
    return value


def render_list(value: Any) -> list[Any]:
    return list(value)


def render_text_list(value: Any) -> list[str]:
    return [str(item) for item in value]


# -- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """A JSON field: ``empty`` is its value if absent or null; with ``always`` new records contain that value too."""

    name: str
    attr: str
    parse: Callable[[Any, str], Any]
    empty: Any
    render: Callable[[Any], Any] = render_same
    always: bool = False


Table = tuple[Field, ...]


def text(name: str, attr: str, *, always: bool = False) -> Field:
    return Field(name, attr, parse_text, "", always=always)


def flag(name: str, attr: str) -> Field:
    return Field(name, attr, parse_bool, False)


def decode_fields(raw: JSON, table: Table, at: str) -> tuple[dict[str, Any], Unknown]:
    """The values of ``table`` by attribute name, and the fields it does not name. Raises Wrong."""
    _, empty, by_name = _PREPARED.get(id(table)) or _prepare(table)
    values, left = empty.copy(), {}
    for name, item in raw.items():
        field = by_name.get(name)
        if field is None:
            left[name] = item
        elif type(item) is str and field.parse is parse_text:  # most are: no text that names the place
            values[field.attr] = item
        elif item is not None:
            values[field.attr] = field.parse(item, f"{at}.{name}" if at else name)
    return values, Unknown(left, raw)


# by the identity of a table, which it keeps alive: its values if nothing is given, its fields by their JSON names
_PREPARED: dict[int, tuple[Table, dict[str, Any], dict[str, Field]]] = {}


def _prepare(table: Table) -> tuple[Table, dict[str, Any], dict[str, Field]]:
    prepared = table, {field.attr: field.empty for field in table}, {field.name: field for field in table}
    _PREPARED[id(table)] = prepared
    return prepared


def encode_fields(values: JSON, table: Table, extra: JSON) -> dict[str, Any]:
    """The JSON object that ``decode_fields`` reads; a field whose value is unchanged keeps its stored form."""
    out = dict(extra)
    source = source_of(extra)
    for field in table:
        value = values[field.attr]
        if source is not None and field.name in source:
            raw = source[field.name]
            if (field.empty if raw is None else field.parse(raw, field.name)) == value:
                out[field.name] = raw
            elif field.always or value != field.empty:
                out[field.name] = field.render(value)
        elif value != field.empty or (field.always and source is None):
            out[field.name] = field.render(value)
    return out


def attributes_of(record: Any, table: Table) -> dict[str, Any]:
    return {field.attr: getattr(record, field.attr) for field in table}
