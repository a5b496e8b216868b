"""Counts Kubernetes' own policies: if they are not enforced here, that has to be reported.

Rule: one number per minute, from requests that return one policy and the number of the remaining ones; the policies
themselves are not needed here and not kept. The cluster-wide kinds are an API that a cluster may lack: the server says
which it has. A count that fails is reported once and keeps its last number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cni_calico.daemon.keeper import Keeper
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.attempt import ApiRequest
from cni_calico.datastore.kubernetes.objects import count_objects
from cni_calico.deadline import Deadline
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import ApiNode

POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
CLUSTER_WIDE = "/apis/policy.networking.k8s.io"
UNREAD_KINDS = frozenset(("adminnetworkpolicies", "baselineadminnetworkpolicies"))  # as in upstream
CLUSTER_WIDE_KINDS = UNREAD_KINDS | {"clusternetworkpolicies"}
INTERVAL_S = 60.0
_REQUEST_S = 20.0


def start_counting(context: Context, tell: Callable[[int, int], None], stopping: threading.Event) -> None:
    """Count in a separate thread, until ``stopping``; does nothing without Kubernetes.

    ``tell`` is given the number of all policies, and how many of them are of UNREAD_KINDS.
    """
    node = context.kubernetes
    if not isinstance(node, ApiNode):
        return
    count = PolicyCount(node.api)

    def look() -> None:
        try:
            count.refresh(Deadline.after(_REQUEST_S))
        finally:
            if count.known:
                tell(count.total, count.unread)

    keeper = Keeper("policies", look, INTERVAL_S, context.log, context.troubles)
    threading.Thread(target=keeper.run, args=(stopping,), name="policies", daemon=True).start()


@dataclass(slots=True)
class PolicyCount:
    """``known``: something has been counted; ``unread``: those of UNREAD_KINDS. For one thread."""

    api: KubernetesAPI
    known: bool = False
    namespaced: int = 0
    cluster_wide: int = 0
    unread: int = 0

    @property
    def total(self) -> int:
        return self.namespaced + self.cluster_wide

    def refresh(self, deadline: Deadline) -> None:
        """Raises DatastoreError, DeadlineExceeded."""
        self.namespaced = count_objects(self.api, POLICIES, deadline, "count the network policies")
        self.known = True
        doing = "count the cluster-wide network policies"
        counts = {path: count_objects(self.api, path, deadline, doing) for path in _served(self.api, deadline, doing)}
        self.cluster_wide = sum(counts.values())
        self.unread = sum(count for path, count in counts.items() if path.rpartition("/")[2] in UNREAD_KINDS)


def render_unread(count: int) -> tuple[str, ...]:
    """The warning for this number of policies of UNREAD_KINDS."""
    if not count:
        return ()
    return (
        f"{count} AdminNetworkPolicies or BaselineAdminNetworkPolicies (v1alpha1) exist and are NOT ENFORCED, as by "
        "upstream's v3.32: write them as ClusterNetworkPolicies (v1alpha2)",
    )


def _served(api: KubernetesAPI, deadline: Deadline, doing: str) -> Iterator[str]:
    """The collections of cluster-wide policies, each in one of the versions in which it is served."""
    group = api.send(ApiRequest("GET", CLUSTER_WIDE, doing, expect=(404,)), deadline)
    if group.status == 404:
        return
    left = set(CLUSTER_WIDE_KINDS)
    for version in group.document.get("versions") or ():
        path = f"/apis/{version['groupVersion']}"
        listed = api.send(ApiRequest("GET", path, doing, expect=(404,)), deadline)
        for name in sorted(left & {resource.get("name") for resource in listed.document.get("resources") or ()}):
            left.discard(name)
            yield f"{path}/{name}"
