"""PURE: this node's workloads, one for each interface.

Rule: if several endpoints name one interface, the one with the smallest key gets it; the others wait. An endpoint
without its interface takes part in nothing else.
"""

from __future__ import annotations

from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.active import ActivePolicies
from cni_calico.policy.records import labelled_workload, packet_limits
from cni_calico.policy.wanted import WantedEndpoint

NodeInterface = tuple[str, str]  # (node, name)


class LocalEndpoints:
    """Gives each interface to one endpoint, and passes these endpoints to ``active``."""

    def __init__(self, active: ActivePolicies) -> None:
        self._active = active
        self._records: dict[ResourceKey, WorkloadEndpoint] = {}
        self._claims: dict[NodeInterface, set[ResourceKey]] = {}
        self._holders: dict[NodeInterface, ResourceKey] = {}
        self.changed: set[ResourceKey] = set()  # since the last flush

    def put(self, key: ResourceKey, record: WorkloadEndpoint | None) -> None:
        """None, or a record without addresses or interface, means that there is no such endpoint."""
        before = self._records.pop(key, None)
        if record is not None and labelled_workload(record) is None:
            record = None
        stays = before is not None and record is not None and _interface(record) == _interface(before)
        if before is not None and not stays:
            self._unclaim(key, _interface(before))
        if record is not None:
            self._records[key] = record
            interface = _interface(record)
            self._claims.setdefault(interface, set()).add(key)
            self._settle(interface)
            if self._holders[interface] == key:
                self._enter(key)

    def _unclaim(self, key: ResourceKey, interface: NodeInterface) -> None:
        claims = self._claims[interface]
        claims.discard(key)
        if not claims:
            del self._claims[interface]
        self._settle(interface)

    def _settle(self, interface: NodeInterface) -> None:
        """Give the interface to the endpoint with the smallest key."""
        before = self._holders.get(interface)
        claims = self._claims.get(interface)
        holder = min(claims, key=lambda key: (key.namespace, key.name)) if claims else None
        if holder == before:
            return
        if before is not None:
            self._active.remove_endpoint(before)
            self.changed.add(before)
            del self._holders[interface]
        if holder is not None:
            self._holders[interface] = holder
            self._enter(holder)

    def _enter(self, key: ResourceKey) -> None:
        labelled = labelled_workload(self._records[key])
        assert labelled is not None
        self._active.set_endpoint(key, labelled.labels, labelled.profiles)
        self.changed.add(key)

    def record(self, key: ResourceKey) -> WorkloadEndpoint | None:
        return self._records.get(key)

    def profiles(self) -> set[str]:
        """The profiles that any of the endpoints name."""
        return {name for record in self._records.values() for name in record.profiles}

    def render(self, key: ResourceKey) -> WantedEndpoint | None:
        """The wanted endpoint; None if it does not exist or waits for its interface. Call this right after ``active``
        was flushed.
        """
        record = self._records.get(key)
        if record is None or self._holders.get(_interface(record)) != key:
            return None
        limits = [packet_limits(record, direction) for direction in ("ingress", "egress")]
        return WantedEndpoint(
            key,
            record.interface_name,
            self._active.class_of(key),
            tuple(dict.fromkeys(net.network_address.packed for net in record.ip_networks)),
            record.mac,
            record.allow_spoofed_source_prefixes,
            limits[0],
            limits[1],
            record.orchestrator,
            f"{key.namespace}/{_workload(record)}",
            record.endpoint,
            record.container_id,
        )


def _workload(record: WorkloadEndpoint) -> str:
    """The workload's name in upstream's status files."""
    if record.orchestrator == "k8s":
        return record.pod
    return record.container_id if record.orchestrator == "cni" else record.workload


def _interface(record: WorkloadEndpoint) -> NodeInterface:
    return record.node, record.interface_name
