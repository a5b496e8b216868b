"""What ``calicoctl delete`` refuses: things that the cluster needs, and things that are still in use.

Rule: this module only checks; removal.py calls it before it changes anything.
"""

from __future__ import annotations

from collections import Counter

from cni_calico.ctl.session import CommandFailed, OperationNotSupported, Session, shown_key
from cni_calico.errors import CorruptRecord, DatastoreUnsupported
from cni_calico.ipam.lost.leaks import TUNNELS
from cni_calico.model.documents import codec
from cni_calico.model.documents.tiers import TIERED_KINDS, TIERS
from cni_calico.model.keys import BlockKey, BlockList, ResourceKey, ResourceList
from cni_calico.model.resources import IPPool, is_within

WINDOWS_RESERVED = "windows-reserved-ipam-handle"  # the first addresses of a block of a Windows node
_NODES_SHOWN = 5


def require_deletable_tier(session: Session, key: ResourceKey) -> None:
    """Raises OperationNotSupported for a tier of every cluster and for one with policies (upstream's words)."""
    if key.name in TIERS:
        raise OperationNotSupported("Delete", key.name, f"Cannot delete {key.name} tier")
    for kind in TIERED_KINDS:
        try:
            found = session.store.list(ResourceList(kind), session.deadline).items
        except DatastoreUnsupported:
            continue  # an older cluster has no such type, and so none of them
        for item in found:
            spec = item.value.get("spec")
            if isinstance(spec, dict) and spec.get("tier") == key.name:
                raise OperationNotSupported("delete", key.name, "Cannot delete a non-empty tier")


def require_unused_pool(session: Session, key: ResourceKey, pool: IPPool) -> None:
    """Raises CommandFailed, naming nodes, if workloads have addresses of the pool."""
    users = count_workload_addresses(session, pool)
    if not users:
        return
    total = sum(users.values())
    shown = [f"{node or 'no node'} ({count})" for node, count in users.most_common(_NODES_SHOWN)]
    more = len(users) - len(shown)
    nodes = ", ".join(shown) + (f" and {more} more" if more else "")
    addresses = "address is" if total == 1 else "addresses are"
    failed = CommandFailed(f"cannot delete {shown_key(key)}: {total} workload {addresses} in use, on nodes {nodes}")
    failed.details = (
        "disable the pool and replace those workloads first; with --force it is deleted, they keep their addresses, "
        "and routing, masquerading and encapsulation for these addresses end"
    )
    raise failed


def count_workload_addresses(session: Session, pool: IPPool) -> Counter[str]:
    """The number of allocated addresses of the pool by node; tunnel addresses do not count. Raises DatastoreError."""
    users: Counter[str] = Counter()
    for item in session.store.list(BlockList(pool.cidr.version), session.deadline).items:
        assert isinstance(item.key, BlockKey)
        if not is_within(item.key.cidr, pool.cidr):
            continue
        try:
            block = codec.decode_block(item.key, item.value)
        except CorruptRecord as e:
            session.note_damaged(item.key, e.message)
            continue
        for index in block.allocations:
            if index is None:
                continue
            holder = block.attributes[index]
            if holder.secondary.get("type") not in TUNNELS and holder.handle_id != WINDOWS_RESERVED:
                users[holder.secondary.get("node", "")] += 1
    return users
