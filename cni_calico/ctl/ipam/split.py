"""``calicoctl ipam split``: one pool becomes several of the same kind that cover the same addresses.

Rule: blocks and addresses stay as they are, only the pools that contain them change; so the datastore must be locked,
and no block may span two of the new pools. After an interruption (on Kubernetes, which has no transactions) the command
can be repeated.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from ipaddress import ip_network
from typing import Any

from cni_calico.ctl.ipam.records import read_cluster
from cni_calico.ctl.resources.operations import plan_new, read_resource
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.interface import CommitConflict, Versioned, Write
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import decode_pool
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import IPPool, Network


def split(session: Session, arguments: Namespace) -> str:
    """Raises InvalidConfig, CommandFailed, ResourceMissing, DatastoreError."""
    found = _find_pool(session, arguments.name, arguments.cidr)
    assert isinstance(found.key, ResourceKey)
    pool = decode_pool(found.key, found.value)
    parts = plan_parts(pool, arguments.number)
    if read_cluster(session)[0].get("datastoreReady") is not False:
        raise CommandFailed(
            "cannot split a pool: Datastore is not locked. Run `calicoctl datastore migrate lock` first"
        )
    writes = [_write(session, found, name, cidr) for name, cidr in parts.items()]
    if len(writes) < session.store.max_commit:
        session.store.commit([*writes, Write.delete(found)], session.deadline)
    else:
        for write in writes:
            _create(session, write)
        session.store.commit([Write.delete(found)], session.deadline)
    lines = "".join(f"  {name}: {cidr}\n" for name, cidr in parts.items())
    return f"Successfully split IPPool({found.key.name}), {pool.cidr}, into\n{lines}"


def _find_pool(session: Session, name: str, cidr: str) -> Versioned:
    if bool(name) == bool(cidr):
        raise InvalidConfig("cannot split a pool: give either --name or --cidr")
    if name:
        return read_resource(session, ResourceKey("IPPool", name))
    wanted = _network(cidr)
    if wanted is None:
        raise InvalidConfig(f"cannot split a pool: --cidr {cidr} is not a CIDR")
    for item in session.store.list(ResourceList("IPPool"), session.deadline).items:
        if _network(str((item.value.get("spec") or {}).get("cidr") or "")) == wanted:
            return item
    raise CommandFailed(f"cannot split a pool: no pool has the CIDR {cidr}")


def _network(cidr: str) -> Network | None:
    """The network that a text names, in any spelling; None if the text is not a network."""
    try:
        return ip_network(cidr, strict=False) if "/" in cidr else None
    except ValueError:
        return None


def plan_parts(pool: IPPool, number: int) -> dict[str, Network]:
    """The new pools' networks by name. Raises InvalidConfig."""
    bits = number.bit_length() - 1
    if number < 2 or number != 1 << bits:
        raise InvalidConfig(f"cannot split {pool.metadata.name} into {number}: must be a power of two, 2 or more")
    if pool.cidr.prefixlen + bits > pool.block_size:
        raise InvalidConfig(
            f"cannot split {pool.metadata.name} into {number}: {pool.cidr} has "
            f"{1 << (pool.block_size - pool.cidr.prefixlen)} blocks of /{pool.block_size}"
        )
    networks: Iterable[Network] = pool.cidr.subnets(prefixlen_diff=bits)
    return {f"split-{pool.metadata.name}-{i}": network for i, network in enumerate(networks)}


def _write(session: Session, old: Versioned, name: str, cidr: Network) -> Write:
    metadata = {"name": name} | {
        field: old.value["metadata"][field] for field in ("labels", "annotations") if old.value["metadata"].get(field)
    }
    key = ResourceKey("IPPool", name)
    document: dict[str, Any] = {**old.value, "metadata": metadata, "spec": {**old.value["spec"], "cidr": str(cidr)}}
    document.pop("status", None)
    return Write.create(key, plan_new(session, key, document))


def _create(session: Session, write: Write) -> None:
    """Create a pool, unless an earlier attempt already created the same one."""
    try:
        session.store.commit([write], session.deadline)
    except CommitConflict as e:
        stored = e.failed[0].current
        if stored is None or write.value is None or stored.value.get("spec") != write.value["spec"]:
            raise
