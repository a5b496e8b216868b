"""All records that policy depends on, as stored, with those of files that are not applied yet in their place. Rule: the
records are read once and judged without further requests, by the same calculation as the agents'.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.ctl.input.manifests import DEFAULT_NAMESPACE, parse_key, read_files
from cni_calico.ctl.listing import read_kind
from cni_calico.ctl.policy.claims import claims_addresses, confirm
from cni_calico.ctl.rule_budget import read_rule_budget
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Document
from cni_calico.errors import CorruptRecord, InvalidConfig
from cni_calico.model.documents.codec import decode_node, describe
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.identity import container_name
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.kubernetes.policies import CLUSTER_NETWORK_POLICY, NETWORK_POLICY, NODE_SELECTOR
from cni_calico.model.resources import Network, Node, Resource, WorkloadEndpoint
from cni_calico.policy.budget import DEFAULT
from cni_calico.policy.confirmed import ClaimedEndpoint
from cni_calico.policy.decode import KINDS, KUBERNETES_KINDS, decode_record
from cni_calico.policy.endpoints import owner_of
from cni_calico.policy.graph import Graph
from cni_calico.policy.hosts import HostRecord, parse_host
from cni_calico.policy.kubernetes import DEFAULT_ALLOW
from cni_calico.policy.nodes import HOSTS, GraphRecord
from cni_calico.policy.records import POLICY_KINDS
from cni_calico.policy.sets import NODE
from cni_calico.policy.wanted import PolicyId

_KUBERNETES = {
    ("networking.k8s.io/v1", "NetworkPolicy"): NETWORK_POLICY,
    ("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy"): CLUSTER_NETWORK_POLICY,
}
_WITH_RULES = frozenset((*POLICY_KINDS, "Profile"))


def workload_name(key: ResourceKey, record: WorkloadEndpoint) -> str:
    """What people call a workload: the pod, the container's name; else the ID, or the record's own name."""
    return record.pod or container_name(record) or record.workload or record.container_id or key.name


@dataclass(slots=True)
class PolicyRecords:
    """``overlaid``: the keys that come from files. ``nodes``: read only if there are host endpoints. ``over_budget``:
    how many rules policies may need that deny for it; known once there is a graph. ``claimed``:
    the pods whose addresses only their annotations name.
    """

    documents: dict[ResourceKey, Document] = field(default_factory=dict)
    records: dict[ResourceKey, GraphRecord] = field(default_factory=dict)
    overlaid: set[ResourceKey] = field(default_factory=set)
    nodes: dict[str, Node] = field(default_factory=dict)
    over_budget: dict[PolicyId, int] = field(default_factory=dict)
    budget: int = DEFAULT
    claimed: dict[ResourceKey, ClaimedEndpoint] = field(default_factory=dict)
    _hosts: dict[ResourceKey, tuple[Resource, HostRecord]] = field(default_factory=dict, init=False)
    # the workloads that name an interface of a node, once somebody asks
    _naming: dict[tuple[str, str], list[tuple[ResourceKey, WorkloadEndpoint]]] | None = field(default=None, init=False)

    @property
    def endpoints(self) -> dict[ResourceKey, WorkloadEndpoint]:
        return {key: record for key, record in self.records.items() if isinstance(record, WorkloadEndpoint)}

    def endpoint(self, key: ResourceKey) -> WorkloadEndpoint:
        """Raises KeyError."""
        record = self.records[key]
        if not isinstance(record, WorkloadEndpoint):
            raise KeyError(key)
        return record

    def host(self, key: ResourceKey) -> HostRecord:
        """A host endpoint, parsed once. Raises KeyError; ValueError if it is not valid."""
        record = self.records[key]
        if not isinstance(record, Resource) or key.kind != HOSTS:
            raise KeyError(key)
        parsed = self._hosts.get(key)
        if parsed is None or parsed[0] is not record:
            parsed = self._hosts[key] = record, parse_host(record)
        return parsed[1]

    def counting(self, key: ResourceKey) -> tuple[Network, ...]:
        """The addresses of an endpoint that policies see."""
        claimed = self.claimed.get(key)
        return self.endpoint(key).ip_networks if claimed is None else claimed.confirmed

    def dispute(self, key: ResourceKey) -> str:
        """What it means that other workloads name a workload's interface; "" if none does."""
        own = self.endpoint(key)
        if self._naming is None:  # all records are there by now
            self._naming = {}
            for other, record in self.endpoints.items():
                if record.ip_networks:
                    self._naming.setdefault((record.node, record.interface_name), []).append((other, record))
        naming = self._naming.get((own.node, own.interface_name), ())
        if len(naming) < 2:
            return ""
        others = {
            f"{other.namespace}/{workload_name(other, record)}"
            for other, record in naming
            if owner_of(other.namespace, record) != owner_of(key.namespace, own)
        }
        if not others or not own.ip_networks or not own.interface_name:
            return ""
        return (
            f"{' and '.join(sorted(others))} on {own.node} names the same interface, {own.interface_name}: on the node "
            "its alias decides whose it is, and without one that names a workload it is closed"
        )

    def graph(self, chosen: Collection[ResourceKey], *, members: bool = True) -> Graph:
        """The graph for these endpoints, whichever nodes they are on. ``members``: as for Graph."""
        names = {(key.namespace, key.name) for key in chosen if key.kind == "WorkloadEndpoint"}
        hosts: dict[tuple[str, str], list[HostRecord]] = {}
        for host in (self.host(key) for key in chosen if key.kind == HOSTS and key in self.records):
            hosts.setdefault((host.node, host.interface), []).append(host)
        graph = Graph(
            lambda record: (record.metadata.namespace, record.metadata.name) in names,
            lambda host: host in hosts.get((host.node, host.interface), ()),
            alone=False,
            members=members,
        )
        graph.set_budget(self.budget)
        for key, record in self.records.items():
            graph.put(key, self._parsed(key, record) if key.kind == HOSTS else self.claimed.get(key) or record)
        graph.flush()
        self.over_budget = dict(graph.over_budget)
        return graph

    def _parsed(self, key: ResourceKey, record: GraphRecord) -> GraphRecord:
        """A host endpoint as it is parsed; if it is not valid as it is, so that the graph says why."""
        try:
            return self.host(key)
        except ValueError:
            return record


def load_stored(session: Session) -> PolicyRecords:
    """What is stored and can be read."""
    return load(session, Namespace(overlay=(), warn=_ignore))


def load(session: Session, arguments: Namespace) -> PolicyRecords:
    """Raises InvalidConfig for a file that cannot be used; warns of records that cannot be read."""
    found = PolicyRecords(budget=read_rule_budget(session))
    kinds: tuple[str, ...] = KINDS
    found.records[ResourceKey("Profile", DEFAULT_ALLOW.metadata.name)] = DEFAULT_ALLOW  # exists on every datastore
    if session.store.kind == "kubernetes":
        kinds = (*KINDS, *KUBERNETES_KINDS)
    claiming: dict[ResourceKey, WorkloadEndpoint] = {}
    for kind in kinds:
        for item in session.store.list(ResourceList(kind), session.deadline).items:
            if isinstance(item.key, ResourceKey):
                record = _add(found, item.key, item.value, arguments.warn)
                if isinstance(record, WorkloadEndpoint) and claims_addresses(item, record):
                    claiming[item.key] = record
    found.claimed = confirm(session, claiming, arguments.warn)
    for name in arguments.overlay:
        for document in read_files(name, arguments.stdin):
            key, checked = read_policy_file(document, arguments.namespace)
            found.overlaid.add(key)
            found.claimed.pop(key, None)
            _add(found, key, checked, arguments.warn)
    if any(key.kind == "HostEndpoint" for key in found.records):
        found.nodes.update(_read_nodes(session, arguments.warn))
    if any(_asks_for_nodes(record) for key, record in found.records.items() if key.kind in _WITH_RULES):
        for item in session.store.list(ResourceList(NODE), session.deadline).items:
            if isinstance(item.key, ResourceKey):
                _add(found, item.key, item.value, arguments.warn)
    return found


def _asks_for_nodes(record: GraphRecord) -> bool:
    """A policy of any form: only the graph refuses one that cannot be understood."""
    rules: Any = record.spec.get("egress") if isinstance(record, Resource) else None
    listed = [rule for rule in rules if isinstance(rule, Mapping)] if isinstance(rules, list | tuple) else []
    sides = (rule.get("destination") for rule in listed)
    return any(NODE_SELECTOR in side for side in sides if isinstance(side, Mapping))


def load_hosts(session: Session) -> PolicyRecords:
    """The host endpoints that can be read, and the nodes if there are any."""
    found = PolicyRecords()
    for item in session.store.list(ResourceList("HostEndpoint"), session.deadline).items:
        if isinstance(item.key, ResourceKey):
            _add(found, item.key, item.value, _ignore)
    if found.records:
        found.nodes.update(_read_nodes(session, _ignore))
    return found


def _ignore(problem: object) -> None:
    """For callers that drop warnings."""


def _read_nodes(session: Session, warn: Callable[[object], None]) -> Iterator[tuple[str, Node]]:
    found = read_kind(session, "Node", decode_node, lambda _, error: warn(error))
    return ((key.name, node) for key, node in found)


def read_policy_file(document: dict[str, Any], namespace: str) -> tuple[ResourceKey, Document]:
    """A document of a file, checked; Kubernetes' own policies as they are. Raises InvalidConfig."""
    kind = _KUBERNETES.get((str(document.get("apiVersion")), str(document.get("kind"))))
    if kind is None:
        from cni_calico.model.validation.check import require_valid
        from cni_calico.model.validation.defaults import with_defaults

        key = _parse_key(document, namespace)
        own = {"namespace": key.namespace} if key.namespace else {}
        filled = with_defaults({**document, "metadata": {**document["metadata"], **own}})
        require_valid(filled)
        return key, filled
    metadata: Any = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not isinstance(metadata, Mapping) or not isinstance(name, str):
        raise InvalidConfig(f"cannot use {document.get('kind')}: metadata.name must be given")
    from cni_calico.ctl.policy.kubernetes_files import require_form

    is_global = kind == CLUSTER_NETWORK_POLICY
    space = "" if is_global else str(metadata.get("namespace") or namespace or DEFAULT_NAMESPACE)
    require_form(kind, document, space)
    if is_global:
        return ResourceKey(kind, name), document
    return ResourceKey(kind, name, space), {**document, "metadata": {**metadata, "namespace": space}}


def _parse_key(document: Mapping[str, Any], namespace: str) -> ResourceKey:
    """Raises InvalidConfig."""
    try:
        return parse_key(document, namespace)
    except InvalidConfig as e:
        if document.get("apiVersion") == API_VERSION:
            raise
        known = [API_VERSION, *(f"{version} for Kubernetes' {kind}" for version, kind in _KUBERNETES)]
        raise InvalidConfig(e.message, details=f"known are {', '.join(known)}") from e


def _add(
    found: PolicyRecords, key: ResourceKey, document: Document, warn: Callable[[object], None]
) -> GraphRecord | None:
    """The record; None: it cannot be read, or does not take part."""
    try:
        record, left_out = decode_record(key, document)
    except CorruptRecord as e:
        warn(e)
        return None
    for why in left_out:
        warn(f"{describe(key)}: {why}")
    if record is None:
        found.records.pop(key, None)
        return None
    found.records[key] = record
    found.documents[key] = document
    return record
