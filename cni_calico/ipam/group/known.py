"""Blocks and handles as this process's last commits left them, and a view that answers from them.

Rule: what is remembered may be wrong; every commit is compared with the stored records, and a conflict returns those.
The absence of a record is never remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from cni_calico.datastore.interface import Datastore
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.ipam.batch import Step
from cni_calico.ipam.ledger import Ledger
from cni_calico.ipam.pools import NodeFacts
from cni_calico.ipam.view import DirectView, Facts, Stored
from cni_calico.model.keys import BlockKey, HandleKey, Key
from cni_calico.model.resources import Affinity, Block, Handle, IPPool, Network


class ClusterFacts(Protocol):
    """What the server's caches know without any request."""

    def facts(self, node: str) -> Facts | None:
        """None before the caches are filled, while they cannot be kept current, and for a node that they do
        not follow.
        """

    def affinities(self, node: str, family: int) -> Mapping[Network, Affinity]: ...


class KnownRecords:
    """Safe with threads: each operation is a single dictionary operation."""

    def __init__(self) -> None:
        self.blocks: dict[Network, Stored] = {}
        self.handles: dict[str, Stored] = {}

    def learn(self, found: Mapping[Key, Stored | None]) -> None:
        """Take over what a ledger knows at its end."""
        for key, record in found.items():
            if record is None:
                self.forget((key,))
            elif isinstance(key, BlockKey) and isinstance(record.record, Block):
                self.blocks[key.cidr] = record
            elif isinstance(key, HandleKey) and isinstance(record.record, Handle):
                self.handles[key.handle_id] = record

    def forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            if isinstance(key, BlockKey):
                self.blocks.pop(key.cidr, None)
            elif isinstance(key, HandleKey):
                self.handles.pop(key.handle_id, None)


class KnownView(DirectView):
    """The store, except for blocks that are remembered and what the caches have."""

    def __init__(self, store: Datastore, known: KnownRecords, snapshot: ClusterFacts) -> None:
        super().__init__(store)
        self._known = known
        self._snapshot = snapshot

    def pools(self, deadline: Deadline) -> Sequence[IPPool]:
        facts = self._snapshot.facts("")
        return facts.pools if facts is not None else super().pools(deadline)

    def node(self, name: str, deadline: Deadline) -> NodeFacts:
        facts = self._snapshot.facts(name)
        return facts.node if facts is not None else super().node(name, deadline)

    def blocks(self, cidrs: Sequence[Network], deadline: Deadline) -> Sequence[Stored | CorruptRecord | None]:
        known = {cidr: self._known.blocks.get(cidr) for cidr in cidrs}
        missing = [cidr for cidr, found in known.items() if found is None]
        found = dict(zip(missing, super().blocks(missing, deadline), strict=True)) if missing else {}
        return [known[cidr] or found[cidr] for cidr in cidrs]


class LearningLedger(Ledger):
    """The ledger of a request that is carried out alone: what it writes is remembered."""

    def __init__(self, memory: KnownRecords, *parts: Any) -> None:
        super().__init__(*parts)
        self._memory = memory

    def apply(self, steps: Sequence[Step]) -> bool:
        keys = [step.key for step in steps]
        self._memory.forget(keys)
        applied = super().apply(steps)
        if applied:
            self._memory.learn({key: self._known[key] for key in keys})
        return applied
