"""PURE: the identity of an attachment: the names under which a container's interface is stored, allocated
and visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import ANYONE, NetConf
from cni_calico.errors import InvalidEnvironment
from cni_calico.model import names
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.model.resources import Address, Metadata, Resource, WorkloadEndpoint

KUBERNETES, PLAIN = "k8s", "cni"
NO_LABELS: Mapping[str, str] = {}
_NAME_MAX = 64  # characters, of a container's name
_LAUNCHER = "virt-launcher-"  # how the names of the pods begin in which KubeVirt runs its machines
SAME_VETH = 11  # number of characters of the container ID in the host interface's name outside Kubernetes


@dataclass(frozen=True, slots=True)
class Attachment:
    """One interface of one container in one network on this node. ``workload`` is the pod, or the container ID.
    ``name`` is what people call a container outside Kubernetes, "" if that is not known.
    """

    network: str
    node: str
    orchestrator: str
    namespace: str
    workload: str
    container_id: str
    ifname: str
    veth_prefix: str = names.DEFAULT_PREFIX
    name: str = field(default="", compare=False)

    @property
    def endpoint_key(self) -> ResourceKey:
        name = names.endpoint_name(self.node, self.orchestrator, self.workload, self.ifname)
        return ResourceKey("WorkloadEndpoint", name, self.namespace)

    @property
    def handle_id(self) -> str:
        return names.handle_id(self.network, self.container_id)

    @property
    def own_handle_id(self) -> str:
        """A handle for one of several interfaces of a container in the same network, so that DEL of one interface keeps
        the others' addresses.
        """
        return f"{self.handle_id}.{self.ifname}"

    @property
    def handle_ids(self) -> tuple[str, ...]:
        """Every handle that the attachment's addresses may be stored under, those of very old releases last."""
        old = f"{self.namespace}.{self.workload}" if self.orchestrator == KUBERNETES else self.container_id
        return (self.handle_id, self.own_handle_id, old)

    def may_keep(self, conf: NetConf, sticky: str | None = None) -> bool:
        """Whether the workload can be one whose addresses outlast it: a virtual machine's pod in a cluster that can be
        asked, or, with what annotations say of it (``sticky``), one that wants it, as a container does that has a name
        in a network of such. Nothing is read for the answer; for all others nothing of ``plugin.lasting`` is imported.
        """
        if self.orchestrator != KUBERNETES:
            return sticky is not None and conf.sticky_addresses and bool(self.name)
        store = conf.datastore
        known = store.type == "kubernetes" or bool(store.kubernetes.kubeconfig or store.kubernetes.api_root)
        return bool(sticky) or (self.workload.startswith(_LAUNCHER) and known)

    @property
    def label(self) -> str:
        """The attachment in words, for locks."""
        return f"{self.network}/{self.container_id}/{self.ifname}"

    @property
    def shown(self) -> str:
        """The same for people: by the container's name, if it is known, and the beginning of its ID, as runtimes do."""
        short = f"{self.network}/{names.short_id(self.container_id)}/{self.ifname}"
        return f"{self.name} ({short})" if self.name else short

    @property
    def veth_label(self) -> str:
        """The lock label shared by attachments that could want the same host interface name.

        They must take turns; otherwise one would not see what the other is about to record, or has just made. Take its
        lock after that of ``label``.
        """
        return f"{KUBERNETES}/{self.veth}" if self.orchestrator == KUBERNETES else self._stem

    @property
    def owner(self) -> str:
        """The workload as the alias of its host interface names it."""
        return names.owner_text(self.orchestrator, self.namespace, self.workload)

    @property
    def _stem(self) -> str:
        return self.workload if self.orchestrator == KUBERNETES else self.workload[:SAME_VETH]

    @property
    def siblings(self) -> ResourceList:
        """The endpoints that could want the same host interface name.

        Outside Kubernetes those whose container ID has the same first 11 characters; in Kubernetes those of the same
        pod.
        """
        prefix = "-".join((names.escape(self.node), self.orchestrator, names.escape(self._stem)))
        if self.orchestrator == KUBERNETES:
            prefix += "-"  # the whole name of the pod
        return ResourceList("WorkloadEndpoint", self.namespace, prefix)

    @property
    def veth(self) -> str:
        """The host interface name that upstream would choose."""
        if self.orchestrator == KUBERNETES:
            return names.kubernetes_veth(self.namespace, self.workload, self.veth_prefix)
        return names.container_veth(self.container_id)

    @property
    def veth_when_taken(self) -> str:
        return names.hashed_veth(self.container_id, self.ifname)


def printable_name(text: str) -> str:
    """A container's name as messages have it; "" for what no runtime calls one."""
    return text if text.isprintable() and len(text) <= _NAME_MAX else ""


def plan_attachment(call: Call, conf: NetConf, node: str) -> Attachment:
    """The attachment of a call. Raises InvalidEnvironment for an ID that cannot be part of an endpoint's name."""
    args = call.args
    attachment = Attachment(
        network=conf.name,
        node=node,
        orchestrator=KUBERNETES if args.is_kubernetes else PLAIN,
        namespace=args.test_namespace or (args.pod_namespace if args.is_kubernetes else _namespace_of(conf)),
        workload=args.pod_name if args.is_kubernetes else call.container_id,
        container_id=call.container_id,
        ifname=call.ifname,
        veth_prefix=veth_prefix_of(call),
        name="" if args.is_kubernetes else printable_name(args.pod_name),
    )
    try:
        _ = attachment.endpoint_key  # made here only to learn whether it can be made
    except ValueError as e:
        raise InvalidEnvironment(f"cannot name the endpoint: {e}") from e
    return attachment


def _namespace_of(conf: NetConf) -> str:
    return conf.mesos.namespace or "default"


def veth_prefix_of(call: Call) -> str:
    """The prefix of the names of pods' host interfaces: the first of those that the agent is configured with."""
    return call.environ.get("FELIX_INTERFACEPREFIX", "").split(",")[0].strip() or names.DEFAULT_PREFIX


def select_veth(attachment: Attachment, own: WorkloadEndpoint | None, others: Iterable[WorkloadEndpoint]) -> str:
    """The host interface of an attachment: the recorded name; else upstream's name, unless another endpoint records
    that.
    """
    if own is not None and own.interface_name and own.container_id == attachment.container_id:
        return own.interface_name
    if any(other.interface_name == attachment.veth for other in others):
        return attachment.veth_when_taken
    return attachment.veth


def plan_endpoint(
    attachment: Attachment,
    *,
    own: WorkloadEndpoint | None,
    veth: str,
    mac: str,
    addresses: Iterable[Address],
    now: str,
    uid: str,
    labels: Mapping[str, str] = NO_LABELS,
) -> WorkloadEndpoint:
    """The endpoint record after ADD: a new one, or ``own`` brought up to date (it keeps its other profiles)."""
    labels = {
        **labels,
        "projectcalico.org/namespace": attachment.namespace,
        "projectcalico.org/orchestrator": attachment.orchestrator,
    }
    profiles: tuple[str, ...] = (attachment.network,)
    metadata = Metadata(
        name=attachment.endpoint_key.name,
        namespace=attachment.namespace,
        uid=uid,
        creation_timestamp=now,
        labels=labels,
    )
    if own is not None:
        metadata = own.metadata
        if own.container_id == attachment.container_id:
            profiles = own.profiles + tuple(name for name in profiles if name not in own.profiles)
    return WorkloadEndpoint(
        metadata=metadata,
        orchestrator=attachment.orchestrator,
        node=attachment.node,
        endpoint=attachment.ifname,
        interface_name=veth,
        container_id=attachment.container_id,
        pod=attachment.workload if attachment.orchestrator == KUBERNETES else "",
        mac=mac,
        ip_networks=tuple(ip_network(address) for address in addresses),
        profiles=profiles,
        extra=own.extra if own is not None else {},
    )


def plan_profile(attachment: Attachment, ingress: str, *, now: str, uid: str) -> Resource:
    """The Profile of a network outside Kubernetes policy mode, which lets everything out.

    ``ingress`` is the network configuration's ``profile_ingress``: upstream's profile lets in only what members of the
    network send, which closes published ports as soon as policies are enforced. For a pod it lets everybody in.
    """
    network = attachment.network
    is_open = ingress == ANYONE or attachment.orchestrator == KUBERNETES
    source = {} if is_open else {"selector": f"has({network})"}
    return Resource(
        kind="Profile",
        metadata=Metadata(name=network, uid=uid, creation_timestamp=now),
        spec={
            "ingress": [{"action": "Allow", "source": source, "destination": {}}],
            "egress": [{"action": "Allow", "source": {}, "destination": {}}],
            "labelsToApply": {network: ""},
        },
    )
