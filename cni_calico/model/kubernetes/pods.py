"""PURE: Pods as WorkloadEndpoint documents, Namespaces and ServiceAccounts as Profile documents.

Rule: these Calico resources are derived: only three annotations of the pod are stored for them. A pod's endpoint is
always named after eth0. A pod's labels are its author's, so those that say who a container outside Kubernetes is do not
count. Source: tests/golden/vectors, upstream's conversion.
"""

from __future__ import annotations

import json
from ipaddress import ip_interface, ip_network
from sys import intern
from typing import Any

from cni_calico.errors import CorruptRecord
from cni_calico.model import names
from cni_calico.model.documents.fields import (
    JSON,
    Wrong,
    brief,
    parse_list,
    parse_object,
    parse_objects,
    parse_text,
    parse_text_map,
)
from cni_calico.model.documents.resources import API_VERSION
from cni_calico.model.identity import MADE_HERE
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.custom import object_name
from cni_calico.model.qos import parse_qos

POD_IP = "cni.projectcalico.org/podIP"
POD_IPS = "cni.projectcalico.org/podIPs"
CONTAINER_ID = "cni.projectcalico.org/containerID"
FLOATING_IPS = "cni.projectcalico.org/floatingIPs"
SOURCE_PREFIXES = "cni.projectcalico.org/allowedSourcePrefixes"
NETWORK_STATUS = "k8s.v1.cni.cncf.io/network-status"
ENDPOINT = "eth0"
FINISHED = ("Failed", "Succeeded", "Completed")
_PROTOCOLS = ("TCP", "UDP", "SCTP")
_LABEL_MAX = 63
_ERROR_MAX = 800
_OCTETS = frozenset(map(str, range(256)))


# -- pods -------------------------------------------------------------------------------------------------------------


def endpoint_key(namespace: str, pod: str, node: str) -> ResourceKey:
    return ResourceKey("WorkloadEndpoint", names.endpoint_name(node, "k8s", pod, ENDPOINT), namespace)


def read_pod(obj: JSON, *, prefix: str = names.DEFAULT_PREFIX) -> tuple[ResourceKey, dict[str, Any]] | None:
    """Key and document of a pod's endpoint; None for a pod in the host's network or not on a node yet.

    ``prefix`` is the prefix of the host interface's name. Raises CorruptRecord.
    """
    try:
        return _read_pod(obj, prefix)
    except ValueError as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {brief(str(e), _ERROR_MAX)}") from e


def _read_pod(obj: JSON, prefix: str) -> tuple[ResourceKey, dict[str, Any]] | None:
    metadata = parse_object(obj.get("metadata"), "metadata")
    spec = parse_object(obj.get("spec") or {}, "spec")
    if spec.get("hostNetwork") or not spec.get("nodeName"):
        return None
    pod = parse_text(metadata.get("name"), "metadata.name")
    namespace = intern(parse_text(metadata.get("namespace"), "metadata.namespace"))  # many pods share one
    node = parse_text(spec["nodeName"], "spec.nodeName")
    annotations = parse_text_map(metadata.get("annotations") or {}, "metadata.annotations")
    account = parse_text(spec.get("serviceAccountName") or "", "spec.serviceAccountName")
    key = endpoint_key(namespace, pod, node)
    is_finished = finished(obj)
    networks = [] if is_finished else pod_networks(obj)
    profiles = [f"kns.{namespace}"] + ([f"ksa.{namespace}.{account}"] if account else [])
    endpoint = {
        "orchestrator": "k8s",
        "node": node,
        "containerID": annotations.get(CONTAINER_ID, ""),
        "pod": pod,
        "endpoint": ENDPOINT,
        "serviceAccountName": account,
        "ipNetworks": networks,
        "ipNATs": _read_nats(annotations, networks),
        "profiles": profiles,
        "interfaceName": names.kubernetes_veth(namespace, pod, prefix),
        "ports": _read_ports(spec),
        # a pod that no longer has its address must never stay unreadable, and so keep it
        "allowSpoofedSourcePrefixes": [] if is_finished else _read_prefixes(annotations),
        "qosControls": parse_qos(annotations)[0],
    }
    document = {
        "apiVersion": API_VERSION,
        "kind": "WorkloadEndpoint",
        "metadata": _read_metadata(key, metadata, account, annotations),
        "spec": {name: value for name, value in endpoint.items() if value not in ("", [], {})},
    }
    return key, document


def _read_metadata(key: ResourceKey, metadata: JSON, account: str, annotations: JSON) -> dict[str, Any]:
    out: dict[str, Any] = {"name": key.name, "namespace": key.namespace}
    for field in ("uid", "creationTimestamp", "deletionTimestamp", "generateName"):
        if metadata.get(field):
            out[field] = metadata[field]
    labels = dict(parse_text_map(metadata.get("labels") or {}, "metadata.labels"))
    for name in MADE_HERE & labels.keys():
        del labels[name]
    labels["projectcalico.org/namespace"] = key.namespace
    labels["projectcalico.org/orchestrator"] = "k8s"
    if account and len(account) < _LABEL_MAX:
        labels["projectcalico.org/serviceaccount"] = account
    out["labels"] = labels
    if NETWORK_STATUS in annotations:
        out["annotations"] = {NETWORK_STATUS: annotations[NETWORK_STATUS]}
    return out


def finished(obj: JSON) -> bool:
    """Whether the pod no longer has its addresses: it has completed, or is being deleted and its DEL is done."""
    metadata, status = parse_object(obj.get("metadata"), "metadata"), parse_object(obj.get("status") or {}, "status")
    annotations = parse_text_map(metadata.get("annotations") or {}, "metadata.annotations")
    if metadata.get("deletionTimestamp") and annotations.get(POD_IP) == "":
        return True
    return status.get("phase") in FINISHED


def _address_texts(annotations: JSON, status: JSON) -> list[Any]:
    """The texts of a pod's addresses: the status is used before the annotations, the plural forms before the singular
    ones.
    """
    if status.get("podIPs"):
        return [entry.get("ip") for entry in parse_objects(status["podIPs"], "status.podIPs")]
    if status.get("podIP"):
        return [status["podIP"]]
    if annotations.get(POD_IPS):
        return _select_single(parse_text(annotations[POD_IPS], POD_IPS).split(","))
    return _select_single([annotations[POD_IP]]) if annotations.get(POD_IP) else []


def _select_single(texts: list[str]) -> list[str]:
    """The texts of single addresses: anyone who may patch a pod can write "0.0.0.0/0" there. A text that is not an
    address fails later.
    """
    return [text for text in texts if "/" not in text or text.endswith("/128" if ":" in text else "/32")]


def pod_networks(obj: JSON) -> list[str]:
    """The addresses recorded for a pod, as /32 and /128. Raises Wrong."""
    metadata, status = parse_object(obj.get("metadata"), "metadata"), parse_object(obj.get("status") or {}, "status")
    annotations = parse_text_map(metadata.get("annotations") or {}, "metadata.annotations")
    networks = []
    for text in _address_texts(annotations, status):
        if isinstance(text, str) and _is_plain(plain := text.removesuffix("/32")):  # as nearly all are
            networks.append(f"{plain}/32")
            continue
        try:
            networks.append(str(ip_network(parse_text(text, "pod IP"), strict=False)))
        except ValueError as e:
            raise Wrong("pod IP", "an IP address", text) from e
    return networks


def _is_plain(text: str) -> bool:
    """Whether it is an IPv4 address as ``ipaddress`` writes it, which takes ten times as long to tell."""
    octets = text.split(".")
    return len(octets) == 4 and _OCTETS.issuperset(octets)


def _json_list(annotations: JSON, name: str) -> list[str]:
    text = annotations.get(name)
    if not text:
        return []
    at = f"metadata.annotations[{name}]"
    try:
        return [parse_text(item, at) for item in parse_list(json.loads(text), at)]
    except (ValueError, RecursionError) as e:
        raise Wrong(at, "a JSON list of texts", text) from e


def _read_nats(annotations: JSON, networks: list[str]) -> list[dict[str, str]]:
    texts = _json_list(annotations, FLOATING_IPS) if networks else []
    if not texts:
        return []
    internal = {one.version: str(one.ip) for one in map(ip_interface, networks)}
    nats = []
    for text in texts:
        version = 6 if ":" in text else 4
        if version in internal:
            nats.append({"internalIP": internal[version], "externalIP": text})
    return nats


def _read_prefixes(annotations: JSON) -> list[str]:
    prefixes = []
    for text in _json_list(annotations, SOURCE_PREFIXES):
        try:
            prefixes.append(str(ip_network(text, strict=False)))
        except ValueError as e:
            raise Wrong(f"metadata.annotations[{SOURCE_PREFIXES}]", "networks in CIDR notation", text) from e
    return prefixes


def _read_ports(spec: JSON) -> list[dict[str, Any]]:
    ports = []
    for field in ("containers", "initContainers"):
        for container in parse_objects(spec.get(field) or [], f"spec.{field}"):
            for port in parse_objects(container.get("ports") or [], f"spec.{field}.ports"):
                protocol = port.get("protocol") or "TCP"
                if not port.get("containerPort") or not (port.get("name") or port.get("hostPort")):
                    continue
                if protocol in _PROTOCOLS:
                    ports.append(_read_port(port, protocol))
    return ports


def _read_port(port: JSON, protocol: str) -> dict[str, Any]:
    out = {"name": port.get("name") or "", "protocol": protocol, "port": port["containerPort"]}
    if port.get("hostPort"):
        out["hostPort"] = port["hostPort"]
    if port.get("hostIP"):
        out["hostIP"] = port["hostIP"]
    return out


def endpoint_annotations(document: JSON) -> dict[str, str]:
    """The pod's annotations that represent its endpoint."""
    spec = document.get("spec") or {}
    networks = list(spec.get("ipNetworks") or ())
    return {
        POD_IP: networks[0] if networks else "",
        POD_IPS: ",".join(networks),
        CONTAINER_ID: spec.get("containerID") or "",
    }


def is_recorded(obj: JSON) -> bool:
    """Whether a pod's annotations have an endpoint that its DEL has not cleared."""
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    addresses = annotations.get(POD_IP) or annotations.get(POD_IPS)
    return bool(addresses or (annotations.get(CONTAINER_ID) and POD_IP not in annotations))


def cleared_annotations() -> dict[str, str]:
    """The pod's annotations after DEL; the container ID stays."""
    return {POD_IP: "", POD_IPS: ""}


# -- profiles ---------------------------------------------------------------------------------------------------------


def read_namespace(obj: JSON) -> tuple[ResourceKey, dict[str, Any]]:
    """The Profile ``kns.<namespace>``: allows everything, applies the namespace's labels."""
    allow = [{"action": "Allow", "source": {}, "destination": {}}]
    return _read_profile(obj, "kns.{name}", "pcns.", {"ingress": allow, "egress": allow})


def read_service_account(obj: JSON) -> tuple[ResourceKey, dict[str, Any]]:
    """The Profile ``ksa.<namespace>.<name>``: applies the service account's labels."""
    return _read_profile(obj, "ksa.{namespace}.{name}", "pcsa.", {})


def _read_profile(obj: JSON, pattern: str, prefix: str, rules: JSON) -> tuple[ResourceKey, dict[str, Any]]:
    try:
        metadata = parse_object(obj.get("metadata"), "metadata")
        own = parse_text(metadata.get("name"), "metadata.name")
        labels = parse_text_map(metadata.get("labels") or {}, "metadata.labels")
    except Wrong as e:
        raise CorruptRecord(f"cannot read {object_name(obj)}: {e}") from e
    name = pattern.format(name=own, namespace=metadata.get("namespace", ""))
    apply = {prefix + label: value for label, value in labels.items()}
    apply[prefix + "projectcalico.org/name"] = own
    head = {field: metadata[field] for field in ("uid", "creationTimestamp") if metadata.get(field)}
    return ResourceKey("Profile", name), {
        "apiVersion": API_VERSION,
        "kind": "Profile",
        "metadata": {"name": name, **head},
        "spec": {**rules, "labelsToApply": apply},
    }
