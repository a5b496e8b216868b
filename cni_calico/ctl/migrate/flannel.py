"""``calicoctl migrate flannel``: whether a cluster's flannel network can be moved node by node, and the plan for it.

Rule: it only reads. What it needs besides Calico's records is what flannel's own manifest has: a ConfigMap with
net-conf.json and a DaemonSet, in namespace kube-flannel or kube-system.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from cni_calico.ctl.ipam.lost import api_of, is_kubernetes
from cni_calico.ctl.migrate.flannel_plan import (
    FlannelNetwork,
    find_masquerading,
    find_obstacles,
    judge_node,
    parse_network,
    render_check,
    render_plan,
)
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.errors import DatastoreForbidden, DatastoreUnsupported, InvalidConfig
from cni_calico.model.keys import ResourceKey, ResourceList

SPACES, MAP = ("kube-flannel", "kube-system"), "kube-flannel-cfg"


def flannel(session: Session, arguments: Namespace) -> str:
    """Raises InvalidConfig where there is no flannel that can be moved, DatastoreError; CommandFailed for obstacles."""
    if not is_kubernetes(session):
        raise InvalidConfig(
            "cannot move flannel's network: the datastore is not Kubernetes, where flannel's records are"
        )
    network = _read_network(session)
    found = api_of(session).get("/api/v1/nodes", session.deadline, "list nodes") or {}
    nodes = sorted((judge_node(node, network) for node in found.get("items") or ()), key=lambda one: one.name)
    obstacles = list(find_obstacles(network, nodes, _pools(session), _felix(session)))
    if obstacles:
        raise CommandFailed(
            "flannel's network cannot be moved yet",
            output=render_check(network, nodes, obstacles),
            details="mend what the list names, then run the command again",
        )
    return render_plan(network, nodes) if arguments.plan else render_check(network, nodes, obstacles)


def _read_network(session: Session) -> FlannelNetwork:
    for space in SPACES:
        data = (_get(session, f"/api/v1/namespaces/{space}/configmaps/{MAP}") or {}).get("data") or {}
        if "net-conf.json" in data:
            network = parse_network(data["net-conf.json"], f"net-conf.json in ConfigMap {space}/{MAP}")
            daemons = (_get(session, f"/apis/apps/v1/namespaces/{space}/daemonsets") or {}).get("items") or ()
            for daemon in daemons:
                masquerades = find_masquerading(daemon)
                if masquerades is not None:
                    name = f"{space}/{daemon['metadata']['name']}"
                    return replace(network, masquerades=masquerades, daemon=name)
            return replace(network, daemon=f"{space}/kube-flannel-ds")
    raise InvalidConfig(
        f"there is no flannel here: no ConfigMap {MAP} with net-conf.json in namespace {' or '.join(SPACES)}",
        details="a flannel that a distribution has built in (K3s) has none: make one with its settings",
    )


def _get(session: Session, path: str) -> Mapping[str, Any] | None:
    try:
        return api_of(session).get(path, session.deadline, "read flannel's configuration")
    except DatastoreForbidden as e:
        raise InvalidConfig(f"cannot see whether flannel is here: {e}") from e


def _pools(session: Session) -> Iterator[Mapping[str, Any]]:
    try:
        items = session.store.list(ResourceList("IPPool"), session.deadline).items
    except DatastoreUnsupported:
        return  # Calico's definitions come with the plan
    yield from (item.value.get("spec") or {} for item in items)


def _felix(session: Session) -> Mapping[str, Any]:
    try:
        found = session.store.get(ResourceKey("FelixConfiguration", "default"), session.deadline)
    except DatastoreUnsupported:
        return {}
    return {} if found is None else found.value.get("spec") or {}
