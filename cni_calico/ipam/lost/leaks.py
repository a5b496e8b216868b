"""PURE: which addresses, blocks, handles and endpoints have no owner any more, as far as is known.

Rule: something is called lost only if there is no other explanation. An address belongs to a pod if its attributes say
that and nothing else, to a tunnel if they say that; without attributes it belongs to whom its handle names (bare.py).
One that is kept for an identity that outlasts its pods (kept.py) is lost once that is over. An address that was taken
for anything else (podman, a load balancer, a person) is not ours to judge. Looking lost is only a suspicion;
ipam/lost/reclaim.py checks again before it acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any, Protocol

from cni_calico.ipam.lost.bare import is_bare, parse_bare_handle
from cni_calico.ipam.lost.kept import read_kept
from cni_calico.ipam.lost.pods import Pod
from cni_calico.ipam.share import INTERFACE
from cni_calico.model.keys import ResourceKey
from cni_calico.model.lasting import LastingKind
from cni_calico.model.names import short_id
from cni_calico.model.resources import Address, Attribute, Block, Network, Node, WorkloadEndpoint
from cni_calico.model.timestamps import parse_rfc3339

TUNNELS = frozenset(
    (
        "ipipTunnelAddress",
        "vxlanTunnelAddress",
        "vxlanV6TunnelAddress",
        "wireguardTunnelAddress",
        "wireguardV6TunnelAddress",
    )
)
_OF_PODS = frozenset(("node", "namespace", "pod", INTERFACE, "timestamp"))
_OF_TUNNELS = frozenset(("node", "type", "timestamp"))


@dataclass(frozen=True, slots=True)
class Holding:
    """An address that a block records as taken, by its ordinal. ``foreign``: taken for something that is not judged
    here. ``bare``: it has no attributes; ``node`` is its block's, ``namespace`` and ``pod`` are what its handle names.
    """

    ordinal: int
    block: Network
    handle_id: str
    sequence_number: int | None
    node: str = ""
    namespace: str = ""
    pod: str = ""
    tunnel: str = ""
    foreign: bool = False
    bare: bool = False

    @property
    def address(self) -> Address:
        return self.block[self.ordinal]

    def __str__(self) -> str:
        return f"{self.address} (handle {self.handle_id})"


@dataclass(frozen=True, slots=True)
class KeptHolding(Holding):
    """An address that is kept for the identity that ``kind``, ``namespace`` and ``name`` say. ``node`` and ``pod``: its
    active owner, "" without one; ``other_...``: where a virtual machine moves to, or came from.
    """

    kind: str = ""
    name: str = ""
    other_node: str = ""
    other_pod: str = ""

    def __str__(self) -> str:
        return f"{self.address} (kept under handle {self.handle_id})"

    @property
    def owners(self) -> tuple[tuple[str, str], ...]:
        """(node, pod) of each."""
        return tuple(owner for owner in ((self.node, self.pod), (self.other_node, self.other_pod)) if owner[1])


@dataclass(frozen=True, slots=True)
class LostBlock:
    """A block of a node that is gone, or the affinity to one."""

    node: str
    cidr: Network

    def __str__(self) -> str:
        return f"block {self.cidr} of node {self.node}"


@dataclass(frozen=True, slots=True)
class SurplusBlock:
    """An empty block of an existing node that has other blocks."""

    node: str
    cidr: Network

    def __str__(self) -> str:
        return f"empty block {self.cidr} of node {self.node}"


@dataclass(frozen=True, slots=True)
class IdleHandle:
    """A handle without addresses; ``revision``: its revision, unchanged since it was first suspected."""

    handle_id: str
    revision: str

    def __str__(self) -> str:
        return f"handle {self.handle_id}"


@dataclass(frozen=True, slots=True)
class LostEndpoint:
    """A pod's endpoint in a separate datastore (etcd), as it is at ``revision``."""

    key: ResourceKey
    revision: str
    node: str
    pod: str

    def __str__(self) -> str:
        return f"endpoint {self.key.namespace}/{self.key.name}"


@dataclass(frozen=True, slots=True)
class LostNode:
    """A node's record in a separate datastore (etcd), and the node's Kubernetes name."""

    name: str
    kubernetes: str

    def __str__(self) -> str:
        return f"node {self.name}"


@dataclass(frozen=True, slots=True)
class DepartedNode:
    """A node that is gone from Kubernetes, where Kubernetes is the datastore too: its peers, host endpoints and
    configuration remain. A node that has yet to join is not one of these, because it was never seen.
    """

    name: str

    def __str__(self) -> str:
        return f"configuration of node {self.name}"


Subject = Holding | LostBlock | SurplusBlock | IdleHandle | LostEndpoint | LostNode | DepartedNode
KINDS: Mapping[type[Any], str] = {
    DepartedNode: "configuration",  # before its blocks, which prove that the node existed
    LostNode: "node",
    LostEndpoint: "endpoint",
    Holding: "address",
    KeptHolding: "address",
    LostBlock: "block",
    SurplusBlock: "surplus block",
    IdleHandle: "handle",
}


@dataclass(frozen=True, slots=True)
class BlockFacts:
    """The part of a block that is looked at; ``holdings`` by ordinal. ``claimed_s``: when its node claimed it, 0 if
    that is unknown.
    """

    node: str | None
    holdings: tuple[Holding, ...]
    claimed_s: float = 0.0


class Known(Protocol):
    """What is known of the cluster; it may be out of date."""

    @property
    def knows_pods(self) -> bool:
        """Whether there is a Kubernetes to ask."""

    def has_node(self, name: str) -> bool: ...

    def has_pod(self, namespace: str, name: str, node: str) -> bool:
        """Whether Kubernetes has a pod of that name that is, or may come to be, on that node."""

    def has_kubernetes_node(self, name: str) -> bool: ...

    def pod(self, namespace: str, name: str, node: str) -> Pod | None:
        """What is known of that pod, from its own object or its endpoint record; None if there is neither."""

    def has_owner(self, holding: Holding) -> bool:
        """Whether a pod or an endpoint, on whatever node, may be what a handle names, or has the address."""

    def why_over(self, kept: KeptHolding) -> str:
        """Why the identity for which an address is kept will not come again; "" if it may."""


# -- judging ----------------------------------------------------------------------------------------------------------


def judge(subject: Subject, known: Known, block: Callable[[Network], BlockFacts | None]) -> str:
    """Why a subject is lost; "" if it is not. ``block`` returns what is known of a block."""
    if isinstance(subject, KeptHolding):
        return judge_kept(subject, known)
    if isinstance(subject, Holding):
        return judge_holding(subject, known)
    if isinstance(subject, LostNode):
        return judge_node(subject, known)
    if isinstance(subject, DepartedNode):
        return judge_departed(subject, known)
    if isinstance(subject, LostEndpoint):
        return judge_endpoint(subject, known)
    if isinstance(subject, LostBlock):
        return judge_block(subject, block(subject.cidr), known)
    return "it holds no address"


def judge_kept(kept: KeptHolding, known: Known) -> str:
    """Why nobody will use a kept address any more; "" if a pod has it, or its identity may come again."""
    if not known.knows_pods or any(_may_use(kept, pod, node, known) for node, pod in kept.owners):
        return ""
    return known.why_over(kept)


def _may_use(kept: KeptHolding, pod: str, node: str, known: Known) -> bool:
    if kept.kind != LastingKind.STATEFUL:
        return known.has_pod(kept.namespace, pod, node)
    found = known.pod(kept.namespace, pod, node)
    return found is not None and not found.has_others(kept.address)  # the next pod has the last one's name


def judge_holding(holding: Holding, known: Known) -> str:
    """Why the address has no owner any more; "" if it may have one."""
    if isinstance(holding, KeptHolding):
        return judge_kept(holding, known)
    if holding.foreign:
        return ""
    if holding.bare:
        return judge_bare(holding, known)
    if holding.tunnel:
        return "" if known.has_node(holding.node) else f"there is no Node {holding.node}"
    if not known.knows_pods:
        return ""
    named = f"{holding.namespace}/{holding.pod}"
    pod = known.pod(holding.namespace, holding.pod, holding.node)
    if pod is None:
        return f"pod {named} is not on node {holding.node} any more"
    if pod.has_let_go:
        return f"pod {named} has finished"
    if not pod.container_id or is_of_container(holding, pod.container_id) or holding.address in pod.addresses:
        return ""
    return f"pod {named} runs as container {short_id(pod.container_id)} now"


def judge_bare(holding: Holding, known: Known) -> str:
    """Why nobody has the address. Which containers a node's runtime has is known on that node only (its GC and its
    agent, see nodeagent/keepers/oldest.py), so for others one that is no pod's is lost with the node.
    """
    names_pod = bool(holding.pod) and known.knows_pods
    if (not names_pod and holding.node and known.has_node(holding.node)) or known.has_owner(holding):
        return ""
    if names_pod:
        return f"there is no pod {holding.namespace}/{holding.pod}, and nobody has the address"
    where = f"there is no Node {holding.node}" if holding.node else "its block is no node's"
    return f"{where}, and no endpoint is its handle's"


def is_of_container(holding: Holding, container_id: str) -> bool:
    """Whether the handle is, or may be, that container's.

    The handle of a further interface ends with that interface's name, and very old ones name the pod.
    """
    folded = holding.handle_id.casefold()
    return f".{container_id.casefold()}." in f"{folded}." or folded == f"{holding.namespace}.{holding.pod}".casefold()


def judge_block(lost: LostBlock, facts: BlockFacts | None, known: Known) -> str:
    """Why a node no longer has the block; "" while the node exists, or something of it is left in the block."""
    if known.has_node(lost.node):
        return ""
    if facts is not None and facts.node == lost.node and any(held.node == lost.node for held in facts.holdings):
        return ""
    return f"there is no Node {lost.node}"


def judge_endpoint(endpoint: LostEndpoint, known: Known) -> str:
    """Why a pod's endpoint belongs to no pod; "" if it may belong to one."""
    if not known.knows_pods or known.has_pod(endpoint.key.namespace, endpoint.pod, endpoint.node):
        return ""
    return f"pod {endpoint.key.namespace}/{endpoint.pod} is not on node {endpoint.node} any more"


def judge_node(lost: LostNode, known: Known) -> str:
    """Why a node's record belongs to no node any more."""
    if not known.knows_pods or known.has_kubernetes_node(lost.kubernetes):
        return ""
    return f"Kubernetes node {lost.kubernetes} is gone"


def judge_departed(departed: DepartedNode, known: Known) -> str:
    """Why a node that was here counts as gone."""
    return "" if known.has_node(departed.name) else f"there is no Node {departed.name} any more"


# -- reading ----------------------------------------------------------------------------------------------------------


def reduce_block(block: Block) -> BlockFacts:
    """Names that occur several times in a large cluster are shared."""
    holdings: list[Holding] = []
    for ordinal, index in enumerate(block.allocations):
        if index is not None:
            attribute = block.attributes[index]
            said = attribute.secondary
            kept = _read_kept(attribute, block, ordinal)
            if kept is not None:
                holdings.append(kept)
                continue
            tunnel = said.get("type", "")
            is_tunnel = tunnel in TUNNELS and bool(said.get("node")) and set(said) <= _OF_TUNNELS
            is_pods = set(said) <= _OF_PODS and all(said.get(name) for name in ("node", "namespace", "pod"))
            is_known = bool(attribute.handle_id) and not any(attribute.extra.values())
            named = parse_bare_handle(attribute.handle_id or "") if is_known and is_bare(said) else None
            handle_id, number = intern(attribute.handle_id or ""), block.sequence_for.get(ordinal)
            if named is not None:
                owner = (intern(block.node or ""), intern(named.namespace), named.pod)
                holdings.append(Holding(ordinal, block.cidr, handle_id, number, *owner, bare=True))
                continue
            holdings.append(
                Holding(
                    ordinal,
                    block.cidr,
                    handle_id,
                    number,
                    intern(said.get("node", "")),
                    intern(said.get("namespace", "")),
                    said.get("pod", ""),
                    intern(tunnel if is_tunnel else ""),
                    not (is_known and (is_tunnel or is_pods)),
                )
            )
    return BlockFacts(block.node, tuple(holdings), parse_rfc3339(block.affinity_claim_time) or 0.0)


def _read_kept(attribute: Attribute, block: Block, ordinal: int) -> KeptHolding | None:
    """None for what is not kept, or does not say for whom."""
    fields = read_kept(attribute)
    if fields is None:
        return None
    handle_id, number = intern(attribute.handle_id or ""), block.sequence_for.get(ordinal)
    return replace(KeptHolding(ordinal, block.cidr, handle_id, number), **fields)


def kubernetes_name(node: Node) -> str:
    """A node's Kubernetes name, as its record says; "" if it does not."""
    refs = (ref for ref in node.orch_refs if ref.get("orchestrator") == "k8s")
    return next((str(ref["nodeName"]) for ref in refs if ref.get("nodeName")), "")


def reduce_endpoint(endpoint: WorkloadEndpoint) -> Pod:
    """What an endpoint says about its pod."""
    return Pod(endpoint.container_id, frozenset(network.network_address for network in endpoint.ip_networks))


def kind_of(subject: Subject) -> str:
    return KINDS[type(subject)]
