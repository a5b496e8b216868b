"""PURE: reading typed values out of untrusted JSON; an error names the field, what was expected and what was found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.errors import InvalidConfig

_SECRET = ("token", "key", "password", "secret", "certificate")


def wrong(field: str, expected: str, value: Any) -> InvalidConfig:
    """The error for a value of the wrong kind; long values are shortened, and secret values are not shown."""
    secret = any(word in field.rpartition(".")[2] for word in _SECRET)
    shown = f"a value of type {type(value).__name__}" if secret else repr(value)
    return InvalidConfig(
        f"cannot parse the network configuration: {field}: expected {expected}, got "
        f"{shown if len(shown) <= 80 else shown[:77] + '...'}"
    )


class JsonFields:
    """One JSON object of the configuration; ``where`` is its path in messages ("ipam.", or "")."""

    __slots__ = ("values", "where")

    def __init__(self, values: Any, where: str = "") -> None:
        if not isinstance(values, Mapping):
            raise wrong(where.rstrip(".") or "configuration", "an object", values)
        self.values = values
        self.where = where

    def section(self, name: str) -> JsonFields:
        """A nested object; absent or null is an empty one."""
        value = self.values.get(name)
        return JsonFields({} if value is None else value, f"{self.where}{name}.")

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise wrong(self.where + name, "a string", value)
        return value

    def number(self, name: str, default: int = 0, *, low: int = 0, high: int = 2**31 - 1) -> int:
        """An integer within bounds; a string of digits is accepted too (templates put numbers in quotes)."""
        value = self.values.get(name)
        if value is None or value == "":
            return default
        if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 12:
            value = int(value)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise wrong(self.where + name, f"an integer from {low} to {high}", value)
        return value

    def real(self, name: str, default: float = 0.0) -> float:
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong(self.where + name, "a number", value)
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        """A boolean; the strings "true" and "false" (any case) are accepted too, as in upstream's assign_ipv4."""
        value = self.values.get(name)
        if value is None or value == "":
            return default
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise wrong(self.where + name, "true or false", value)
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise wrong(self.where + name, "a list of strings", value)
        return tuple(value)

    def objects(self, name: str) -> tuple[Mapping[str, Any], ...]:
        value = self.values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise wrong(self.where + name, "a list of objects", value)
        return tuple(value)

    def mapping(self, name: str) -> Mapping[str, Any]:
        return self.section(name).values
