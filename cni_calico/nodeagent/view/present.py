"""PURE: which endpoints of this node have their interface.

Rule: an endpoint whose interface does not exist is being created or is gone: nothing is done for it.
"""

from __future__ import annotations

from collections.abc import Iterable

from cni_calico.model.host import HostInterface
from cni_calico.model.names import select_owner
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.endpoints import owner_of


def select_present(
    endpoints: Iterable[WorkloadEndpoint], interfaces: Iterable[HostInterface]
) -> dict[str, WorkloadEndpoint]:
    """The endpoints whose interface exists, by interface; of several that name one, the one whose it is, or none."""
    naming: dict[str, dict[str, WorkloadEndpoint]] = {}
    for endpoint in endpoints:
        if endpoint.interface_name:
            owner = owner_of(endpoint.metadata.namespace, endpoint)
            naming.setdefault(endpoint.interface_name, {})[owner] = endpoint
    found = {}
    for interface in interfaces:
        claims = naming.get(interface.name, {})
        owner = select_owner(interface.alias, claims.keys()) if claims else ""
        if owner:
            found[interface.name] = claims[owner]
    return found
