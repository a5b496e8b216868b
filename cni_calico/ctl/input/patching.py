"""PURE: patches: JSON merge patch (RFC 7386), and JSON patch (RFC 6902) by the library jsonpatch.

Rule: the given document is never changed; a patch that does not fit raises InvalidConfig, which says where.
"""

from __future__ import annotations

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
    if not isinstance(operations, list) or not all(isinstance(operation, Mapping) for operation in operations):
        raise InvalidConfig("cannot apply JSON patch: expected a list of operations")
    from jsonpatch import JsonPatch, JsonPatchException, JsonPointerException

    try:
        return JsonPatch(operations).apply(target)
    except (JsonPatchException, JsonPointerException, TypeError) as e:
        raise InvalidConfig(f"cannot apply JSON patch: {' '.join(str(e).split())[:300]}") from e
