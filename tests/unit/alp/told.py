"""A checker that has been told a state by the engine's own messages: documents, the graph, policy sync."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.alp.synced import SyncedPolicies
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.sync.known import KnownPolicies
from cni_calico.nodeagent.sync.subscription import Subscription
from cni_calico.policy.wanted import Wanted
from tests.unit.policy.cluster import graph_of

Documents = Mapping[tuple[str, str, str], Any]


def wanted_of(documents: Documents) -> Wanted:
    graph = graph_of(documents)
    graph.flush()
    wanted: Wanted = graph.wanted()
    return wanted


def messages_for(wanted: Wanted, key: ResourceKey, documents: Documents) -> list[bytes]:
    """What the reader of an endpoint is told of a state."""
    known, accounts = KnownPolicies(), ClusterAccounts()
    for (kind, _, name), document in documents.items():
        if kind == "Profile":
            accounts.put(name, document["spec"].get("labelsToApply") or {})
    accounts.complete = True
    known.become(wanted)
    endpoint = wanted.endpoints[key]
    return Subscription((endpoint.orchestrator, endpoint.workload, endpoint.endpoint), known, accounts).due()


def told(wanted: Wanted, key: ResourceKey, documents: Documents) -> SyncedPolicies:
    found = SyncedPolicies()
    for message in messages_for(wanted, key, documents):
        found.receive(message)
    return found
