"""PURE: the answer to a call: an exit code and the text for stdout."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cni_calico.cni.versions import CURRENT, SUPPORTED
from cni_calico.errors import CalicoError
from cni_calico.redaction import without_secrets

MESSAGE_MAX = 4096


@dataclass(frozen=True, slots=True)
class Answer:
    exit_code: int = 0
    stdout: str = ""


NOTHING = Answer()


def answer_document(document: Mapping[str, Any]) -> Answer:
    return Answer(0, json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n")


def answer_error(error: CalicoError, version: str) -> Answer:
    """The CNI error object; the version is the configuration's when it is one of ours, else the newest."""
    document = {
        "cniVersion": version if version in SUPPORTED else CURRENT,
        "code": error.code,
        "msg": without_secrets(error.message)[:MESSAGE_MAX],
    }
    if error.details:
        document["details"] = without_secrets(error.details)[:MESSAGE_MAX]
    return Answer(1, json.dumps(document, separators=(",", ":")) + "\n")
