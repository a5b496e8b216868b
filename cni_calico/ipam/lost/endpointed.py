"""PURE: who is known to have addresses: containers, pods and addresses of endpoints.

Rule: an address may be anybody's of whom one of these speaks, on whatever node.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cni_calico.ipam.lost.bare import suffixes
from cni_calico.ipam.lost.leaks import Holding, reduce_endpoint
from cni_calico.model.resources import Address, WorkloadEndpoint


@dataclass(frozen=True, slots=True)
class Endpointed:
    """``containers`` are folded."""

    containers: frozenset[str]
    pods: frozenset[tuple[str, str]]
    addresses: frozenset[Address]

    def may_have(self, holding: Holding) -> bool:
        """Whether an endpoint has the address, or may be its handle's."""
        return (
            holding.address in self.addresses
            or (bool(holding.pod) and (holding.namespace, holding.pod) in self.pods)
            or not self.containers.isdisjoint(suffixes(holding.handle_id))
        )


def endpointed(endpoints: Iterable[WorkloadEndpoint]) -> Endpointed:
    containers, pods, addresses = set[str](), set[tuple[str, str]](), set[Address]()
    for endpoint in endpoints:
        reduced = reduce_endpoint(endpoint)
        addresses |= reduced.addresses
        if reduced.container_id:
            containers.add(reduced.container_id.casefold())
        if endpoint.pod:
            pods.add((endpoint.metadata.namespace, endpoint.pod))
    return Endpointed(frozenset(containers), frozenset(pods), frozenset(addresses))
