"""Whether a node's blocks may have addresses of other nodes' containers.

Rule: none only with strict affinity, or where no other Node exists. An allocation without attributes does not say whose
it is, so what another node may have borrowed is left to what knows more than the block's node.
"""

from __future__ import annotations

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.ipam.allocator import Allocator
from cni_calico.model.keys import ResourceKey, ResourceList


def may_be_borrowed(store: Datastore, node: str, deadline: Deadline) -> bool:
    """Raises DatastoreError and CorruptRecord."""
    config = Allocator(store).ledger(deadline).config()
    if config is not None and config.strict_affinity:
        return False
    listing = store.list(ResourceList("Node"), deadline)
    return bool(listing.unreadable) or any(item.key != ResourceKey("Node", node) for item in listing.items)
