"""How many NetworkPolicies of Kubernetes' own there are: nobody enforces them here either, and that has to be said.

Rule: a number once a minute, from one request that brings one policy and how many more there are; they themselves are
of no use here and are not kept. A count that fails says so once and leaves the last number.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from cni_calico.datastore.kubernetes_objects import count_objects
from cni_calico.deadline import Deadline
from cni_calico.nodeagent.context import Context
from cni_calico.nodeagent.keepers import Keeper
from cni_calico.nodeagent.kubernetes_node import ApiNode

POLICIES = "/apis/networking.k8s.io/v1/networkpolicies"
INTERVAL_S = 60.0
_REQUEST_S = 20.0


def start_counting(context: Context, tell: Callable[[int], None], stopping: threading.Event) -> None:
    """In a thread of its own, until ``stopping``; nothing where there is no Kubernetes."""
    node = context.kubernetes
    if not isinstance(node, ApiNode):
        return
    api = node.api

    def count() -> None:
        tell(count_objects(api, POLICIES, Deadline.after(_REQUEST_S), "count the network policies"))

    keeper = Keeper("policies", context, count, INTERVAL_S)
    threading.Thread(target=keeper.run, args=(stopping,), name="policies", daemon=True).start()
