"""The cluster of changes.py behind Kubernetes' API server, on loopback, for starts.py.

Rule: all records are made by the API server, which checks and completes them: endpoints are pods, the profile is a
namespace's, the policies are custom resources of crd.projectcalico.org/v1, which every version of ours reads.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.datastore.overlapped import run_each
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.names import kubernetes_veth
from tests.e2e.kubernetes.cluster import Cluster, running_cluster
from tests.netns.namespaces import Namespace

PODS = "/api/v1/namespaces/default/pods"
POD_NETWORK = "10.64.0.0/10"  # with the addresses of all endpoints
LIMIT_S = 600.0  # of one write, on a busy machine
PROBE_INTERFACES = kubernetes_veth("default", "p0"), kubernetes_veth("default", "p1")  # of the pods that exist


def plug_others(host: Namespace, pods: Namespace, local: int) -> None:
    """The interfaces of the pods from 2 on, whose other ends are in one namespace: a pod without one counts as gone."""
    names = [kubernetes_veth("default", f"p{number}") for number in range(2, local)]
    host.do_all(*(f"link add {name} type veth peer name {name} netns {pods.name}" for name in names))
    for side in (host, pods):
        side.do_all(*(f"link set {name} up" for name in names))


def open_api_server(stack: ExitStack) -> Cluster:
    """A server with our definitions, in the network namespace of this thread."""
    kube = stack.enter_context(running_cluster())
    kube.apply_definitions()
    return kube


def fill_api_server(kube: Cluster, store: KubernetesStore, writes: list[Write]) -> None:
    """Make what the records say: an endpoint's as a pod of its node, its labels without those that come from the pod's
    namespace, a profile's as the namespace that there is. Raises CalicoError.
    """
    pods, records = [], []
    for write in writes:
        kind = getattr(write.key, "kind", "")
        assert write.value is not None
        if kind == "WorkloadEndpoint":
            pods.append(_pod(write.value))
        elif kind not in ("Node", "Profile"):
            records.append(write)
    networks = {"podCIDR": POD_NETWORK, "podCIDRs": [POD_NETWORK]}  # without which nobody routes to the pods
    for number, node in enumerate(sorted({pod["spec"]["nodeName"] for pod in pods})):
        address = {"projectcalico.org/IPv4Address": f"192.0.2.{1 + number}/24"}
        kube.create_node(node, metadata={"annotations": address}, spec=networks)
    api = kube.api()

    def make(pod: dict[str, Any]) -> None:
        deadline = Deadline.after(LIMIT_S)
        made = api.send(ApiRequest("POST", PODS, "create a pod", body=pod), deadline).document
        path = f"{PODS}/{pod['metadata']['name']}/status"  # which confirms the addresses that the annotations claim
        body = {**made, "status": {**made["status"], **pod["status"]}}
        api.send(ApiRequest("PUT", path, "tell a pod's state", body=body), deadline)

    made = run_each(pods, make)
    committed = store.commit_each(records, Deadline.after(LIMIT_S))
    api.close()
    for outcome in (*made, *committed):
        if isinstance(outcome, CalicoError):
            raise outcome


def _pod(document: Any) -> dict[str, Any]:
    """As a kubelet and the CNI plugin leave it: some of what a Deployment's pod has besides what Calico reads."""
    spec, labels = document["spec"], document["metadata"]["labels"]
    addresses = ",".join(spec["ipNetworks"])
    plain = [network.partition("/")[0] for network in spec["ipNetworks"]]
    annotations = {
        "cni.projectcalico.org/containerID": spec["containerID"],
        "cni.projectcalico.org/podIP": spec["ipNetworks"][0],
        "cni.projectcalico.org/podIPs": addresses,
    }
    environment = [{"name": f"VARIABLE_{number}", "value": "a value of some length"} for number in range(5)]
    container = {
        "name": "main",
        "image": "registry.example.org/a/program:v1.2.3",
        "env": environment,
        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": spec["pod"],
            "labels": {name: value for name, value in labels.items() if "/" not in name},
            "annotations": annotations,
        },
        "spec": {"nodeName": spec["node"], "containers": [container]},
        "status": {"phase": "Running", "podIP": plain[0], "podIPs": [{"ip": address} for address in plain]},
    }
