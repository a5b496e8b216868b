"""PURE: this node's workloads, one for each interface.

Rule: an interface whose alias names a workload is that workload's. Without such an alias it is the only one's whose
endpoints name it; if those of several do, it is nobody's. Nobody's packets pass there, and whoever named it waits. An
endpoint without its interface takes part in nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cni_calico.model.identity import container_name
from cni_calico.model.keys import ResourceKey
from cni_calico.model.names import owner_in, owner_text, select_owner, shown_owner
from cni_calico.model.qos import DSCP, read_dscp
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.active import ActivePolicies
from cni_calico.policy.records import labels_of_workload, packet_limits, takes_part
from cni_calico.policy.wanted import WantedEndpoint

NodeInterface = tuple[str, ...]  # (node, name), and for endpoints that share interfaces their own names


@dataclass(frozen=True, slots=True)
class PresentInterface:
    """An interface that exists."""

    up: bool
    alias: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether it is known whose it is: an ADD sets the alias when it brings the interface up."""
        return self.up or bool(owner_in(self.alias))


@dataclass(frozen=True, slots=True)
class Dispute:
    """Workloads ("namespace/name") that name an interface which they cannot all have. ``holder`` has it, "": nobody of
    them; ``owner``: the workload that the interface's alias names. ``pods``: (namespace, name) of those that are pods.
    """

    interface: str
    claimants: tuple[str, ...]
    holder: str = ""
    owner: str = ""
    pods: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        losing = " and ".join(name for name in self.claimants if name != self.holder)
        if self.holder:
            return f"{losing} has no network policy and no network: interface {self.interface} is {self.holder}'s"
        if self.owner:
            return f"interface {self.interface} is closed: it is {self.owner}'s, and {losing} names it"
        return f"interface {self.interface} is closed: {losing} name it, and nothing shows whose it is"


class LocalEndpoints:
    """Gives each interface to one endpoint, and passes these endpoints to ``active``. ``alone`` False: every endpoint
    counts, as if each had the interface that it names.
    """

    def __init__(self, active: ActivePolicies, *, alone: bool = True) -> None:
        self._active = active
        self._alone = alone
        self._records: dict[ResourceKey, WorkloadEndpoint] = {}
        self._claims: dict[NodeInterface, set[ResourceKey]] = {}
        self._holders: dict[NodeInterface, ResourceKey] = {}
        self._present: dict[NodeInterface, PresentInterface] = {}
        self._present_only = False
        self.disputes: dict[NodeInterface, Dispute] = {}
        self.changed: set[ResourceKey] = set()  # since the last flush

    def put(self, key: ResourceKey, record: WorkloadEndpoint | None) -> None:
        """None, or a record without addresses or interface, means that there is no such endpoint."""
        before = self._records.pop(key, None)
        if record is not None and not takes_part(record):
            record = None
        if before is None and record is None:
            return
        stays = (
            before is not None and record is not None and self._interface(key, record) == self._interface(key, before)
        )
        if before is not None and not stays:
            self._unclaim(key, self._interface(key, before))
        if record is not None:
            self._records[key] = record
            interface = self._interface(key, record)
            self._claims.setdefault(interface, set()).add(key)
            if self._holders.get(interface) == self._settle(interface) == key:  # a new holder has just been entered
                self._enter(key)

    def see(self, node: str, interfaces: Mapping[str, PresentInterface | None]) -> None:
        """Note interfaces of a node that have changed, None for those that are gone."""
        for name, link in interfaces.items():
            if link is None:
                self._present.pop((node, name), None)
            else:
                self._present[node, name] = link
            if (node, name) in self._claims:
                self._settle((node, name))

    def require_present(self, *, needed: bool) -> None:
        """Give no interface to anybody before it exists: anyone may write the records' names of interfaces."""
        self._present_only = needed

    def _interface(self, key: ResourceKey, record: WorkloadEndpoint) -> NodeInterface:
        own = () if self._alone else (key.namespace, key.name)
        return (record.node, record.interface_name, *own)

    def _unclaim(self, key: ResourceKey, interface: NodeInterface) -> None:
        claims = self._claims[interface]
        claims.discard(key)
        if not claims:
            del self._claims[interface]
        self._settle(interface)

    def _settle(self, interface: NodeInterface) -> ResourceKey | None:
        """Give the interface to the endpoint that it belongs to; among several of one workload to the one with the
        smallest key.
        """
        before, holder = self._holders.get(interface), self._choose(interface)
        if holder == before:
            return holder
        if before is not None:
            self._active.remove_endpoint(before)
            self.changed.add(before)
            del self._holders[interface]
        if holder is not None:
            self._holders[interface] = holder
            self._enter(holder)
        return holder

    def _choose(self, interface: NodeInterface) -> ResourceKey | None:
        present = self._present.get(interface)
        alias = "" if present is None else present.alias
        claims = (key for key in self._claims.get(interface, ()) if key in self._records)
        owners = {key: owner_of(key.namespace, self._records[key]) for key in claims}
        owner = select_owner(alias, owners.values()) if owners else ""
        if owners and (not owner or len(set(owners.values())) > 1):
            self.disputes[interface] = self._dispute(interface[1], owners, owner, shown_owner(owner_in(alias)))
        else:
            self.disputes.pop(interface, None)
        if not owner or (self._present_only and (present is None or not present.is_settled)):
            return None
        fitting = (key for key, one in owners.items() if one == owner)
        return min(fitting, key=lambda key: (key.namespace, key.name))

    def _dispute(self, name: str, owners: Mapping[ResourceKey, str], holder: str, owner: str) -> Dispute:
        shown = {text: f"{key.namespace}/{_workload(self._records[key])}" for key, text in owners.items()}
        pods = {(key.namespace, self._records[key].pod) for key in owners if self._records[key].orchestrator == "k8s"}
        return Dispute(name, tuple(sorted(shown.values())), shown.get(holder, ""), owner, tuple(sorted(pods)))

    def _enter(self, key: ResourceKey) -> None:
        record = self._records[key]
        self._active.set_endpoint(key, labels_of_workload(record), record.profiles)
        self.changed.add(key)

    def record(self, key: ResourceKey) -> WorkloadEndpoint | None:
        return self._records.get(key)

    def keys(self) -> Iterable[ResourceKey]:
        """Of all that were put."""
        return self._records.keys()

    def profiles(self) -> set[str]:
        """The profiles that any of the endpoints name."""
        return {name for record in self._records.values() for name in record.profiles}

    def render(self, key: ResourceKey) -> WantedEndpoint | None:
        """The wanted endpoint; None if it does not exist or waits for its interface. Call this right after ``active``
        was flushed.
        """
        record = self._records.get(key)
        if record is None or self._holders.get(self._interface(key, record)) != key:
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
            container_name(record),
            read_dscp((record.qos_controls or {}).get(DSCP)),
        )


def owner_of(namespace: str, record: WorkloadEndpoint) -> str:
    """The workload as the alias of its interface names it (names.owner_text)."""
    return owner_text(record.orchestrator, namespace, _workload(record) or record.metadata.name)


def _workload(record: WorkloadEndpoint) -> str:
    """The workload's name in upstream's status files."""
    if record.orchestrator == "k8s":
        return record.pod
    return record.container_id if record.orchestrator == "cni" else record.workload
