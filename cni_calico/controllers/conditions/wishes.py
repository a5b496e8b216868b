"""PURE: what a controller says about an object of ``projectcalico.org/v3``, and whether it keeps the object from going.

Rule: of an object only the controller's own finalizer and its one condition change. A condition's time is that of the
last change of its status, and an object that is going gets no new finalizer, which Kubernetes would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.model.documents.fields import JSON


@dataclass(frozen=True, slots=True)
class ObjectCondition:
    type: str
    is_true: bool
    reason: str
    message: str

    @property
    def status(self) -> str:
        return "True" if self.is_true else "False"


@dataclass(frozen=True, slots=True)
class Wish:
    """``holds``: whether the finalizer is to be there; ``condition`` None: nothing is said."""

    holds: bool
    condition: ObjectCondition | None = None


def is_going(document: JSON) -> bool:
    return bool((document.get("metadata") or {}).get("deletionTimestamp"))


def status_of(document: JSON, condition_type: str) -> str:
    """The status of the condition of that type: "True" or "False"; "" if there is none."""
    found = _find(_conditions(document), condition_type)
    return "" if found is None else str(found.get("status") or "")


def apply_wish(document: JSON, wish: Wish, finalizer: str, now: str) -> dict[str, Any]:
    """The document as it should be; the same as it is if nothing is to change. ``now`` is RFC 3339."""
    metadata = dict(document.get("metadata") or {})
    own = [name for name in metadata.get("finalizers") or () if isinstance(name, str)]
    if finalizer in own and not wish.holds:
        metadata["finalizers"] = [name for name in own if name != finalizer]
    elif finalizer not in own and wish.holds and not is_going(document):
        metadata["finalizers"] = [*own, finalizer]
    out = {**document, "metadata": metadata}
    if wish.condition is not None:
        raw = document.get("status")
        status = dict(raw) if isinstance(raw, Mapping) else {}
        status["conditions"] = _with(_conditions(document), wish.condition, now)
        out["status"] = status
    return out


def _conditions(document: JSON) -> Sequence[Mapping[str, Any]]:
    status = document.get("status")
    found = status.get("conditions") if isinstance(status, Mapping) else None
    return [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []


def _find(conditions: Sequence[Mapping[str, Any]], condition_type: str) -> Mapping[str, Any] | None:
    return next((each for each in conditions if each.get("type") == condition_type), None)


def _with(conditions: Sequence[Mapping[str, Any]], wanted: ObjectCondition, now: str) -> list[Mapping[str, Any]]:
    said = {"type": wanted.type, "status": wanted.status, "reason": wanted.reason, "message": wanted.message}
    old = _find(conditions, wanted.type)
    if old is not None and all(old.get(name) == text for name, text in said.items()):
        return list(conditions)
    since = old.get("lastTransitionTime") if old is not None and old.get("status") == wanted.status else None
    made = {**said, "lastTransitionTime": since or now}
    if old is None:
        return [*conditions, made]
    return [made if each is old else each for each in conditions]
