"""PURE: NamedTuple without typing, so that the CNI call path does not pay for that import.

Rule: mypy sees ``typing.NamedTuple`` (import it under TYPE_CHECKING), the running program this class; defining a record
with it costs a tenth of a frozen dataclass.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Maker(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = tuple(body["__annotations__"])
        defaults = [body[field] for field in fields if field in body]
        make: Any = namedtuple  # mypy wants the fields as they are written
        made: type = make(name, fields, defaults=defaults, module=body["__module__"])
        for key, value in body.items():
            if key not in fields and key not in ("__annotations__", "__module__", "__qualname__"):
                setattr(made, key, value)
        return made


class NamedTuple(metaclass=_Maker):
    """Takes the place of ``typing.NamedTuple`` as a base class."""
