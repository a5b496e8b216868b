"""PURE: the parts of dataclasses and typing that the code written by build/expand.py needs; in the frozen executables
every record uses them.

Rule: nothing is imported before it is needed; a record behaves like the dataclass or named tuple that it is in the
sources.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field
from typing import Any, TypeVar

ExpandedRecord = TypeVar("ExpandedRecord")

MISSING: Any = object()  # the default of a field with a factory


class Fields:
    """``__dataclass_fields__``, made when ``dataclasses`` first looks for it: names are all its functions use, and
    which are parameters. ``names``: of all of them, if some are none.
    """

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._names = names

    def __get__(self, instance: object, owner: type[Any]) -> dict[str, Field[Any]]:
        from dataclasses import field, make_dataclass

        given = owner.__match_args__
        columns = [(name, Any, field(init=name in given)) for name in self._names or given]
        cls: Any = make_dataclass(owner.__name__, columns)
        made: dict[str, Field[Any]] = cls.__dataclass_fields__
        owner.__dataclass_fields__ = made  # in the place of this: making it takes 2 ms
        return made


def replace(record: ExpandedRecord, /, **changes: Any) -> ExpandedRecord:
    """``dataclasses.replace``."""
    cls: type[Any] = type(record)
    for name in cls.__match_args__:
        if name not in changes:
            changes[name] = getattr(record, name)
    made: ExpandedRecord = cls(**changes)
    return made


def refuse_assignment(record: object, name: str, value: object) -> None:
    """``__setattr__`` of a frozen record."""
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def refuse_deletion(record: object, name: str) -> None:
    """``__delattr__`` of a frozen record."""
    from dataclasses import FrozenInstanceError

    raise FrozenInstanceError(f"cannot delete field {name!r}")


def get_state(record: Any) -> list[Any]:
    """``__getstate__``, for copies and pickles of a frozen record."""
    return [getattr(record, name) for name in record.__slots__]


def set_state(record: Any, state: list[Any]) -> None:
    """``__setstate__``."""
    for name, value in zip(record.__slots__, state, strict=True):
        object.__setattr__(record, name, value)


class _Maker(type):
    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> type:
        if not bases:
            return super().__new__(cls, name, bases, body)
        from collections import namedtuple

        fields = tuple(body["__annotations__"])
        defaults = [body[field] for field in fields if field in body]
        make: Any = namedtuple  # mypy wants the fields as they are written
        made: type = make(name, fields, defaults=defaults, module=body["__module__"])
        for key, value in body.items():
            if key not in fields and key not in ("__annotations__", "__module__", "__qualname__"):
                setattr(made, key, value)
        return made


class NamedTuple(metaclass=_Maker):
    """``typing.NamedTuple`` as a base class: without that import, and made in a tenth of a frozen dataclass's time."""


class Generic:
    """``typing.Generic`` as a base class, of which nobody asks what it is a generic type of."""

    __slots__ = ()

    def __class_getitem__(cls, parameters: object) -> type[Any]:
        return cls


class Literal:
    """``typing.Literal``, for its values alone: ``Literal["a", "b"]`` is the tuple of them."""

    def __class_getitem__(cls, values: Any) -> tuple[Any, ...]:
        return values if isinstance(values, tuple) else (values,)


def get_args(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """``typing.get_args`` of such a Literal."""
    return values


TypedDict = dict  # as a base class


def dataclass_transform(**_: object) -> Callable[[ExpandedRecord], ExpandedRecord]:
    """``typing.dataclass_transform``, which tells only a type checker something."""
    return lambda decorator: decorator
