"""For CHECK: addresses that are held for whoever is checked under a handle that outlasts it.

Rule: only what is not held under the attachment's own handles is looked for; CHECK of all others imports none of this.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from cni_calico.ipam.lasting import LastingAddresses
from cni_calico.ipam.lost.bare import outlives_its_pod
from cni_calico.model.lasting import CONTAINER, is_pod, parse_kept
from cni_calico.model.resources import Address
from cni_calico.plugin.attachment import Attachment
from cni_calico.plugin.call.task import Task


class KeptFor(NamedTuple):
    """``shared``: the pod only shares them with the one in which its machine still runs."""

    addresses: frozenset[Address]
    shared: bool


def find_kept(task: Task, attachment: Attachment, missing: Collection[Address]) -> KeptFor:
    """Those that are kept for it, of the addresses that none of its own handles holds. Raises DatastoreError."""
    lasting, found, is_shared = LastingAddresses(task.fresh_store), set(), False
    kept = task.allocator.handles_of(missing, task.deadline)
    for handle_id in {handle for handle in kept.values() if outlives_its_pod(handle)}:
        for address, owners in lasting.owners(handle_id, task.deadline).items():
            is_container = owners.active.get(CONTAINER) == attachment.container_id
            is_active = is_container or is_pod(owners.active, attachment.namespace, attachment.workload)
            is_named = is_active or is_pod(owners.alternate, attachment.namespace, attachment.workload)
            if address in kept and is_named and parse_kept(handle_id, owners.said):
                found.add(address)
                is_shared = is_shared or not is_active
    return KeptFor(frozenset(found), is_shared)
