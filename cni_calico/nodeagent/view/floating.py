"""PURE: which floating IPs of a node's workloads count, and which of IPAM's blocks are to be asked about them.

Rule: what pods ask for is limited, because their annotations are their owners': so many addresses of a workload, and so
many blocks, each workload's first address first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import ip_network

from cni_calico.ipam.pools import pool_of
from cni_calico.model.resources import IPPool, Network, WorkloadEndpoint

PER_WORKLOAD = 16
_BLOCKS = 32
_OPENSTACK = "openstack"


def is_floating(endpoint: WorkloadEndpoint, *, enabled: bool) -> bool:
    """Whether an endpoint's floating IPs count. Those of OpenStack do, whatever FloatingIPs says."""
    return enabled or endpoint.orchestrator == _OPENSTACK


def select_floating_blocks(endpoints: Iterable[WorkloadEndpoint], pools: Sequence[IPPool]) -> frozenset[Network]:
    """The blocks to ask about."""
    asking = sorted(endpoints, key=lambda each: (each.metadata.namespace, each.metadata.name))
    found: dict[Network, None] = {}
    for i in range(PER_WORKLOAD):
        for endpoint in asking:
            if i >= len(endpoint.ip_nats) or len(found) >= _BLOCKS:
                continue
            address = endpoint.ip_nats[i].external_ip
            pool = pool_of(pools, address)
            if pool is not None:
                found[ip_network((address, pool.block_size), strict=False)] = None
    return frozenset(found)
