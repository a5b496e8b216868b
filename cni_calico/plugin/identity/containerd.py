"""What containerd's database says of a container that nerdctl has made: nerdctl keeps name and labels there.

Rule: the labels of nerdctl's own (``nerdctl/...``) are not the container's; Kubernetes' containers are not looked at.
Source: containerd's metadata/buckets.go (schema v1); nerdctl's pkg/labels.
"""

from __future__ import annotations

from cni_calico.kernel.files import Files
from cni_calico.model.identity import ContainerIdentity
from cni_calico.model.names import runtimes_id
from cni_calico.plugin.identity.bolt import BoltFile
from cni_calico.plugin.identity.places import CONTAINERD_BOLT

_SCHEMA, _CONTAINERS, _LABELS = b"v1", b"containers", b"labels"
_KUBERNETES = b"k8s.io"
_INTERNAL, _NAME = "nerdctl/", "nerdctl/name"


def read_containerd(container_id: str, files: Files, patience_s: float) -> ContainerIdentity | None:
    """None if containerd does not know it outside Kubernetes. Raises OSError, CalicoError."""
    with BoltFile(files.path(CONTAINERD_BOLT)) as bolt:
        own_id = runtimes_id(container_id)
        named = container_id[: -len(own_id) - 1].encode()  # nerdctl's calls say in which namespace it is
        for namespace in bolt.names(_SCHEMA):
            where = (_SCHEMA, namespace, _CONTAINERS, own_id.encode())
            if namespace == _KUBERNETES or (named and namespace != named) or not (values := bolt.values(*where)):
                continue
            labels = {_text(key): _text(value) for key, value in bolt.values(*where, _LABELS).items()}
            own = {key: value for key, value in labels.items() if not key.startswith(_INTERNAL)}
            return ContainerIdentity(labels.get(_NAME, ""), _text(values.get(b"image", b"")), "", own)
    return None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
