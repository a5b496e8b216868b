"""PURE: what the feed hands over about a record: the record, that it is gone, that it cannot be read, or what is to be
read when it is its turn.

Rule: nothing here stands for "removed" but None.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.datastore.interface import Versioned
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.standins import decode_stand_in
from cni_calico.policy.nodes import GraphRecord
from cni_calico.policy.records import PolicyRecord


@dataclass(frozen=True, slots=True)
class Refusal:
    """A record exists but cannot be read. ``first``: the version known before, if it has not been taken yet."""

    why: str
    first: tuple[GraphRecord | PutAside | Undecoded | Unread | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Undecoded:
    """A large document, which ``RecordFeed.decoded`` reads when it is its turn. ``needs``: bytes, estimated."""

    item: Versioned
    weight: int
    needs: int


@dataclass(frozen=True, slots=True)
class PutAside:
    """The text of a large document that has just come, and has not been read: ``RecordFeed.read`` does when it is its
    turn. ``item``: its value is an UnreadDocument.
    """

    item: Versioned
    weight: int


@dataclass(frozen=True, slots=True)
class Unread:
    """A policy, or a namespace's network set, whose document was dropped because memory is short;
    ``RecordFeed.read_again`` brings it. ``stand_in``: a policy's.
    """

    needs: int
    stand_in: PolicyRecord | Refusal | None


FedRecord = GraphRecord | Refusal | None  # None: removed
FedChange = FedRecord | PutAside | Undecoded | Unread


def read_stand_in(key: ResourceKey, document: Mapping[str, Any]) -> PolicyRecord | Refusal | None:
    """What stands for a policy that waits for memory and has never been in force."""
    try:
        return decode_stand_in(key, document)
    except Exception as e:  # as with any other record
        return Refusal(str(e))


def joined(before: FedChange, after: FedChange) -> FedChange:
    """What stands for two changes of one record, in this order."""
    if not isinstance(after, Refusal) or after.first:
        return after
    return replace(after, first=before.first if isinstance(before, Refusal) else (before,))
