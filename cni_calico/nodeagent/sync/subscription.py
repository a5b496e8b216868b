"""What one workload's reader has been told, and what it has to be told now.

Rule: a message names only what has come before it and has not been removed. What has been handed out counts as told, so
a reader that lags gets one change for several, and nothing waits for it.
"""

from __future__ import annotations

from cni_calico.nodeagent.sync.accounts import ClusterAccounts
from cni_calico.nodeagent.sync.known import EndpointName, KnownPolicies, KnownPolicy
from cni_calico.nodeagent.sync.messages import (
    PROFILE,
    encode_endpoint,
    encode_endpoint_removal,
    encode_in_sync,
    encode_policy_removal,
    encode_set_removal,
)
from cni_calico.policy.wanted import PolicyId, WantedEndpoint

_IN_SYNC = encode_in_sync()


class Subscription:
    """``ended``: the endpoint is gone, and its reader has been told so."""

    def __init__(self, name: EndpointName, known: KnownPolicies, accounts: ClusterAccounts) -> None:
        self.name, self.ended = name, False
        self._known, self._accounts = known, accounts
        self._endpoint: WantedEndpoint | None = None
        self._told = b""  # of the endpoint
        self._policies: dict[PolicyId, KnownPolicy] = {}
        self._sets: dict[str, int] = {}
        self._accounts_version = 0
        self._in_sync = False

    def due(self) -> list[bytes]:
        """Nothing before there is such an endpoint. Raises TooFarBehind."""
        if self.ended or not self._known.ready:
            return []
        found = self._known.endpoint(self.name)
        if found is None:
            self.ended = self._endpoint is not None
            return [] if self._endpoint is None else [encode_endpoint_removal(self._endpoint)]
        self._endpoint, its = found
        policies, sets = self._known.needs(its)
        changed = [(name, one) for name, one in policies.items() if self._policies.get(name) is not one]
        changed.sort(key=lambda one: one[0].kind == PROFILE)
        messages: list[bytes] = []
        for set_id in sorted(sets):
            known = self._known.sets[set_id]
            messages += known.since(self._sets.get(set_id))
            self._sets[set_id] = known.version
        messages += (one.message() for _, one in changed)
        told = encode_endpoint(self._endpoint, its)
        if told != self._told:
            messages.append(told)
            self._told = told
        gone = sorted(self._policies.keys() - policies, key=lambda name: (name.kind != PROFILE, str(name)))
        messages += map(encode_policy_removal, gone)
        self._policies = policies
        for set_id in sorted(self._sets.keys() - sets):
            messages.append(encode_set_removal(set_id))
            del self._sets[set_id]
        messages += self._accounts.since(self._accounts_version)
        self._accounts_version = self._accounts.version
        if not self._in_sync and self._accounts.complete:
            self._in_sync = True
            messages.append(_IN_SYNC)
        return messages
