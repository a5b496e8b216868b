"""What the policy engine needs of a packet filter, whichever it is.

Rule: there are two, nf_tables/ and legacy/; nothing here says which, or how either writes rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.netfilter.rules import Immediate, NftRule
from cni_calico.netfilter.tables import NftChain, NftSet, NftTable, Operation, TableId

# an element: of a map, with its verdict; of an interval set, the key of one end, and whether it is the end
Atom = bytes | tuple[bytes, Immediate] | tuple[bytes, bool]


class TableReader(Protocol):
    """Each method lists one kind of thing, until exhausted or ``reset``. All raise KernelError, DeadlineExceeded."""

    def sets(self, table: TableId, deadline: Deadline) -> Iterator[list[NftSet]]: ...

    def chains(self, table: TableId, deadline: Deadline) -> Iterator[list[NftChain]]:
        """List chains without their rules."""

    def rules(self, table: TableId, chain: str, deadline: Deadline) -> Iterator[list[NftRule]]: ...

    def elements(self, table: TableId, spec: NftSet, deadline: Deadline) -> Iterator[list[Atom]]: ...

    def reset(self) -> None:
        """Abandon a list that was not read to its end."""


class PacketFilter(Protocol):
    """What the policy engine needs from a kernel; the tests' fake is another implementation.

    ``at_once``: a packet sees all of a transaction's changes or none. In nf_tables it may have begun before them.
    """

    at_once: bool

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """Apply all operations or none. Raises RulesRefused (``index``: the operation), RulesUnknown,
        DeadlineExceeded.
        """

    def check(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        """Whether ``apply`` would be accepted; nothing is changed. Raises the same errors."""

    def read_table(self, table: TableId, deadline: Deadline, like: NftTable | None = None) -> NftTable | None:
        """The table with everything in it, None if there is none. Raises KernelError (EFBIG: there is
        much more in it than in ``like``, or reading it takes too long), DeadlineExceeded.

        ``like``: what is probably there, also for a packet filter whose rules can only be recognised.
        """

    def generation(self, deadline: Deadline) -> int:
        """A number that grows with every transaction by anybody. Raises KernelError."""

    @property
    def reader(self) -> TableReader | None:
        """A reader of the same tables, piece by piece; None: they are always read as a whole."""

    def forget_cached(self) -> None:
        """Free what a large load left in caches."""
