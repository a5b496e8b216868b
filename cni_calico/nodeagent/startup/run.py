"""``calico-node -startup``: everything that must be true before the services of a node start.

Rule: all facts are read and all decisions made before the first write, so that wrong input writes nothing; each write
is a compare-and-swap that leaves a correct record alone, so a second start changes nothing; the nodename file comes
last, because the CNI plugin takes it as the sign that the node is set up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.datastore.ensure import ensure_record
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord, DatastoreDenied, DatastoreUnavailable, DeadlineExceeded
from cni_calico.kernel import interfaces as kernel
from cni_calico.kernel import sysctl
from cni_calico.log import Log
from cni_calico.model.documents.codec import decode_node, decode_pool
from cni_calico.model.host import HostInterface
from cni_calico.model.keys import CLUSTER, ResourceKey, ResourceList
from cni_calico.model.resources import IPPool, Node
from cni_calico.nodeagent.context.address_setting import Method
from cni_calico.nodeagent.context.agent import STEP_S, Context
from cni_calico.nodeagent.context.kubernetes import KubernetesFacts
from cni_calico.nodeagent.context.node_name import read_node_name
from cni_calico.nodeagent.startup import node_record
from cni_calico.nodeagent.startup import records as startup_records
from cni_calico.nodeagent.startup.address import Found, HostFacts, plan_address, require_some
from cni_calico.nodeagent.startup.doubts import Doubt, select_doubts, select_node_peers
from cni_calico.nodeagent.startup.pools import PoolFacts, parse_pod_subnets, plan_pools

RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class Started:
    """``changed`` names what this start wrote."""

    node: str
    v4: Found
    v6: Found
    doubts: tuple[Doubt, ...]
    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _StartupFacts:
    interfaces: tuple[HostInterface, ...]
    kubernetes: KubernetesFacts
    node: Node | None


def run_startup(
    context: Context, tell: Callable[[str], None] = lambda what: None, answered: Callable[[], None] = lambda: None
) -> Started:
    """The whole start-up; ``tell`` is called with what it waits for, ``answered`` once the datastore has answered.

    Raises InvalidConfig, NodeNotSetUp, DatastoreError, KernelError; see the rule above.
    """
    name = read_node_name(context.settings, context.files)
    if context.settings.wait_for_datastore:
        wait_for_datastore(context, tell)
    facts = _read_facts(context, name)
    answered()
    v4, v6 = _plan_addresses(context, facts)
    _warn(context.log, (*v4.warnings, *v6.warnings, *v4.notes, *v6.notes))
    plan = node_record.plan_node(context.settings, name, v4, v6, facts.interfaces)
    pools = _plan_pools(context, facts)
    _require_no_conflict(context, plan, facts.node)
    doubts = _find_doubts(context, name, facts, v4, v6)
    _warn(context.log, [doubt.text for doubt in doubts])
    changed = startup_records.write_node(context, plan)
    startup_records.write_methods(context)
    changed += startup_records.write_pools(context, pools)
    changed += startup_records.write_cluster(context, name, facts.kubernetes)
    changed += startup_records.label_affinities(context, name)
    startup_records.write_node_name(context, name)
    startup_records.forget_shutdown(context)
    addresses = ", ".join(str(each.address) for each in (v4, v6) if each.address)
    context.log.info(f"node {name} is set up, {addresses or 'without an address, as BGP and tunnels would need one'}")
    return Started(name, v4, v6, doubts, tuple(changed))


def refresh_addresses(context: Context, name: str) -> tuple[Doubt, ...]:
    """Detect the node's addresses again and store what changed; returns the doubts about them. Raises as
    ``run_startup``.
    """
    facts = _read_facts(context, name)
    if facts.node is None or context.settings.backend == "none":
        return ()
    v4, v6 = _plan_addresses(context, facts)
    if "autodetect" in (context.settings.ip.mode, context.settings.ip6.mode):
        plan = node_record.plan_node(context.settings, name, v4, v6, facts.interfaces)
        _require_no_conflict(context, plan, facts.node)
        for changed in startup_records.write_node(context, plan):
            context.log.info(f"the node's addresses changed: {v4.address}, {v6.address} ({changed})")
    told = [Doubt("address", family, text) for family, found in ((4, v4), (6, v6)) for text in found.warnings]
    return (*told, *_find_doubts(context, name, facts, v4, v6))


def wait_for_datastore(context: Context, tell: Callable[[str], None] = lambda what: None) -> None:
    """Wait until it answers, however long that takes. Raises DatastoreDenied, and DatastoreUnavailable on a signal."""
    said = ""
    while True:
        try:
            context.store.get(CLUSTER, Deadline.after(STEP_S))
            return
        except DatastoreDenied:
            raise
        except (DatastoreUnavailable, DeadlineExceeded) as e:
            if str(e) != said:
                said = str(e)
                context.log.warning(f"waiting for the datastore: {said}")
                if e.details != DatastoreUnavailable.hint:  # which names the network configuration
                    context.log.warning(e.details)
                tell(f"waiting for the datastore: {said}")
            if context.wait(RETRY_S):
                raise


def _read_facts(context: Context, name: str) -> _StartupFacts:
    stored = context.store.get(node_record.key_of(name), context.deadline())
    facts = KubernetesFacts() if context.kubernetes is None else context.kubernetes.read_facts(context.deadline())
    node = None if stored is None else decode_node(node_record.key_of(name), stored.value)
    return _StartupFacts(kernel.read_interfaces(context.deadline()), facts, node)


# -- addresses --------------------------------------------------------------------------------------------------------


def _plan_addresses(context: Context, facts: _StartupFacts) -> tuple[Found, Found]:
    """The node's addresses of both families. Raises InvalidConfig."""
    settings, stored = context.settings, facts.node
    if settings.backend == "none":
        return Found(None), Found(None)
    before = startup_records.read_methods(context)

    def host(method: Method, family: int) -> HostFacts:
        return HostFacts(
            facts.interfaces,
            facts.kubernetes.internal_ips,
            kernel.read_source_address(method.target, family) if method.kind == "can-reach" else None,
            kernel.read_default_interface(family, context.deadline()),
            before.get(str(family), method.text) != method.text,
        )

    v4, v6 = (
        plan_address(family, setting, method, address, host(method, family))
        for family, setting, method, address in (
            (4, settings.ip, settings.ip_method, None if stored is None else stored.ipv4),
            (6, settings.ip6, settings.ip6_method, None if stored is None else stored.ipv6),
        )
    )
    require_some((v4, v6), settings.backend)
    return v4, v6


def _require_no_conflict(context: Context, plan: node_record.NodePlan, stored: Node | None) -> None:
    """Raises InvalidConfig naming the node that has our address; an own record that says otherwise is cleared first."""
    unchanged = stored is not None and (stored.ipv4, stored.ipv6) == (plan.v4, plan.v6)
    if context.settings.disable_ip_check or unchanged or not plan.addresses:
        return
    conflicts = node_record.select_conflicts(plan, _read_nodes(context))
    if not conflicts:
        return
    detected = {4: context.settings.ip.mode == "autodetect", 6: context.settings.ip6.mode == "autodetect"}
    stale = {conflict.family for conflict in conflicts if detected[conflict.family]}
    if stored is not None and stale:
        ensure_record(
            context.store,
            node_record.key_of(plan.name),
            lambda old: None if old is None else node_record.without_address(plan.name, old, stale),
            context.deadline(),
        )
    raise node_record.conflict_error(plan.name, conflicts)


def _read_nodes(context: Context) -> list[Node]:
    nodes = []
    for item in context.store.list(ResourceList("Node"), context.deadline()).items:
        try:
            nodes.append(decode_node(item.key, item.value))
        except CorruptRecord as e:
            context.log.warning(f"{e}; its addresses are not compared with this node's")
    return nodes


def _find_doubts(context: Context, name: str, facts: _StartupFacts, v4: Found, v6: Found) -> tuple[Doubt, ...]:
    labels = {} if facts.node is None else facts.node.metadata.labels
    listed = context.store.list(ResourceList("BGPPeer"), context.deadline()).items
    peers = select_node_peers(
        [(item.key.name, item.value.get("spec") or {}) for item in listed if isinstance(item.key, ResourceKey)],
        name,
        labels,
    )
    doubts: list[Doubt] = []
    for family, found in ((4, v4), (6, v6)):
        doubts += select_doubts(
            family,
            found,
            facts.interfaces,
            default_interface=kernel.read_default_interface(family, context.deadline()),
            internal_ips=facts.kubernetes.internal_ips,
            peers=peers,
        )
    return tuple(doubts)


def _warn(log: Log, texts: Sequence[str]) -> None:
    for text in texts:
        log.warning(text)


# -- pools ------------------------------------------------------------------------------------------------------------


def _plan_pools(context: Context, facts: _StartupFacts) -> list[IPPool]:
    if context.settings.no_default_pools:
        return []
    listed = context.store.list(ResourceList("IPPool"), context.deadline()).items
    families = set()
    for item in listed:
        try:
            families.add(decode_pool(item.key, item.value).cidr.version)
        except CorruptRecord as e:
            context.log.warning(f"{e}; no default pools are created in addition")
            families |= {4, 6}
    pool_facts = PoolFacts(
        families=frozenset(families),
        pod_subnets=_pod_subnets(context, facts.kubernetes),
        host_addresses=[address.ip for interface in facts.interfaces for address in interface.addresses],
        ipv6_possible=context.ipv6_support and sysctl.read(("ipv6", "conf", "all", "forwarding")) is not None,
    )
    fresh = context.fresh
    uids = (fresh.uid(), fresh.uid())
    return plan_pools(context.settings, pool_facts, random=fresh.random(5), uids=uids, now=fresh.timestamp())


def _pod_subnets(context: Context, facts: KubernetesFacts) -> Any:
    if facts.kubeadm is None:
        return ()
    try:
        return parse_pod_subnets(facts.kubeadm)
    except ValueError as e:
        context.log.warning(f"cannot use kubeadm's podSubnet: {e}")
        return ()
