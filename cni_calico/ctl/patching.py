"""PURE: patches: JSON merge patch (RFC 7386) and JSON patch (RFC 6902).

Rule: the given document is never changed; a patch that does not fit raises InvalidConfig, which says where.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from cni_calico.errors import InvalidConfig


def merge_patch(target: Any, patch: Any) -> Any:
    """``patch`` laid over ``target``: objects are merged, null removes, anything else replaces."""
    if not isinstance(patch, Mapping):
        return patch
    out = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            out.pop(name, None)
        else:
            out[name] = merge_patch(out.get(name), value)
    return out


def json_patch(target: Any, operations: Any) -> Any:
    """``target`` after a list of add, remove, replace, move, copy and test operations."""
    if not isinstance(operations, list):
        raise InvalidConfig("cannot apply JSON patch: expected a list of operations")
    box = {"": copy.deepcopy(target)}
    for operation in operations:
        if not isinstance(operation, Mapping):
            raise InvalidConfig(f"cannot apply JSON patch: {operation!r} is not an operation")
        _apply(box, operation)
    return box[""]


def _apply(box: dict[str, Any], operation: Mapping[str, Any]) -> None:
    op, path = operation.get("op"), operation.get("path")
    if op in ("add", "replace", "test"):
        if "value" not in operation:
            raise InvalidConfig(f"cannot apply JSON patch: {op} {path} has no value")
        value = copy.deepcopy(operation["value"])
        if op == "test":
            if _find(box, path) != value:
                raise InvalidConfig(f"cannot apply JSON patch: test of {path} failed")
        elif op == "add":
            _add(box, path, value)
        else:
            _remove(box, path)
            _add(box, path, value)
    elif op == "remove":
        _remove(box, path)
    elif op in ("move", "copy"):
        value = copy.deepcopy(_find(box, operation.get("from")))
        if op == "move":
            _remove(box, operation.get("from"))
        _add(box, path, value)
    else:
        raise InvalidConfig(f"cannot apply JSON patch: unknown operation {op!r}")


def _steps(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise InvalidConfig(f"cannot apply JSON patch: {path!r} is not a path")
    return [step.replace("~1", "/").replace("~0", "~") for step in path.split("/")]


def _missing(path: Any) -> InvalidConfig:
    return InvalidConfig(f"cannot apply JSON patch: {path} does not exist")


def _index(parent: list[Any], step: str, path: Any, *, end: int) -> int:
    if not step.isascii() or not step.isdecimal() or int(step) >= end:
        raise _missing(path)
    return int(step)


def _child(parent: Any, step: str, path: Any) -> Any:
    if isinstance(parent, list):
        return parent[_index(parent, step, path, end=len(parent))]
    if isinstance(parent, dict) and step in parent:
        return parent[step]
    raise _missing(path)


def _find(box: dict[str, Any], path: Any) -> Any:
    value: Any = box
    for step in _steps(path):
        value = _child(value, step, path)
    return value


def _parent(box: dict[str, Any], path: Any) -> tuple[Any, str]:
    *steps, last = _steps(path)
    parent: Any = box
    for step in steps:
        parent = _child(parent, step, path)
    return parent, last


def _add(box: dict[str, Any], path: Any, value: Any) -> None:
    parent, last = _parent(box, path)
    if isinstance(parent, list):
        at = len(parent) if last == "-" else _index(parent, last, path, end=len(parent) + 1)
        parent.insert(at, value)
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise _missing(path)


def _remove(box: dict[str, Any], path: Any) -> None:
    parent, last = _parent(box, path)
    _child(parent, last, path)
    if isinstance(parent, list):
        del parent[int(last)]
    else:
        del parent[last]
