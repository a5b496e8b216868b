"""PURE: what upstream's agent enforces on this node and our agent would not.

Rule: while there is any of it, what upstream's agent left stays, unless FELIX_TAKEOVERWITHOUTPOLICIES is set: its rules
continue to deny, so that an update opens nothing.

With PolicyEnforcement Disabled these are all policies, and each HostEndpoint of this node that a policy selects or that
has no profile that allows everything (upstream denies there what nothing allows). Otherwise there is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.gate import listed
from cni_calico.policy.hosts import HostRecord
from cni_calico.policy.records import Labelled

_OPEN = "projectcalico-default-allow"


class Unenforced:
    """For one node."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._hosts: dict[ResourceKey, Labelled] = {}  # of this node

    def put(self, key: ResourceKey, record: object) -> None:
        """Note a changed record; None: it is gone."""
        if key.kind == "HostEndpoint":
            self._hosts.pop(key, None)
            if isinstance(record, HostRecord) and record.node == self._node:
                self._hosts[key] = record.labelled

    def describe(
        self,
        felix: FelixSettings,
        policies: Collection[ResourceKey],
        select_governing: Callable[[Labelled], Collection[str]],
    ) -> tuple[str, ...]:
        """In words, each beginning with a noun. ``select_governing``: the policies that select a host endpoint."""
        found: list[str] = []
        if felix.policy_enforcement == "Enabled":
            return ()
        if policies:
            names = listed(sorted(named(key) for key in policies))
            found.append(f"{len(policies)} policies ({names}), because FELIX_POLICYENFORCEMENT is Disabled")
        for key, host in sorted(self._hosts.items(), key=lambda item: item[0].name):
            governing = select_governing(host)
            if governing:
                found.append(f"what {listed(sorted(governing))} says about HostEndpoint {key.name}")
            elif _OPEN not in host.profiles:
                found.append(f"HostEndpoint {key.name}, which denies what no policy or profile allows")
        return tuple(found)


def named(key: ResourceKey) -> str:
    return f"{key.kind} {key.namespace}/{key.name}" if key.namespace else f"{key.kind} {key.name}"
