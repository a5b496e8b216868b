"""PURE: what a client of a relay can follow.

Rule: the blocks of one owner are a topic of their own, because only that owner needs their full contents; so are the
blocks with the pods that have their addresses, because that part changes with every pod.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from cni_calico.datastore.kubernetes.relayed.served import HOLDERS_QUERY, affinity_query


class Topic(NamedTuple):
    """A collection, or the blocks of one ``owner``, or all blocks with their ``holders``."""

    path: str
    owner: str = ""
    holders: bool = False

    @property
    def name(self) -> str:
        if self.holders:
            return f"{self.path}?{HOLDERS_QUERY}"
        return f"{self.path}?{affinity_query(self.owner)}" if self.owner else self.path


@dataclass(frozen=True, slots=True)
class Interest:
    """What a client follows. ``floors``: topics in which the client is ahead of this relay, and how far it has seen.

    ``own``: a topic that few others follow; None if there is none. ``several``: each event begins with its
    topic's name.
    """

    shared: frozenset[Topic]
    own: Topic | None = None
    several: bool = False
    floors: tuple[tuple[Topic, int], ...] = ()

    @property
    def topics(self) -> frozenset[Topic]:
        return self.shared | {self.own} if self.own is not None else self.shared
