"""How many policies of Kubernetes' own there are: nobody enforces them here either, and that has to be said.

Rule: a number once a minute, from requests that bring one policy and how many more there are; they themselves are of no
use here and are not kept. The cluster-wide kinds are an API that a cluster may have or not: the server says which. A
count that fails says so once and leaves the last number of what it counts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from cni_calico.daemon.keeper import Keeper
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.datastore.kubernetes.objects import count_objects
from cni_calico.deadline import Deadline
from cni_calico.nodeagent.context.context import Context
from cni_calico.nodeagent.context.kubernetes import ApiNode

POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
CLUSTER_WIDE = "/apis/policy.networking.k8s.io"
CLUSTER_WIDE_KINDS = frozenset(("adminnetworkpolicies", "baselineadminnetworkpolicies", "clusternetworkpolicies"))
INTERVAL_S = 60.0
_REQUEST_S = 20.0


def start_counting(context: Context, tell: Callable[[int], None], stopping: threading.Event) -> None:
    """In a thread of its own, until ``stopping``; nothing where there is no Kubernetes."""
    node = context.kubernetes
    if not isinstance(node, ApiNode):
        return
    count = PolicyCount(node.api)

    def look() -> None:
        try:
            count.refresh(Deadline.after(_REQUEST_S))
        finally:
            if count.known:
                tell(count.total)

    keeper = Keeper("policies", look, INTERVAL_S, context.log, context.troubles)
    threading.Thread(target=keeper.run, args=(stopping,), name="policies", daemon=True).start()


@dataclass(slots=True)
class PolicyCount:
    """``known``: something has been counted. One thread uses it."""

    api: KubernetesAPI
    known: bool = False
    namespaced: int = 0
    cluster_wide: int = 0

    @property
    def total(self) -> int:
        return self.namespaced + self.cluster_wide

    def refresh(self, deadline: Deadline) -> None:
        """Raises DatastoreError, DeadlineExceeded."""
        self.namespaced = count_objects(self.api, POLICIES, deadline, "count the network policies")
        self.known = True
        doing = "count the cluster-wide network policies"
        self.cluster_wide = sum(
            count_objects(self.api, path, deadline, doing) for path in _served(self.api, deadline, doing)
        )


def _served(api: KubernetesAPI, deadline: Deadline, doing: str) -> Iterator[str]:
    """The collections of cluster-wide policies, each in one of the versions it is served in."""
    group = api.request("GET", CLUSTER_WIDE, deadline, doing, expect=(404,))
    if group.status == 404:
        return
    left = set(CLUSTER_WIDE_KINDS)
    for version in group.document.get("versions") or ():
        path = f"/apis/{version['groupVersion']}"
        listed = api.request("GET", path, deadline, doing, expect=(404,))
        for name in sorted(left & {resource.get("name") for resource in listed.document.get("resources") or ()}):
            left.discard(name)
            yield f"{path}/{name}"
