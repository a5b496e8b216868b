"""PURE: what an API server asks an admission webhook (AdmissionReview, admission.k8s.io/v1), and the answers.

Rule: a review is read as a whole before anything is decided; what cannot be read is an error, never a permission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

API_VERSION = "admission.k8s.io/v1"
DEFAULT_TIER = "default"
# kind -> plural, of those whose writes rights on tiers decide
POLICIES = {
    "NetworkPolicy": "networkpolicies",
    "GlobalNetworkPolicy": "globalnetworkpolicies",
    "StagedNetworkPolicy": "stagednetworkpolicies",
    "StagedGlobalNetworkPolicy": "stagedglobalnetworkpolicies",
    "StagedKubernetesNetworkPolicy": "stagedkubernetesnetworkpolicies",
}
_WITHOUT_TIER = "StagedKubernetesNetworkPolicy"
OPERATIONS = ("CREATE", "UPDATE", "DELETE")


class UnreadableReview(ValueError):
    """A request that is no AdmissionReview."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who writes, as the API server has authenticated him."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class WriteReview:
    """One write. ``verb``: "create", "update" or "delete". ``name``, ``namespace``: of the object ("": no namespace);
    ``new``, ``old``: the object as it will be, and as it is, None where there is none.
    """

    uid: str
    verb: str
    kind: str
    name: str
    namespace: str
    asker: Asker
    new: Mapping[str, Any] | None
    old: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """``why``: "" allows it; ``code``, ``reason``: of Kubernetes' Status."""

    why: str = ""
    code: int = 403
    reason: str = "Forbidden"


ALLOWED = AdmissionAnswer()


def parse_review(body: bytes) -> WriteReview:
    """Raises UnreadableReview."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as e:
        raise UnreadableReview(f"it is no JSON: {e}") from e
    top = _object(document, "the request")
    if (top.get("apiVersion"), top.get("kind")) != (API_VERSION, "AdmissionReview"):
        raise UnreadableReview(f"it is no AdmissionReview of {API_VERSION}")
    request = _object(top.get("request"), "request")
    operation = _text(request, "operation", "request")
    if operation not in OPERATIONS:
        raise UnreadableReview(f"request.operation is {operation!r}, not one of {', '.join(OPERATIONS)}")
    found = {
        field: _written(request.get(key), f"request.{key}") for field, key in (("new", "object"), ("old", "oldObject"))
    }
    new, old = found["new"], found["old"]
    if (new is None) != (operation == "DELETE") or (old is None) != (operation == "CREATE"):
        raise UnreadableReview(f"{operation} needs other objects than those that it has")
    metadata = _object((new or old or {}).get("metadata"), "metadata of the object")
    return WriteReview(
        uid=_text(request, "uid", "request"),
        verb=operation.lower(),
        kind=_text(_object(request.get("kind"), "request.kind"), "kind", "request.kind"),
        # not the request's: that of a deletion of a collection names no object, and neither does generateName
        name=_optional(metadata, "name", "metadata"),
        namespace=_optional(request, "namespace", "request"),
        asker=_asker(request.get("userInfo")),
        new=new,
        old=old,
    )


def tier_of(kind: str, document: Mapping[str, Any]) -> str:
    """The tier of a policy. Raises UnreadableReview."""
    if kind == _WITHOUT_TIER:
        return DEFAULT_TIER
    spec = document.get("spec")
    return _optional(_object({} if spec is None else spec, "spec"), "tier", "spec") or DEFAULT_TIER


def render_answer(uid: str, answer: AdmissionAnswer) -> dict[str, Any]:
    """The AdmissionReview that answers the one with this UID."""
    response: dict[str, Any] = {"uid": uid, "allowed": not answer.why}
    if answer.why:
        response["status"] = {
            "status": "Failure", "message": answer.why, "reason": answer.reason, "code": answer.code
        }  # fmt: skip
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "response": response}


def _asker(value: Any) -> Asker:
    given = _object(value, "request.userInfo")
    extra = _object(given.get("extra") or {}, "request.userInfo.extra")
    return Asker(
        user=_text(given, "username", "request.userInfo"),
        uid=_optional(given, "uid", "request.userInfo"),
        groups=_texts(given.get("groups"), "request.userInfo.groups"),
        extra=tuple((key, _texts(extra[key], f"request.userInfo.extra.{key}")) for key in sorted(extra)),
    )


def _written(value: Any, at: str) -> Mapping[str, Any] | None:
    return None if value is None else _object(value, at)


def _object(value: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnreadableReview(f"{at} is no object")
    return value


def _optional(within: Mapping[str, Any], name: str, at: str) -> str:
    value = within.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise UnreadableReview(f"{at}.{name} is no text")
    return value


def _text(within: Mapping[str, Any], name: str, at: str) -> str:
    found = _optional(within, name, at)
    if not found:
        raise UnreadableReview(f"{at}.{name} is missing")
    return found


def _texts(value: Any, at: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, Sequence) or not all(isinstance(each, str) for each in value) or isinstance(value, str):
        raise UnreadableReview(f"{at} is no list of texts")
    return tuple(value)
