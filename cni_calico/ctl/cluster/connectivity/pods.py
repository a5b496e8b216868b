"""The check in a Kubernetes cluster: two pods, on two nodes where there are two, and a service and a policy for them.

Rule: everything is made in a namespace of its own, whose removal is registered first; no image is pulled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from urllib.parse import quote

from cni_calico.ctl.cluster.connectivity import objects
from cni_calico.ctl.cluster.connectivity.encrypted import EncryptedCluster
from cni_calico.ctl.cluster.connectivity.findings import (
    FAILED,
    OK,
    SKIPPED,
    Trial,
    TrialPlan,
    missing_families,
    render_plan,
)
from cni_calico.ctl.cluster.connectivity.inside import ANSWERING, Progress
from cni_calico.ctl.cluster.connectivity.pod_namespace import LOOK_S, NAMESPACES, CheckNamespace, PodPlace
from cni_calico.ctl.cluster.connectivity.undisturbed import undisturbed
from cni_calico.ctl.cluster.connectivity.wire_pods import WirePods
from cni_calico.ctl.cluster.status import AGENTS, find_unready
from cni_calico.ctl.session import CommandFailed
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.names import CHECK_PREFIX
from cni_calico.model.timestamps import parse_rfc3339

_REMOVAL_S = 60.0
_MISSING, _EXISTS = 404, 409
_API = "kubernetes.default"
_NAME_SERVICE = "k8s-app=kube-dns"


class PodCheck:
    """``note`` tells the user about what is not a finding; ``encrypted``: None where encryption is not enabled."""

    def __init__(
        self,
        api: KubernetesAPI,
        deadline: Deadline,
        token: str,
        note: Callable[[str], None],
        encrypted: EncryptedCluster | None = None,
    ) -> None:
        self.api = api
        self.deadline = deadline
        self.namespace = CHECK_PREFIX + token
        self.made = CheckNamespace(api, deadline, self.namespace)
        self.note = note
        self.encrypted = encrypted

    def run(self, wanted: list[str], image: str) -> Iterator[Trial]:
        """Check between the nodes ``wanted``, or any two that are ready; ``image`` replaces calico-node's image.

        Raises CommandFailed, DatastoreError.
        """
        places = choose_places(self.made.list_items("/api/v1/nodes"), self.made.list_items(AGENTS), wanted, image)
        self._remove_forgotten()
        with ExitStack() as undo:
            undo.callback(self._remove)
            self.made.create(NAMESPACES, objects.namespace(self.namespace, of_hosts=self.encrypted is not None))
            yield from self._try(places)

    def _try(self, places: list[PodPlace]) -> Iterator[Trial]:
        server, client = places[-1], places[0]
        self.made.create_pod(objects.pod(objects.SERVER, server.node, server.image, ANSWERING))
        self.made.create(self.made.path("services"), objects.service())
        found = self.made.await_pod(objects.SERVER, _is_ready)
        where = f"{client.node} to {server.node}" if client != server else f"both on {server.node}"
        yield Trial("pods", OK, f"{where}; the kubelet reaches the pod")
        addresses = [str(entry["ip"]) for entry in found["status"].get("podIPs") or ()]
        yield from missing_families(addresses)
        service = self.made.get(self.made.path("services", objects.SERVER))
        services = [str(address) for address in service["spec"].get("clusterIPs") or ()]
        names, finding = self._names()
        yield from [] if finding is None else [finding]
        tokens: dict[str, str] = {}
        wires = None
        if self.encrypted is not None:
            wires = WirePods(self.made, self.encrypted, client, server, addresses)
            yield from wires.start()
            tokens = wires.tokens
        plan = render_plan(TrialPlan(addresses, services, names, tokens=tokens))
        self.made.create_pod(objects.pod(objects.CLIENT, client.node, client.image, plan))
        exchanged = yield from self._watch_log()
        if wires is not None:
            yield from wires.judge(exchanged)

    def _names(self) -> tuple[dict[str, str], Trial | None]:
        """The name that pods look up, with its address; none in a cluster without a name service."""
        if not self.made.list_items(f"{NAMESPACES}/kube-system/services?labelSelector={quote(_NAME_SERVICE)}"):
            return {}, Trial("DNS", SKIPPED, f"kube-system has no service with the label {_NAME_SERVICE}")
        api = self.made.get(f"{NAMESPACES}/default/services/kubernetes")
        return {_API: str(api["spec"].get("clusterIP") or "")}, None

    def _watch_log(self) -> Generator[Trial, None, dict[str, int]]:
        """Yield the findings in the trying pod's log; when that pod asks for the policy, create it. Returns how many
        packets with tokens came there and back, by address.
        """
        seen, forbidden = 0, False
        self.made.await_pod(objects.CLIENT, _has_run)
        while True:
            progress = Progress(self.made.log(objects.CLIENT))
            yield from progress.findings[seen:]
            seen = len(progress.findings)
            if progress.is_done:
                return progress.exchanged
            if progress.wants_policy and not forbidden:
                self.made.create(
                    self.made.path("networkpolicies", group="/apis/networking.k8s.io/v1"), objects.policy()
                )
                forbidden = True
            pod = self.made.get(self.made.path("pods", objects.CLIENT))
            if pod["status"].get("phase") in ("Failed", "Succeeded") and progress.others:
                yield Trial("pods", FAILED, f"the pod that tries has ended: {progress.others[-1]}")
                return progress.exchanged
            self.made.pause("follow the pod that tries")

    # -- its end ------------------------------------------------------------------------------------------------------

    def _remove(self) -> None:
        """Remove the namespace, and with it everything of the check; returns when it is gone."""
        deadline = Deadline.after(_REMOVAL_S)
        path = f"{NAMESPACES}/{self.namespace}"
        with undisturbed():
            try:
                self._delete(self.namespace, deadline)
                while self.api.get(path, deadline, f"read namespace {self.namespace}") is not None:
                    time.sleep(min(LOOK_S, deadline.require(f"await the end of namespace {self.namespace}")))
            except CalicoError as e:
                self.note(f"The check's namespace may not be gone yet (kubectl delete namespace {self.namespace}): {e}")

    def _delete(self, name: str, deadline: Deadline) -> None:
        doing = f"delete namespace {name}"
        self.api.send(ApiRequest("DELETE", f"{NAMESPACES}/{name}", doing, expect=(_MISSING, _EXISTS)), deadline)

    def _remove_forgotten(self) -> None:
        """Namespaces of checks that were killed."""
        for found in self.made.list_items(f"{NAMESPACES}?labelSelector={quote(objects.LABEL)}"):
            metadata = found["metadata"]
            made = parse_rfc3339(metadata["creationTimestamp"])
            if made is not None and time.time() - made > objects.LONGEST_S:
                self._delete(metadata["name"], self.deadline)


# -- computed from what was read --------------------------------------------------------------------------------------


def choose_places(
    nodes: list[Mapping[str, Any]], agents: list[Mapping[str, Any]], wanted: list[str], image: str = ""
) -> list[PodPlace]:
    """One or two nodes that are ready, with ``image`` or the one that their calico-node runs. Raises CommandFailed."""
    unready = find_unready(nodes, agents)
    images = {pod["spec"].get("nodeName"): _image_of(pod) for pod in agents}
    if image:
        images = dict.fromkeys(unready, image)
    for name in wanted:
        if name not in unready:
            raise CommandFailed(f"cannot check the network: there is no node {name}")
    ready = [name for name in wanted or unready if not unready[name] and images.get(name)]
    if not ready or (wanted and len(ready) < len(wanted)):
        why = "; ".join(f"{name}: {_why_unfit(unready[name], images.get(name))}" for name in wanted or unready)
        raise CommandFailed(f"the network does not work: no node can take a pod: {why}")
    return [PodPlace(name, images[name]) for name in ready[:2]]


def _why_unfit(unready: str, image: str | None) -> str:
    return unready or ("ready" if image else "no calico-node pod")


def _image_of(agent: Mapping[str, Any]) -> str:
    containers = agent["spec"].get("containers") or ()
    return next((str(c.get("image")) for c in containers if c.get("name") == "calico-node"), "")


def _is_ready(pod: Mapping[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _has_run(pod: Mapping[str, Any]) -> bool:
    return pod["status"].get("phase") in ("Running", "Succeeded")
