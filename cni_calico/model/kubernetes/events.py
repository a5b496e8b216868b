"""PURE: Kubernetes' Events, which tell an object's owner what is wrong with it.

Rule: the same text about the same object has the same name, so that it is not told twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.model.names import sha1_hex

_NAME_MAX = 200  # of the object's name in the Event's


def warning_event(subject: Mapping[str, str], reason: str, text: str, now: str, component: str) -> dict[str, Any]:
    """A Warning. ``subject``: kind, namespace, name and uid of an object of API group ""; ``now``: RFC 3339."""
    name = f"{subject['name'][:_NAME_MAX]}.{sha1_hex(subject['uid'] + text)[:16]}"
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": subject["namespace"]},
        "involvedObject": {"apiVersion": "v1", **subject},
        "type": "Warning",
        "reason": reason,
        "message": text,
        "count": 1,
        "firstTimestamp": now,
        "lastTimestamp": now,
        "source": {"component": component},
    }
