"""PURE: addresses that only a pod's own annotation gives it, and which of them are confirmed otherwise.

Rule: anyone who may patch a pod may write anything into its annotations. So an address from there counts only while the
pod's status names none, and only if IPAM holds it for this pod or, if our IPAM is not used, if it is inside this node's
pod CIDRs. Namespace and name of a pod cannot be patched; its container ID, and so its handle, can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.model.resources import Address, Network, WorkloadEndpoint

Holder = tuple[str, str]  # namespace, name of a pod


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """``claimed``: only the annotation says that it has its addresses."""

    record: WorkloadEndpoint
    claimed: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """Endpoints with the addresses that count; ``unproven``: the addresses that do not, by host interface."""

    endpoints: tuple[WorkloadEndpoint, ...]
    unproven: Mapping[str, frozenset[Network]]
    problems: tuple[str, ...]


def is_claimed(pod: Mapping[str, Any]) -> bool:
    """Whether the status of a Pod (as Kubernetes has it) names no address."""
    status = pod.get("status") or {}
    return not (isinstance(status, Mapping) and (status.get("podIPs") or status.get("podIP")))


def judge_claims(
    endpoints: Iterable[LocalEndpoint], held: Mapping[Address, Holder], pod_cidrs: Iterable[Network]
) -> Judged:
    """``held``: the addresses that IPAM has for pods of this node."""
    ranges = tuple(pod_cidrs)
    judged, problems = [], []
    unproven: dict[str, frozenset[Network]] = {}
    for endpoint in endpoints:
        record = endpoint.record
        who = (record.metadata.namespace, record.pod)
        doubtful = {
            network
            for network in (record.ip_networks if endpoint.claimed else ())
            if held.get(network.network_address) != who and not _is_inside(network, ranges)
        }
        if doubtful:
            kept = tuple(network for network in record.ip_networks if network not in doubtful)
            unproven[record.interface_name] = unproven.get(record.interface_name, frozenset()) | doubtful
            listed = ", ".join(sorted(map(str, doubtful)))
            problems.append(
                f"pod {'/'.join(who)}: its annotation claims {listed}, which neither IPAM nor a podCIDR confirms: not "
                "routed"
            )
            record = replace(record, ip_networks=kept)
        judged.append(record)
    return Judged(tuple(judged), unproven, tuple(problems))


def _is_inside(network: Network, ranges: Iterable[Network]) -> bool:
    return any(network.version == cidr.version and network.network_address in cidr for cidr in ranges)
