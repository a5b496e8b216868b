"""Translates an API server's answers into errors of cni_calico.errors. No effects. Rule: an error contains the server's
own sentence, which names user, verb and resource.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.http import HttpAnswer
from cni_calico.errors import (
    Compacted,
    DatastoreDenied,
    DatastoreError,
    DatastoreForbidden,
    DatastoreUnavailable,
    DatastoreUnsupported,
    RecordRefused,
)


@dataclass(frozen=True, slots=True)
class ApiReply:
    """An answer with a status below 400, or with one that the caller expects. ``document`` is {} for an empty body."""

    status: int
    document: Mapping[str, Any]
    repeated: bool = False

    @property
    def reason(self) -> str:
        return str(self.document.get("reason") or "")

    @property
    def message(self) -> str:
        return str(self.document.get("message") or f"status {self.status}")


def refusal(answer: HttpAnswer, doing: str) -> DatastoreError:
    """The error for an answer with a status from 400 to 499."""
    text = f"cannot {doing}: {message_of(answer)}"
    if answer.status == 401:
        return DatastoreDenied(text, details="the token or certificate is not, or no longer, valid at this API server")
    if answer.status == 403:
        return DatastoreForbidden(text, details=_who_forbids(text))
    if answer.status == 410:
        return Compacted(text, details="\n".join(_fields_of(answer)))
    if answer.status == 404:
        return DatastoreUnsupported(text)
    if answer.status in (400, 413, 415, 422):
        return RecordRefused(text)
    return DatastoreError(text)


def failed_webhook(text: str) -> str:
    """The name of the admission webhook that an API server could not call, so that it wrote nothing; "" if none."""
    return text.partition('failed calling webhook "')[2].partition('"')[0]


def _who_forbids(text: str) -> str:
    if 'admission webhook "' in text:
        return "an admission webhook of this cluster decides that; 'calicoctl policy rights USER' shows rights on tiers"
    if "ValidatingAdmissionPolicy '" in text:
        return "an admission policy of this cluster decides that, whatever the user's roles are"
    return "grant it: the roles in the manifests allow all that is needed"


def _fields_of(answer: HttpAnswer) -> list[str]:
    """The fields that an answer complains about."""
    try:
        causes = json.loads(answer.body)["details"]["causes"]
        return [cause["field"] for cause in causes if isinstance(cause["field"], str)]
    except (ValueError, KeyError, TypeError):
        return []


def require_known_type(reply: ApiReply, path: str, doing: str) -> None:
    """Raises DatastoreUnsupported if a 404 is not about the object but about its type."""
    if reply.reason != "NotFound" or not (reply.document.get("details") or {}).get("name"):
        raise missing_type(path, doing)


def missing_type(path: str, doing: str) -> DatastoreUnsupported:
    return DatastoreUnsupported(
        f"cannot {doing}: the API server does not know {path.partition('?')[0]}",
        details="are Calico's custom resource definitions installed? The manifests have them (crds.yaml)",
    )


def not_served(what: str, group: str, others: Sequence[str]) -> DatastoreUnsupported:
    """``group``: the one that a configuration names; ``others``: those that the cluster serves."""
    served = f"it serves {' and '.join(others)}" if others else "it has none of Calico's custom resource definitions"
    return DatastoreUnsupported(
        f"{what}: {group} is not served by this cluster",
        details=f"{served}; what names the group is calico_api_group, CALICO_API_GROUP or calicoAPIGroup",
    )


def message_of(answer: HttpAnswer) -> str:
    try:
        document = json.loads(answer.body)
        text = document["message"] if document.get("message") else f"status {answer.status}"
    except (ValueError, KeyError, TypeError, AttributeError):
        text = answer.body[:200].decode("utf-8", "replace").strip() or "no explanation"
        text = f"status {answer.status}: {text}"
    return text if len(text) <= 1000 else text[:997] + "..."


def decode_answer(answer: HttpAnswer, doing: str) -> Mapping[str, Any]:
    try:
        document = json.loads(answer.body) if answer.body else {}
    except (ValueError, RecursionError):
        document = None
    if isinstance(document, dict):
        return document
    if answer.status >= 400:
        return {"message": message_of(answer)}
    raise DatastoreUnavailable(f"cannot {doing}: the answer is not a JSON object")
