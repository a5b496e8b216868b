"""PURE: revisions of the Kubernetes backend.

A revision is "<resourceVersion>[@<resourceVersion>,...][/<state>]": the object's own; for a watch of several
collections the position in each; and for a Pod or Node the state of Calico's part of it, because the rest changes all
the time and must not make our writes fail.
"""

from __future__ import annotations

import json

from cni_calico.datastore.interface import Revision
from cni_calico.model.documents.fields import JSON
from cni_calico.model.kubernetes import pods as crd_pods
from cni_calico.model.names import sha1_hex

_encode = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make one for each pod


def resource_version(revision: Revision | None) -> str:
    """The resourceVersion of an object."""
    return str(revision if revision is not None else "").partition("/")[0].partition("@")[0]


def positions(revision: Revision, count: int) -> list[str]:
    """The resourceVersions from which to watch each of ``count`` collections."""
    head = str(revision).partition("/")[0]
    own, _, each = head.partition("@")
    found = each.split(",") if each else []
    return found if len(found) == count else [own] * count


def state_of(revision: Revision) -> str:
    return str(revision).partition("/")[2]


def render_revision(obj: JSON, state: str, standing: list[str] | None = None) -> str:
    """The revision of an object as it came from the server."""
    revision = str((obj.get("metadata") or {}).get("resourceVersion") or "")
    if standing is not None:
        revision += "@" + ",".join(standing)
    return f"{revision}/{state}" if state else revision


def no_state(_: JSON) -> str:
    return ""


def pod_state(obj: JSON) -> str:
    """The endpoint's part of a pod: null without annotations, else [containerID, podIPs], each null if absent."""
    annotations = (obj.get("metadata") or {}).get("annotations")
    if annotations is None:
        return "null"
    texts = [annotations.get(crd_pods.CONTAINER_ID), annotations.get(crd_pods.POD_IPS)]
    return _encode(texts)


def node_state(obj: JSON) -> str:
    """A digest of Calico's part of a Node."""
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    own = {name: value for name, value in annotations.items() if name.startswith("projectcalico.org/")}
    return sha1_hex(json.dumps(own, sort_keys=True))
