"""The IP pools of the datastore, beside the networks that Docker makes by itself.

Rule: a pool that cannot be read is left out here; 'calicoctl ipam check' reports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cni_calico.deadline import Deadline
from cni_calico.docker.context import DockerHost
from cni_calico.errors import CorruptRecord
from cni_calico.model.documents.codec import decode_pool
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import IPPool, Network


def read_pools(host: DockerHost, deadline: Deadline) -> list[IPPool]:
    """Raises DatastoreError, DeadlineExceeded."""
    found = []
    for item in host.datastore.store.list(ResourceList("IPPool"), deadline).items:
        try:
            if isinstance(item.key, ResourceKey):
                found.append(decode_pool(item.key, item.value))
        except CorruptRecord:
            continue
    return found


def overlaps(pools: Iterable[IPPool], subnets: Mapping[str, Iterable[Network]]) -> Iterator[str]:
    """PURE: a sentence for each network of Docker's bridges, by name, that has addresses of a pool in use."""
    found = [(name, network) for name, networks in sorted(subnets.items()) for network in networks]
    for pool in pools:
        for name, network in found:
            if pool.usable and pool.cidr.version == network.version and pool.cidr.overlaps(network):
                yield (
                    f"Docker's network {name} ({network}) overlaps IP pool {pool.metadata.name} ({pool.cidr}), so some "
                    "of their containers cannot be reached: give dockerd other default-address-pools, or use another "
                    "pool"
                )
