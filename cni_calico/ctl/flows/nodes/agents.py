"""Which pods answer for which node, and the names of pods that a question is about.

Rule: only read. A node whose agent cannot be asked is told with the reason, not left out. Pods of other namespaces than
the agents' are not asked, whatever labels they have: whoever can make a pod somewhere must not answer for a node.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.exec.command import ContainerCommand
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.flows.conditions import has_label, is_end
from cni_calico.flows.given_names import MOST_GIVEN, GivenName
from cni_calico.flows.query import Condition
from cni_calico.model.timestamps import parse_rfc3339

_AGENTS = "/api/v1/pods?labelSelector=k8s-app%3Dcalico-node"
_OURS = frozenset(("kube-system", "calico-system"))  # where manifests and operators put the agents
_CONTAINER, _PIPE = "calico-node", "-flows-pipe"
_NAMED = ("from", "to", "pod", "namespace", "from-label", "to-label", "label")
_KEPT = ("namespace", "name", "creationTimestamp")
_MOST_BYTES = 48 << 10  # of a request, which has at most 64 kB


class NoAgents(CalicoError):
    """There is nobody to be asked."""

    hint = "flows of this host only: --host"


@dataclass(frozen=True, slots=True)
class NodeAgent:
    """``trouble``: why it cannot be asked, "" if it can."""

    node: str
    command: ContainerCommand
    trouble: str = ""


def find_agents(api: KubernetesAPI, wanted: Sequence[str], deadline: Deadline) -> list[NodeAgent]:
    """Of the nodes ``wanted``, or of all. Raises NoAgents, InvalidConfig, DatastoreError, DeadlineExceeded."""
    pods = api.send(ApiRequest("GET", _AGENTS, "list calico-node's pods"), deadline).document.get("items") or ()
    return choose_agents(pods, wanted)


def choose_agents(pods: Sequence[Mapping[str, Any]], wanted: Sequence[str]) -> list[NodeAgent]:
    """Of pods with the agents' label. Raises NoAgents, InvalidConfig."""
    namespaces = {str(pod["metadata"]["namespace"]) for pod in pods}
    trusted = namespaces & _OURS or namespaces
    if len(trusted - _OURS) > 1:
        raise NoAgents(
            "cannot ask nodes for flows: pods with the label k8s-app=calico-node are in several namespaces "
            f"({', '.join(sorted(trusted))}), and none of them is kube-system or calico-system: delete those that are "
            "not the agents'"
        )
    found: dict[str, NodeAgent] = {}
    for pod in pods:
        agent = _agent(pod)
        if agent.command.namespace not in trusted:
            continue
        if agent.node and (agent.node not in found or not agent.trouble):
            found[agent.node] = agent
    if not found:
        raise NoAgents("cannot ask nodes for flows: there is no pod with the label k8s-app=calico-node")
    if missing := sorted(set(wanted) - found.keys()):
        raise InvalidConfig(f"--node: there is no calico-node on {', '.join(missing)}")
    return [found[node] for node in sorted(wanted or found)]


def _agent(pod: Mapping[str, Any]) -> NodeAgent:
    metadata, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    containers = spec.get("containers") or [{}]
    container = next((one for one in containers if one.get("name") == _CONTAINER), containers[0])
    first = str((container.get("command") or [""])[0])
    program = first if first.rpartition("/")[2] == _CONTAINER else _CONTAINER
    command = ContainerCommand(
        str(metadata["namespace"]), str(metadata["name"]), str(container.get("name") or ""), (program, _PIPE)
    )
    phase = str(status.get("phase") or "unknown")
    going = "is ending" if metadata.get("deletionTimestamp") else "" if phase == "Running" else f"is {phase}"
    return NodeAgent(str(spec.get("nodeName") or ""), command, going and f"its pod {metadata['name']} {going}")


def find_names(
    api: KubernetesAPI, conditions: Iterable[Condition], deadline: Deadline, note: Callable[[str], object]
) -> tuple[GivenName, ...]:
    """Of the pods that conditions are about: a node has no names of other nodes' pods. ``note`` is told what could not
    be found out.
    """
    wanted = [(one.field, value) for one in conditions if one.field in _NAMED for value in one.values]
    if not wanted:
        return ()
    found, size = list[GivenName](), 0
    try:
        for pod in _pods(api, wanted, deadline):
            for one in _names(pod, wanted):
                size += len(json.dumps(one)) + 2
                if len(found) >= MOST_GIVEN or size > _MOST_BYTES:
                    note(
                        "more pods meet the filters than can be asked for by name: of others, only what their own "
                        "nodes have recorded is found"
                    )
                    return tuple(found)
                found.append(one)
    except CalicoError as e:
        note(f"of pods of other nodes only their addresses are known: {e.message}")
    return tuple(found)


def find_services(api: KubernetesAPI, conditions: Sequence[Condition], deadline: Deadline) -> tuple[Condition, ...]:
    """The conditions with the addresses of services beside their names. Raises InvalidConfig,
    DatastoreError, DeadlineExceeded.
    """
    if not any(one.field == "service" for one in conditions):
        return tuple(conditions)
    found = api.send(ApiRequest("GET", "/api/v1/services", "list services"), deadline).document.get("items") or ()
    return tuple(
        replace(one, values=_with_addresses(found, one)) if one.field == "service" else one for one in conditions
    )


def _with_addresses(services: Sequence[Mapping[str, Any]], condition: Condition) -> tuple[str, ...]:
    """The recorders of nodes that know services find what was sent to a node's port, too."""
    found = [one for value in condition.values for one in (value, *service_addresses(services, value))]
    return tuple(dict.fromkeys(found))


def service_addresses(services: Iterable[Mapping[str, Any]], value: str) -> list[str]:
    """``value``: an address, or a name with or without its namespace. Raises InvalidConfig if there is none."""
    try:
        return [str(ip_address(value))]
    except ValueError:
        namespace, slash, name = value.rpartition("/")
    addresses: dict[str, None] = {}
    for service in services:
        metadata, spec = service["metadata"], service.get("spec") or {}
        if metadata["name"] == name and (not slash or metadata["namespace"] == namespace):
            status = (service.get("status") or {}).get("loadBalancer") or {}
            given = [*(spec.get("clusterIPs") or ()), *(spec.get("externalIPs") or ())]
            given += [one["ip"] for one in status.get("ingress") or () if one.get("ip")]
            addresses |= dict.fromkeys(one for one in given if one != "None")
    if not addresses:
        raise InvalidConfig(f"--service: there is no service {value} with an address of its own")
    return list(addresses)


def _pods(api: KubernetesAPI, wanted: Sequence[tuple[str, str]], deadline: Deadline) -> Iterator[Mapping[str, Any]]:
    namespaces = {
        "" if field.endswith("label") else value if field == "namespace" else value.rpartition("/")[0]
        for field, value in wanted
    }
    paths = ["/api/v1/pods"]
    if "" not in namespaces:
        paths = [f"/api/v1/namespaces/{quote(one, safe='')}/pods" for one in sorted(namespaces)]
    for path in paths:
        listed = list[Mapping[str, Any]]()
        api.items(ApiRequest("GET", path, "list pods"), deadline, partial(_keep, listed))
        yield from listed


def _keep(listed: list[Mapping[str, Any]], pod: Any) -> None:
    """What is needed of it: pods of a large cluster are large."""
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("hostNetwork") or status.get("phase") in ("Succeeded", "Failed"):
        return
    addresses = [one["ip"] for one in status.get("podIPs") or () if isinstance(one.get("ip"), str)]
    listed.append(
        {**{name: metadata.get(name) for name in _KEPT}, "labels": metadata.get("labels") or {}, "ips": addresses}
    )


def _names(pod: Mapping[str, Any], wanted: Sequence[tuple[str, str]]) -> Iterator[GivenName]:
    namespace, name = str(pod["namespace"]), str(pod["name"])
    if not any(_is_wanted(namespace, name, pod["labels"], *one) for one in wanted):
        return
    since = parse_rfc3339(str(pod["creationTimestamp"] or ""))
    if since is not None:
        yield from (GivenName(address, "pod", namespace, name, since, pod["labels"]) for address in pod["ips"])


def _is_wanted(namespace: str, name: str, labels: Mapping[str, str], field: str, value: str) -> bool:
    if field.endswith("label"):
        return has_label(labels, value)
    if field == "namespace":
        return namespace == value
    return is_end({"ip": "", "namespace": namespace, "name": name}, value)
