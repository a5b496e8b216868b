"""What Kubernetes knows about an attachment: the pod, its namespace, and their requests.

Rule: everything is read and parsed before anything is allocated. With ``policy.type: k8s`` the pod must exist and be
the one that the runtime calls for (K8S_POD_UID). Without it nothing is read, except the namespace for IPAM's namespace
selectors.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.datastore.interface import Versioned, pod_of
from cni_calico.errors import CorruptRecord, InvalidAnnotation, TryAgain
from cni_calico.ipam.assign import AssignRequest
from cni_calico.model.resources import IPNAT, Address, WorkloadEndpoint
from cni_calico.plugin.annotations import PodRequest, parse_pod_annotations
from cni_calico.plugin.attachment import KUBERNETES, Attachment
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.addresses import read_namespace, read_namespace_labels

NO_REQUEST = PodRequest()


@dataclass(frozen=True, slots=True)
class PodFacts:
    """``endpoint`` has the labels, ports, profiles and service account of the pod; None if the pod was not read.
    ``annotations`` are all of the pod's.
    """

    request: PodRequest = NO_REQUEST
    endpoint: WorkloadEndpoint | None = None
    generate_name: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)


NOTHING = PodFacts()


def reads_pod(attachment: Attachment, conf: NetConf) -> bool:
    """Whether labels and annotations of pods count."""
    return attachment.orchestrator == KUBERNETES and conf.policy_type == "k8s"


def is_another_pod(stored: Versioned | None, call: Call) -> bool:
    """Whether a remembered endpoint belongs to an earlier pod of the same name."""
    from cni_calico.datastore.kubernetes.objects import is_pod

    pod = pod_of(stored)
    return pod is not None and not is_pod(pod, call.args.pod_uid)


def read_facts(task: Task, attachment: Attachment, stored: Versioned | None) -> PodFacts:
    """Raises TryAgain if the pod is missing, InvalidAnnotation, FeatureDisabled, DatastoreError."""
    if reads_pod(attachment, task.conf):
        return _read_facts(task, attachment, stored)
    labels = read_namespace_labels(task) if task.conf.ipam.is_calico else None
    return NOTHING if labels is None else PodFacts(PodRequest(namespace_labels=labels))


def _read_facts(task: Task, attachment: Attachment, stored: Versioned | None) -> PodFacts:
    args = task.call.args
    pod = pod_of(stored) or task.kubernetes.pod(args.pod_namespace, args.pod_name, args.pod_uid, task.deadline)
    pod = _require_pod(pod, task.call)
    namespace = read_namespace(task)
    request = parse_pod_annotations(pod, namespace, task.conf)
    for text in request.ignored:
        task.log.warning(text)
    endpoint = plan_pod_endpoint(pod, attachment)
    metadata = pod.get("metadata") or {}
    annotations = {str(name): str(value) for name, value in (metadata.get("annotations") or {}).items()}
    return PodFacts(request, endpoint, str(metadata.get("generateName") or ""), annotations)


def read_addresses_past_ipam(task: Task, attachment: Attachment, stored: Versioned | None) -> tuple[Address, ...]:
    """The addresses that the pod has by ``ipAddrsNoIpam``. Raises as ``read_facts`` does."""
    if not task.conf.ip_addrs_no_ipam or not reads_pod(attachment, task.conf):
        return ()
    return _read_facts(task, attachment, stored).request.addresses_no_ipam


def _require_pod(pod: Mapping[str, Any] | None, call: Call) -> Mapping[str, Any]:
    from cni_calico.datastore.kubernetes.objects import is_pod

    name = f"{call.args.pod_namespace}/{call.args.pod_name}"
    if pod is None:
        raise TryAgain(
            f"cannot set up the network of pod {name}: it does not exist in Kubernetes",
            details="it has been deleted; or the API server named by kubernetes.kubeconfig is another cluster's",
        )
    if not is_pod(pod, call.args.pod_uid):
        raise TryAgain(
            f"cannot set up the network of pod {name}: it has been replaced by another pod of its name",
            details=f"the runtime calls for UID {call.args.pod_uid}",
        )
    return pod


def plan_pod_endpoint(pod: Mapping[str, Any], attachment: Attachment) -> WorkloadEndpoint:
    """The labels, ports, profiles and service account of a pod's endpoint, as every datastore stores them."""
    from cni_calico.model.documents.codec import decode_endpoint
    from cni_calico.model.kubernetes.pods import read_pod

    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    plain = {
        "metadata": {
            "name": attachment.workload,
            "namespace": attachment.namespace,
            "labels": metadata.get("labels") or {},
        },
        "spec": {**spec, "nodeName": attachment.node, "hostNetwork": False},
    }
    try:
        found = read_pod(plain)
        assert found is not None
        return decode_endpoint(*found)
    except CorruptRecord as e:
        raise InvalidAnnotation(f"cannot use pod {attachment.namespace}/{attachment.workload}: {e.message}") from e


# -- what the facts change --------------------------------------------------------------------------------------------


def plan_pod_request(request: AssignRequest, facts: PodFacts) -> AssignRequest:
    """The IPAM request, with the pod's wishes in place of the configuration's."""
    pod = facts.request
    changes: dict[str, Any] = {"namespace_labels": pod.namespace_labels}
    if pod.families is not None:
        changes |= {"num4": int(4 in pod.families), "num6": int(6 in pod.families)}
    if pod.pools4 is not None:
        changes["pools4"] = pod.pools4
    if pod.pools6 is not None:
        changes["pools6"] = pod.pools6
    if pod.addresses:
        changes["addresses"] = pod.addresses
    return replace(request, **changes)


def plan_nats(floating: Iterable[Address], addresses: Iterable[Address]) -> tuple[IPNAT, ...]:
    """Map each floating address to the pod's address of its family; without such an address it is left out."""
    internal = {address.version: address for address in reversed(tuple(addresses))}
    return tuple(IPNAT(internal[ip.version], ip) for ip in floating if ip.version in internal)


def plan_pod_record(record: WorkloadEndpoint, facts: PodFacts) -> WorkloadEndpoint:
    """An endpoint record with what the pod says: labels, ports, profiles, service account, its annotations."""
    if facts.endpoint is None:
        return record
    pod, request = facts.endpoint, facts.request
    addresses = [network.network_address for network in record.ip_networks]
    extra = {**record.metadata.extra}
    if facts.generate_name:
        extra["generateName"] = facts.generate_name
    return replace(
        record,
        metadata=replace(record.metadata, labels=pod.metadata.labels, extra=extra),
        service_account=pod.service_account,
        profiles=pod.profiles,
        ports=pod.ports,
        ip_nats=plan_nats(request.floating_ips, addresses),
        allow_spoofed_source_prefixes=request.source_prefixes,
        qos_controls=dict(request.qos) or None,
    )
