"""The cluster's namespaces and service accounts with their labels, as messages that each reader gets once.

Rule: a reader only says up to where it has read. Of what is gone the last of many are kept for those who lag; whoever
lags more has to begin again.
"""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.nodeagent.sync.messages import encode_account, encode_namespace
from cni_calico.policy.sources import ACCOUNT_PREFIX, NAMESPACE_PREFIX

NAMESPACE_PROFILE, ACCOUNT_PROFILE = "kns.", "ksa."
_MOST_GONE = 10_000


class TooFarBehind(Exception):
    """What a reader lacks is not kept any more."""


class ClusterAccounts:
    """``version``: up to here everything is in ``since``; ``complete``: the listing has been read."""

    def __init__(self, most_gone: int = _MOST_GONE) -> None:
        self.version = 0
        self.complete = False
        self._most_gone = most_gone
        self._messages: dict[str, tuple[int, bytes]] = {}  # by profile, the last changed one last
        self._gone: dict[str, tuple[int, bytes]] = {}
        self._forgotten = 0  # what was gone then is not kept

    def put(self, profile: str, labels: Mapping[str, str] | None) -> None:
        """``labels`` are the profile's labelsToApply; None: it is gone. Other profiles are ignored."""
        message = _encode(profile, labels)
        if message is None or (labels is None and profile not in self._messages):
            return
        if labels is not None and (known := self._messages.get(profile)) is not None and known[1] == message:
            return
        self.version += 1
        self._messages.pop(profile, None)
        self._gone.pop(profile, None)
        (self._messages if labels is not None else self._gone)[profile] = self.version, message
        if len(self._gone) > self._most_gone:
            oldest = next(iter(self._gone))
            self._forgotten = self._gone.pop(oldest)[0]

    def since(self, version: int) -> list[bytes]:
        """What a reader that is there has to be told, removals first; 0: it knows nothing. Raises TooFarBehind."""
        if version == 0:
            return [message for _, message in self._messages.values()]
        if version < self._forgotten:
            raise TooFarBehind
        found: list[bytes] = []
        for messages in (self._messages, self._gone):
            for changed, message in reversed(messages.values()):
                if changed <= version:
                    break
                found.append(message)
        return found[::-1]


def _encode(profile: str, labels: Mapping[str, str] | None) -> bytes | None:
    kind, name = profile[:4], profile[4:]
    if kind == NAMESPACE_PROFILE:
        return encode_namespace(name, _without(NAMESPACE_PREFIX, labels))
    namespace, dot, account = name.partition(".")
    if kind != ACCOUNT_PROFILE or not dot:
        return None
    return encode_account(namespace, account, _without(ACCOUNT_PREFIX, labels))


def _without(prefix: str, labels: Mapping[str, str] | None) -> dict[str, str] | None:
    """An object's own labels are those of its profile that have the prefix."""
    if labels is None:
        return None
    return {key.removeprefix(prefix): value for key, value in labels.items() if key.startswith(prefix)}
