"""The records that start-up writes: this node's, the default pools, the cluster's.

Rule: one compare-and-swap per record; every function returns what it changed, nothing if everything existed already.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cni_calico.datastore.ensure import ensure_present, ensure_record
from cni_calico.directories import SHUTDOWN_FILE
from cni_calico.errors import NodeNotSetUp
from cni_calico.model.belongings import felix_of_node
from cni_calico.model.documents.codec import encode_pool
from cni_calico.model.documents.tiers import TIERS, new_tier
from cni_calico.model.keys import BGP_DEFAULT, CLUSTER, FELIX_DEFAULT, ResourceKey
from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import KubernetesFacts
from cni_calico.nodeagent.context.settings import NodeSettings
from cni_calico.nodeagent.startup import cluster, node_record

METHODS_FILE = "address-methods.json"


def write_node(context: Context, plan: node_record.NodePlan) -> list[str]:
    uid, now = context.fresh.uid(), context.fresh.timestamp()
    done = ensure_record(
        context.store,
        node_record.key_of(plan.name),
        lambda old: node_record.desired_document(plan, old, uid=uid, now=now),
        context.deadline(),
    )
    return [f"Node {plan.name}"] if done.changed else []


def read_methods(context: Context) -> dict[str, str]:
    """How the stored addresses were detected, by family; {} if that is unknown."""
    try:
        found = json.loads(context.files.read_bytes(f"{context.settings.state_dir}/{METHODS_FILE}"))
    except (OSError, ValueError):
        return {}
    return {str(k): str(v) for k, v in found.items()} if isinstance(found, dict) else {}


def write_methods(context: Context) -> None:
    """Store the methods: a changed method may change the node's address, a new network card may not. A failure is only
    logged.
    """
    settings = context.settings
    methods = {"4": settings.ip_method.text, "6": settings.ip6_method.text}
    if read_methods(context) == methods:
        return
    try:
        context.files.make_directory(settings.state_dir, 0o755)
        context.files.write_atomic(f"{settings.state_dir}/{METHODS_FILE}", json.dumps(methods).encode(), 0o644)
    except OSError as e:
        context.log.warning(f"cannot remember how this node's addresses were detected: {e.strerror or e}")


def label_affinities(context: Context, name: str) -> list[str]:
    """Label the node's block affinities that an older version has written, because they are selected by their labels.

    At every start: that version may have run on this node since the last one.
    """
    if not context.is_kubernetes_datastore or context.kubernetes_store is None:
        return []
    from cni_calico.datastore.kubernetes.unlabelled import label_affinities as label

    labelled = label(context.kubernetes_store, context.deadline(), node=name)
    return [f"the labels of {len(labelled)} block affinities"] if labelled else []


def write_pools(context: Context, pools: Sequence[IPPool]) -> list[str]:
    changed = []
    for pool in pools:
        name = pool.metadata.name
        if ensure_present(context.store, ResourceKey("IPPool", name), encode_pool(pool), context.deadline()):
            context.log.info(f"made IPPool {name} ({pool.cidr}, IPIP {pool.ipip_mode}, VXLAN {pool.vxlan_mode})")
            changed.append(f"IPPool {name}")
    return changed


def write_cluster(context: Context, name: str, facts: KubernetesFacts) -> list[str]:
    fresh, store = context.fresh, context.store
    uid, now, guid = fresh.uid(), fresh.timestamp(), fresh.guid()
    changed = []
    for tier in TIERS:
        if ensure_present(
            store, ResourceKey("Tier", tier), new_tier(tier, uid=fresh.uid(), now=now), context.deadline()
        ):
            changed.append(f"Tier {tier}")
    types = _cluster_types(context, facts)
    plans: list[tuple[ResourceKey, Callable[[Mapping[str, Any] | None], Mapping[str, Any]]]] = [
        (CLUSTER, lambda old: cluster.desired_cluster(old, types, guid=guid, uid=uid, now=now))
    ]
    wanted = [(FELIX_DEFAULT, cluster.FELIX_DEFAULT_FIELDS), (BGP_DEFAULT, {})]
    if not context.is_kubernetes_datastore:
        wanted.append((felix_of_node(name), cluster.FELIX_NODE_FIELDS))
    for key, fields in wanted:
        plans.append((key, _fields_plan(key, fields, fresh.uid(), now)))
    for key, plan in plans:
        if ensure_record(store, key, plan, context.deadline()).changed:
            changed.append(f"{key.kind} {key.name}")
    return changed


def _fields_plan(
    key: ResourceKey, fields: Mapping[str, Any], uid: str, now: str
) -> Callable[[Mapping[str, Any] | None], Mapping[str, Any]]:
    return lambda old: cluster.desired_fields(key, old, fields, uid=uid, now=now)


def _cluster_types(context: Context, facts: KubernetesFacts) -> tuple[str, ...]:
    found = {"kubeadm": facts.kubeadm is not None, "rancher": facts.rancher}
    first = ("kdd",) if context.is_kubernetes_datastore else ()
    return (*first, *context.settings.cluster_type, *(name for name, present in found.items() if present))


def shutdown_path(settings: NodeSettings) -> str:
    return settings.shutdown_file or f"{settings.state_dir}/{SHUTDOWN_FILE}"


def forget_shutdown(context: Context) -> None:
    """Remove the time of the last -shutdown: the node is up again. A file that cannot be removed is reported only."""
    path = shutdown_path(context.settings)
    try:
        context.files.remove(path)
    except OSError as e:
        context.log.warning(f"cannot remove {path}: {e.strerror or e}")


def write_node_name(context: Context, name: str) -> None:
    """Make the directories and write the nodename file. Raises NodeNotSetUp."""
    settings, files = context.settings, context.files
    path = settings.nodename_file
    try:
        for directory in (settings.run_dir, settings.state_dir, settings.log_dir):
            files.make_directory(directory, 0o755)
        if not files.exists(path) or files.read_bytes(path) != name.encode():
            files.write_atomic(path, name.encode(), 0o644)
    except OSError as e:
        raise NodeNotSetUp(
            f"cannot write the nodename file: {e.filename or path}: {e.strerror or e}",
            details="start-up is tried again; CNI calls fail until the file is there",
        ) from e
