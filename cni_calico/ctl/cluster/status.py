"""``calicoctl cluster status``: the state of the cluster, in one screen.

Rule: everything comes from the datastore, and on Kubernetes from its nodes and calico-node's pods. What cannot be known
from here (BGP sessions, and readiness without Kubernetes) is left to ``calicoctl node status`` on the node.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico.ctl.ipam.lost import api_of, find_lost, group_of, is_kubernetes
from cni_calico.ctl.ipam.records import read_cluster, read_items, read_records
from cni_calico.ctl.ipam.usage import measure_usage
from cni_calico.ctl.output.looks import PlainLook
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.errors import DatastoreError
from cni_calico.ipam.consistency import Records, check_records, tunnel_addresses
from cni_calico.ipam.overlaps import describe_overlaps, overlapping_pools
from cni_calico.ipam.unusable import describe_unusable

NEARLY_FULL = 0.9
WAIT_S = 2.0  # between two looks
AGENTS = "/api/v1/pods?labelSelector=k8s-app%3Dcalico-node"


@dataclass(frozen=True, slots=True)
class ClusterView:
    """What was read. ``unready``: by the name of each Kubernetes node, why it is not ready; None without Kubernetes.
    ``group``: the API group of the records there, and ``why`` it is this one; ``other``: the other one, if its records
    are unlocked too.
    """

    spec: Mapping[str, Any]
    records: Records
    lost: int
    unready: Mapping[str, str] | None
    group: str = ""
    other: str = ""
    why: str = ""


def show(session: Session, arguments: Namespace) -> str:
    """The screen. Raises CommandFailed, which holds the screen too, if something is wrong; with --wait only if it still
    is when the time is over.
    """
    while True:
        try:
            text, wrong = _render(read_view(session), arguments)
        except DatastoreError as e:
            if not arguments.wait or session.deadline.remaining_s() < WAIT_S:
                raise
            text, wrong = "", [str(e)]
        if not wrong:
            return text
        if not arguments.wait or session.deadline.remaining_s() < WAIT_S:
            raise CommandFailed("the cluster has problems: " + "; ".join(wrong), output=text)
        time.sleep(WAIT_S)


def _render(view: ClusterView, arguments: Namespace) -> tuple[str, list[str]]:
    document, wrong = describe_view(view)
    if arguments.output != TABLE:
        return render_value(document, arguments.output), wrong
    return render_view(document, arguments.look), wrong


def read_view(session: Session) -> ClusterView:
    spec, _ = read_cluster(session)
    unready, group, other, why = None, "", "", ""
    if is_kubernetes(session):
        api = api_of(session)
        nodes = api.send(ApiRequest("GET", "/api/v1/nodes", "list nodes"), session.deadline).document
        pods = api.send(ApiRequest("GET", AGENTS, "list calico-node's pods"), session.deadline).document
        unready = find_unready(nodes.get("items") or (), pods.get("items") or ())
        choice = group_of(session)
        group, other, why = (
            choice.choose(session.deadline).name,
            choice.read_unlocked_other(session.deadline),
            choice.why,
        )
    items = read_items(session)
    lost = len(find_lost(session, items).found)
    return ClusterView(spec, read_records(session, items), lost, unready, group, other, why)


# -- computed from what was read --------------------------------------------------------------------------------------


def find_unready(nodes: Sequence[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Why each Kubernetes node is not ready; "" for those that are."""
    agents = {pod.get("spec", {}).get("nodeName"): _condition(pod, "Ready") for pod in pods}
    return {node["metadata"]["name"]: _why_unready(node, agents) for node in nodes}


def _why_unready(node: Mapping[str, Any], agents: Mapping[str, Mapping[str, Any]]) -> str:
    network, ready = _condition(node, "NetworkUnavailable"), _condition(node, "Ready")
    name = node["metadata"]["name"]
    if agents and name not in agents:
        return "no calico-node pod"
    if agents and agents[name].get("status") != "True":
        return "its calico-node pod is not ready"
    if network.get("status") == "True":
        return f"no network: {network.get('message') or network.get('reason')}"
    return "" if ready.get("status") == "True" else str(ready.get("message") or "its kubelet does not report")


def _condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def describe_view(view: ClusterView) -> tuple[dict[str, Any], list[str]]:
    """Everything as a document, and a list of what is wrong."""
    wrong: list[str] = []
    if view.spec.get("datastoreReady") is False:
        wrong.append("the datastore is locked (calicoctl datastore migrate unlock)")
    if view.other:
        wrong.append(f"the records in {view.other} are unlocked too: nodes that use those give out the same addresses")
    nodes, pools = _describe_nodes(view, wrong), _describe_pools(view, wrong)
    problems = len(check_records(view.records).findings)
    if problems:
        wrong.append(f"{problems} problems with addresses (calicoctl ipam check)")
    document = {
        "version": view.spec.get("calicoVersion") or "unknown",
        "type": view.spec.get("clusterType") or "unknown",
        **({"apiGroup": view.group, "apiGroupReason": view.why} if view.group else {}),
        "nodes": nodes,
        "pools": pools,
        "addressProblems": problems,
        "addressesToRelease": view.lost,
        "wrong": wrong,
    }
    return document, wrong


def _describe_nodes(view: ClusterView, wrong: list[str]) -> list[dict[str, Any]]:
    """``ready`` is None if that is not known here."""
    found = []
    names = {node.metadata.name: node for node in view.records.nodes}
    owned = Counter(block.node for block in view.records.blocks.values())
    for name in sorted({*names, *(view.unready or ())}):
        node = names.get(name)
        addresses = [] if node is None else [str(a) for a in (node.ipv4, node.ipv6) if a is not None]
        tunnels = [] if node is None else [str(address) for address, _ in tunnel_addresses(node)]
        why = "not known here" if view.unready is None else view.unready.get(name, "no such node in Kubernetes")
        if view.unready is not None and why:
            wrong.append(f"node {name}: {why}")
        ready = None if view.unready is None else not why
        found.append(
            {
                "name": name,
                "addresses": addresses,
                "tunnels": tunnels,
                "blocks": owned[name],
                "ready": ready,
                "why": why,
            }
        )
    return found


def _describe_pools(view: ClusterView, wrong: list[str]) -> list[dict[str, Any]]:
    found = []
    overlaps = overlapping_pools(view.records.pools)
    for pool in measure_usage(view.records.pools, list(view.records.blocks.values()))["pools"]:
        share = pool["used"] / pool["total"]
        if share >= NEARLY_FULL:
            wrong.append(f"pool {pool['name']} is {share:.0%} full")
        of_usage = {name: pool[name] for name in ("name", "cidr", "total", "used", "free")}
        found.append(of_usage | {"share": share, "overlaps": list(overlaps.get(pool["name"], ()))})
    wrong.extend(describe_overlaps(view.records.pools).values())
    wrong.extend(describe_unusable(view.records.pools, view.records.blocks).values())
    if not any(pool.usable for pool in view.records.pools):
        wrong.append("there is no IP pool that can be used")
    return found


def render_view(document: Mapping[str, Any], look: PlainLook) -> str:
    group = f"   API: {document['apiGroup']}, {document['apiGroupReason']}" if "apiGroup" in document else ""
    lines = [f"Version: {document['version']}   Type: {document['type']}{group}", ""]
    nodes = [
        (n["name"], ",".join(n["addresses"]) or "-", ",".join(n["tunnels"]) or "-", str(n["blocks"]), _ready(n))
        for n in document["nodes"]
    ]
    pools = [(p["name"], p["cidr"], str(p["used"]), f"{p['share']:.0%}") for p in document["pools"]]
    lines.append(look.columns(("NODE", "ADDRESS", "TUNNELS", "BLOCKS", "READY"), nodes))
    lines.append(look.columns(("POOL", "CIDR", "IN USE", "FULL"), pools))
    problems, lost = document["addressProblems"], document["addressesToRelease"]
    lines.append(f"Addresses: {problems} problems, {lost} to be released by the janitor")
    lines.append("BGP sessions: calicoctl node status, on each node")
    return "\n".join(lines) + "\n"


def _ready(node: Mapping[str, Any]) -> str:
    if node["ready"] is None:
        return str(node["why"])
    return "yes" if node["ready"] else f"no: {node['why']}"
