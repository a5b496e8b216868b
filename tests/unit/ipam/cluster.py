"""A cluster with pods, containers of others, nodes and their tunnels, and what a janitor sees of it, maybe late.

``is_kubernetes``: pods are the datastore's endpoints and writes come one at a time; else the datastore is etcd's kind
and Kubernetes stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cni_calico.datastore.interface import PodDocument, Versioned, Write
from cni_calico.errors import CorruptRecord, DatastoreUnavailable
from cni_calico.ipam.lost.cached_state import CachedClusterState, RecordCaches, decode
from cni_calico.ipam.lost.reclaim import Reclaimer
from cni_calico.ipam.lost.suspects import Suspects
from cni_calico.model.documents.codec import new_metadata
from cni_calico.model.keys import AffinityList, BlockList, HandleKey, HandleList, ResourceKey, ResourceList
from cni_calico.model.kubernetes.pods import CONTAINER_ID, POD_IPS, endpoint_key, read_pod
from cni_calico.model.resources import WorkloadEndpoint
from tests.deadlines import soon
from tests.unit.ipam.world import SECOND, World, ip_network, request

GRACE_S = 900


class RecordCache:
    """A cache that learns of changes when it is told to."""

    def __init__(self):
        self.entries = {}

    def get(self, key):
        return self.entries[key][0] if key in self.entries else None

    def record(self, key):
        return self.entries[key][1] if key in self.entries else None

    def take(self, items):
        """Be as of now; the keys that changed."""
        now = {item.key: item for item in items}
        changed = {key for key in self.entries if key not in now}
        for key in changed:
            del self.entries[key]
        for key, item in now.items():
            if key in self.entries and self.entries[key][0].revision == item.revision:
                continue
            try:
                record = decode(item)
            except CorruptRecord:
                record = None
            self.entries[key] = item, record
            changed.add(key)
        return changed


LISTINGS = {
    "blocks": BlockList(),
    "affinities": AffinityList(),
    "handles": HandleList(),
    "nodes": ResourceList("Node"),
    "endpoints": ResourceList("WorkloadEndpoint"),
}


@dataclass
class Container:
    """Somebody who has addresses. ``pod`` None: it is no pod's."""

    id: str
    node: str
    pod: tuple[str, str] | None
    handle: str
    addresses: frozenset = frozenset()


@dataclass
class Cluster:
    is_kubernetes: bool
    world: World = None
    pods: dict = field(default_factory=dict)  # (namespace, name) -> object of Kubernetes
    live: dict = field(default_factory=dict)  # handle -> Container: what must stay
    tunnels: dict = field(default_factory=dict)  # node -> handle
    kubernetes_nodes: set = field(default_factory=set)
    count: int = 0
    apart: bool = False  # Kubernetes does not answer
    looks: int = 0
    identities: set = field(default_factory=set)  # (namespace, name) of those that may come again

    def __post_init__(self):
        self.world = World(max_commit=1 if self.is_kubernetes else 60)
        self.world.pool("four", "10.65.0.0/26", 28)
        self.world.pool("six", "fd00:65::/120", 124)
        for node in ("n1", "n2"):
            self.world.node(node)

    @property
    def store(self):
        return self.world.store

    def node(self, name, deadline):
        """Kubernetes' own, where the datastore is not."""
        self.looks += 1
        if self.apart:
            raise DatastoreUnavailable("cannot reach Kubernetes: scripted")
        return {"metadata": {"name": name}} if name in self.kubernetes_nodes else None

    def pod(self, namespace, name, uid, deadline):
        self.looks += 1
        if self.apart:
            raise DatastoreUnavailable("cannot reach Kubernetes: scripted")
        return self.pods.get((namespace, name))

    def why_over(self, kind, namespace, name, deadline):
        if self.apart:
            raise DatastoreUnavailable("cannot reach Kubernetes: scripted")
        return "" if (namespace, name) in self.identities else f"{kind} {namespace}/{name} is gone"

    # -- what happens in it -------------------------------------------------------------------------------------------

    def revision(self):
        self.count += 1
        return self.count

    def create_pod(self, name, node, *, namespace="ns", host_network=False):
        spec = {"nodeName": node, "hostNetwork": host_network} if node else {}
        self.pods[namespace, name] = {
            "metadata": {"name": name, "namespace": namespace, "uid": f"u{self.revision()}", "annotations": {}},
            "spec": spec,
            "status": {"phase": "Running"},
        }

    def allocate(self, name, *, namespace="ns", num6=0, network="net"):
        """The first half of an ADD, in a new sandbox."""
        pod = self.pods[namespace, name]
        node = pod["spec"]["nodeName"]
        container = Container(f"c{self.revision():04}", node, (namespace, name), "")
        container.handle = f"{network}.{container.id}"
        attributes = {"node": node, "namespace": namespace, "pod": name, "timestamp": "2026-11-20 12:06:28 +0000 UTC"}
        if self.revision() % 3:  # every third one is upstream's, or an older version's: no interface is named
            attributes["interface"] = "eth0"
        wanted = request(container.handle, node, num6=num6)
        given = self.world.allocator().assign(wanted.__class__(**{**_fields(wanted), "attributes": attributes}), soon())
        container.addresses = frozenset(item.address for item in given)
        return container

    def record(self, container):
        """The second half: the pod runs in this sandbox and in no other."""
        for handle in [h for h, c in self.live.items() if c.pod == container.pod]:
            del self.live[handle]
        self.live[container.handle] = container
        networks = [str(ip_network(a)) for a in sorted(container.addresses, key=str)]
        pod = self.pods[container.pod]
        if self.is_kubernetes:
            annotations = {CONTAINER_ID: container.id, POD_IPS: ",".join(networks)}
            self.pods[container.pod] = {**pod, "metadata": {**pod["metadata"], "annotations": annotations}}
            return
        namespace, name = container.pod
        key = endpoint_key(namespace, name, container.node)
        self.world.put(key, self._endpoint(key, container, "k8s", name, networks))

    def _endpoint(self, key, container, orchestrator, pod, networks):
        metadata = new_metadata(key.name, namespace=key.namespace, uid="u", now="2026-11-20T12:06:00Z")
        return WorkloadEndpoint(
            metadata,
            orchestrator,
            container.node,
            "eth0",
            f"cali{container.id}",
            container_id=container.id,
            pod=pod,
            ip_networks=tuple(ip_network(n) for n in networks),
        )

    def add(self, name, **options):
        container = self.allocate(name, **options)
        self.record(container)
        return container

    def remove(self, container, *, forget=False):
        """The container ends, with its DEL unless it is forgotten."""
        self.live.pop(container.handle, None)
        if not forget:
            self.world.allocator().release_handle(container.handle, soon())
            if container.pod and not self.is_kubernetes:
                key = endpoint_key(*container.pod, container.node)
                found = self.store.get(key, soon())
                if found is not None and found.value["spec"]["containerID"] == container.id:
                    self.store.elsewhere(Write.delete(found))

    def delete_pod(self, name, *, namespace="ns"):
        self.pods.pop((namespace, name), None)
        for handle in [h for h, c in self.live.items() if c.pod == (namespace, name)]:
            del self.live[handle]

    def run_container(self, node, attributes=None, *, endpoint=True):
        """A container that is no pod: podman's, or with other attributes whatever else."""
        container = Container(f"p{self.revision():04}", node, None, "")
        container.handle = f"by_hand_{container.id}" if attributes == {} else f"net.{container.id}"
        wanted = request(container.handle, node)
        attributes = {"node": node} if attributes is None else attributes
        given = self.world.allocator().assign(wanted.__class__(**{**_fields(wanted), "attributes": attributes}), soon())
        container.addresses = frozenset(item.address for item in given)
        self.live[container.handle] = container
        if endpoint and not self.is_kubernetes:
            key = ResourceKey("WorkloadEndpoint", f"{node}-cni-{container.id}-eth0", "default")
            networks = [str(ip_network(a)) for a in container.addresses]
            self.world.put(key, self._endpoint(key, container, "cni", "", networks))
        return container

    def take_tunnel(self, node):
        handle = f"vxlan-tunnel-addr-{node}"
        allocator = self.world.allocator()
        if not allocator.addresses_of(handle, soon()):
            wanted = request(handle, node, use="Tunnel")
            attributes = {"node": node, "type": "vxlanTunnelAddress"}
            allocator.assign(wanted.__class__(**{**_fields(wanted), "attributes": attributes}), soon())
        self.tunnels[node] = handle

    def has_node(self, name):
        return self.store.get(ResourceKey("Node", name), soon()) is not None

    def delete_node(self, name):
        self.store.elsewhere(Write.remove(ResourceKey("Node", name)))
        self.tunnels.pop(name, None)

    def create_node(self, name):
        """It comes back as the agent brings it back: the record first, then the tunnel address it may still hold."""
        self.world.node(name)

    # -- what a janitor sees ------------------------------------------------------------------------------------------

    def pod_items(self):
        items = []
        for obj in self.pods.values():
            try:
                found = read_pod(obj)
            except CorruptRecord:
                continue  # a list leaves it out
            if found is not None:
                version = obj["metadata"]["uid"] + str(obj["metadata"]["annotations"])
                items.append(Versioned(found[0], PodDocument(found[1], obj), version))
        return items

    def kubernetes_node_items(self):
        document = {"apiVersion": "projectcalico.org/v3", "kind": "Node"}
        keys = [ResourceKey("Node", name) for name in self.kubernetes_nodes]
        return [Versioned(key, {**document, "metadata": {"name": key.name}, "spec": {}}, "1") for key in keys]

    def refer(self, node, kubernetes):
        """The node's record says what Kubernetes calls it."""
        found = self.store.get(ResourceKey("Node", node), soon())
        refs = {"orchRefs": [{"nodeName": kubernetes, "orchestrator": "k8s"}]}
        self.store.elsewhere(Write.update(found, {**found.value, "spec": refs}))

    def require_kept(self):
        """Whoever lives holds what was given to them."""
        held = self.world.held()
        for handle, container in self.live.items():
            missing = container.addresses - held.get(handle, set())
            assert not missing, f"{missing} of {container} was released"

    def leaked(self):
        """Handles that hold addresses and belong to nobody."""
        return set(self.world.held()) - set(self.live) - set(self.tunnels.values())


class Janitor:
    """The pieces as the agent puts them together, with a clock of their own."""

    def __init__(self, cluster, *, knows_pods=True):
        self.cluster = cluster
        self.caches = {name: RecordCache() for name in [*LISTINGS, "pods", "kubernetes_nodes"]}
        pods = self.caches["pods"] if knows_pods else None
        endpoints = None if cluster.is_kubernetes else self.caches["endpoints"]
        shown = {name: self.caches[name] for name in ("blocks", "affinities", "handles", "nodes")}
        beside = self.caches["kubernetes_nodes"] if knows_pods and not cluster.is_kubernetes else None
        caches = RecordCaches(endpoints=endpoints, pods=pods, kubernetes_nodes=beside, **shown)
        self.suspects = Suspects(CachedClusterState(caches), lambda: cluster.world.now_ns / SECOND)
        self.reclaimer = Reclaimer(
            cluster.store,
            cluster if knows_pods else None,
            is_kubernetes=cluster.is_kubernetes,
            make=cluster.world.allocator,
        )
        self.see()

    @property
    def now(self):
        return self.cluster.world.now_ns / SECOND

    def see(self, *names):
        """Let these caches (all: none given) be as of now, and judge."""
        changed = set()
        for name in names or self.caches:
            if name == "pods":
                changed |= self.caches[name].take(self.cluster.pod_items())
            elif name == "kubernetes_nodes":
                changed |= self.caches[name].take(self.cluster.kubernetes_node_items())
            elif name != "endpoints" or not self.cluster.is_kubernetes:
                changed |= self.caches[name].take(self.cluster.store.list(LISTINGS[name], soon()).items)
        self.suspects.refresh(changed, self.now)
        return changed

    def run(self, grace_s=GRACE_S, calls_s=0.0):
        due = self.suspects.due(self.now, grace_s, calls_s)
        outcome = self.reclaimer.reclaim(due, soon())
        for subject, _ in outcome.kept:
            self.suspects.put_off(subject, self.now + 60)
        return outcome

    def settle(self, rounds=12):
        """Everything is seen, and time passes."""
        for _ in range(rounds):
            self.see()
            self.cluster.world.now_ns += (GRACE_S + 1) * SECOND
            self.run()
            self.cluster.require_kept()
        self.see()


def _fields(wanted):
    return {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}


__all__ = ["GRACE_S", "Cluster", "Container", "HandleKey", "Janitor"]
