"""PURE: what keeps the records of connections, as those see it who decide what is in them.

Rule: a record is known by its number; one that is gone may be asked for and changed, and stays gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cni_calico.flows.records import FlowRecord

RecordRow = tuple[Any, ...]
"""What a FlowRecord has, in its order, and maybe more after that."""


class FlowStore(Protocol):
    """Where records are; ``next`` is the number of the next one. ``read`` returns None for one that is gone.
    ``append_all``: some that have just begun; ``alike``: how often the same one is among them but for the source port.
    ``rows``: many at once, by number, without those that are gone. ``end_all``: number, as it was, and as it is.
    """

    @property
    def next(self) -> int: ...

    def append(self, record: FlowRecord) -> int: ...

    def append_all(self, records: Sequence[FlowRecord], alike: Sequence[tuple[FlowRecord, int]]) -> int: ...

    def update(self, number: int, record: FlowRecord) -> None: ...

    def read(self, number: int) -> FlowRecord | None: ...

    def rows(self, numbers: Sequence[int]) -> dict[int, RecordRow]: ...

    def end_all(self, ended: Sequence[tuple[int, RecordRow, FlowRecord]]) -> None: ...
