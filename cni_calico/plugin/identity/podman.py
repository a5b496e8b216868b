"""What podman's database says of a container: bbolt until podman 4, SQLite since then.

Rule: names, labels, image and pod are all that is taken; the rest of a container's configuration has secrets. Source:
podman's libpod/boltdb_state_internal.go and sqlite_state_internal.go.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cni_calico.errors import DecodeFailure
from cni_calico.kernel.files import Files
from cni_calico.model.identity import ContainerIdentity
from cni_calico.plugin.identity.bolt import BoltFile
from cni_calico.plugin.identity.places import PODMAN_BOLT, PODMAN_SQLITE

_QUERY = "SELECT c.Name, c.JSON, p.Name FROM ContainerConfig c LEFT JOIN PodConfig p ON p.ID = c.PodID WHERE c.ID = ?"
_CONTAINERS, _PODS, _CONFIG = b"ctr", b"pod", b"config"


def read_podman_sqlite(container_id: str, files: Files, patience_s: float) -> ContainerIdentity | None:
    """None if podman does not know it. Raises OSError, CalicoError."""
    from cni_calico.datastore.local.foreign import read_foreign_rows  # only calls for podman 5's containers need SQLite

    rows = read_foreign_rows(files.path(PODMAN_SQLITE), _QUERY, (container_id,), patience_s)
    if not rows:
        return None
    name, text, pod = rows[0]
    return _identity(str(name), _document(text), str(pod or ""))


def read_podman_bolt(container_id: str, files: Files, patience_s: float) -> ContainerIdentity | None:
    """None if podman does not know it. Raises OSError, CalicoError."""
    with BoltFile(files.path(PODMAN_BOLT)) as bolt:
        text = bolt.get(_CONTAINERS, container_id.encode(), _CONFIG)
        if text is None:
            return None
        config = _document(text)
        pod_id = str(config.get("pod") or "")
        pod = bolt.get(_PODS, pod_id.encode(), _CONFIG) if pod_id else None
    return _identity(str(config.get("name") or ""), config, str(_document(pod).get("name") or "") if pod else "")


def _document(text: bytes | str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, TypeError, RecursionError) as e:
        raise DecodeFailure("cannot read podman's database: a container's configuration is not JSON") from e
    if not isinstance(document, dict):
        raise DecodeFailure("cannot read podman's database: a container's configuration is not an object")
    return document


def _identity(name: str, config: Mapping[str, Any], pod: str) -> ContainerIdentity:
    labels = config.get("labels") or {}
    if not isinstance(labels, dict):
        raise DecodeFailure("cannot read podman's database: a container's labels are not an object")
    own = {str(key): str(value) for key, value in labels.items()}
    return ContainerIdentity(name, str(config.get("rootfsImageName") or ""), pod, own)
