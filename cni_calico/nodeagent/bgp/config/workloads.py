"""PURE: BGP with workloads of this node: which workload is whose peer, and at which address it finds the host.

Rule: the workload connects, to the BGPConfiguration's peering address, which its interface on the host has; of several
BGPPeers that select it the one with the smallest name counts. Without a peering address there is no session.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.model.selector_forms import NAMESPACE, ORCHESTRATOR, SERVICE_ACCOUNT
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.peerspec import PeerSpec, left_out


@dataclass(frozen=True, slots=True)
class LocalWorkload:
    """``labels``: its own and, behind these, those of its profiles. ``addresses``: its first one of each family."""

    interface: str
    shown: str
    labels: Mapping[str, str]
    addresses: tuple[Address, ...]


@dataclass(frozen=True, slots=True)
class WorkloadPeering:
    """``at``: the address of the host's end, for the workload's ``address``."""

    spec: PeerSpec
    workload: LocalWorkload
    address: Address
    at: Address


def describe_workload(
    interface: str, endpoint: WorkloadEndpoint, profiles: Mapping[str, Mapping[str, str]]
) -> LocalWorkload:
    """``profiles``: the labels that each gives."""
    labels: dict[str, str] = {}
    for name in reversed(endpoint.profiles):
        labels |= profiles.get(name, {})
    labels |= endpoint.metadata.labels
    labels[NAMESPACE] = endpoint.metadata.namespace
    for name, value in ((ORCHESTRATOR, endpoint.orchestrator), (SERVICE_ACCOUNT, endpoint.service_account)):
        if value:
            labels[name] = value
    first: dict[int, Address] = {}
    for network in endpoint.ip_networks:
        if network.num_addresses == 1:
            first.setdefault(network.version, network.network_address)
    shown = f"{endpoint.metadata.namespace}/{endpoint.pod or endpoint.workload or endpoint.metadata.name}"
    return LocalWorkload(interface, shown, labels, tuple(first.values()))


def select_peerings(
    specs: Iterable[PeerSpec],
    workloads: Iterable[LocalWorkload],
    addresses: Mapping[int, Address],
    families: Iterable[int],
) -> Iterator[WorkloadPeering | BgpProblem]:
    """``specs``: those for workloads of this node. ``addresses``: the peering address of each family."""
    ordered = sorted(specs, key=lambda spec: spec.name)
    for workload in sorted(workloads, key=lambda one: one.interface):
        spec = next((one for one in ordered if one.workload_selector and _matches(one, workload)), None)
        for address in workload.addresses if spec is not None else ():
            assert spec is not None
            version = address.version
            if version not in families:
                continue
            if version in addresses:
                yield WorkloadPeering(spec, workload, address, addresses[version])
            else:
                missing = f"{workload.shown}: the BGPConfiguration has no localWorkloadPeeringIPV{version}"
                yield left_out(BgpProblem(spec.about, missing))


def _matches(spec: PeerSpec, workload: LocalWorkload) -> bool:
    return spec.workload_selector is not None and spec.workload_selector.matches(workload.labels)
