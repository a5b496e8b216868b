"""Asks the runtimes' stores who a container is.

Rule: a store that does not exist belongs to a runtime that is not here; one that is locked, damaged or unreadable is a
reason why labels are missing, never one to fail. Nothing waits longer than the patience that it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.errors import CalicoError
from cni_calico.kernel.files import Files
from cni_calico.model.identity import ContainerIdentity
from cni_calico.model.names import runtimes_id
from cni_calico.plugin.identity.containerd import read_containerd
from cni_calico.plugin.identity.places import STORES
from cni_calico.plugin.identity.podman import read_podman_bolt, read_podman_sqlite

_READERS = (read_podman_sqlite, read_podman_bolt, read_containerd)  # as in STORES


@dataclass(frozen=True, slots=True)
class StoreAnswer:
    """``identity`` None: no runtime knows the container, as far as could be read. ``troubles``: what could not be."""

    identity: ContainerIdentity | None = None
    troubles: tuple[str, ...] = ()


def read_identity(container_id: str, files: Files, patience_s: float) -> StoreAnswer:
    troubles: list[str] = []
    for path, read in zip(STORES, _READERS, strict=True) if runtimes_id(container_id) else ():
        try:
            identity = read(container_id, files, patience_s)
        except FileNotFoundError:
            continue
        except (CalicoError, OSError) as e:
            why = e.message if isinstance(e, CalicoError) else f"cannot read it: {e.strerror or type(e).__name__}"
            troubles.append(f"{path}: {why}")
            continue
        if identity is not None:
            return StoreAnswer(identity, tuple(troubles))
    return StoreAnswer(None, tuple(troubles))
