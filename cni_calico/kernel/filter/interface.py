"""What the policy engine needs of a packet filter, whichever it is.

Rule: there are two, nf_tables/ and legacy/; nothing here says which, or how either writes rules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Protocol

from cni_calico.deadline import Deadline
from cni_calico.netfilter.rules import PacketVerdict
from cni_calico.netfilter.tables import NftChain, NftSet, NftTable, Operation, TableId

# an element: of a map, with its verdict; of an interval set, the key of one end, and whether it is the end
Atom = bytes | tuple[bytes, PacketVerdict] | tuple[bytes, bool]


class TableReader(Protocol):
    """Each method lists one kind of thing, until exhausted or ``reset``. All raise KernelError, DeadlineExceeded."""

    def sets(self, table: TableId, deadline: Deadline) -> Iterator[list[NftSet]]: ...

    def chains(self, table: TableId, deadline: Deadline) -> Iterator[list[NftChain]]:
        """List chains without their rules."""

    def compare_rules(self, table: TableId, chain: NftChain, deadline: Deadline) -> Iterator[bool]:
        """Whether the kernel's chain has these rules, as far as it has been read: an answer for each piece of it, of
        which the last one counts.
        """

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

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        """The table with everything in it, None if there is none. Raises KernelError (EFBIG: there is
        much more in it than in ``likes``, or reading it takes too long), DeadlineExceeded.

        ``likes``: what may be there: rules can only be recognised. A chain that is as none of them has it holds rules
        that equal none of ours.
        """

    def count_unrecognised(self, table: TableId, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        """How many rules each of these chains has in the kernel where ``read_table`` had one chain for all that it did
        not recognise; without those that it does return. Raises KernelError, DeadlineExceeded.
        """

    def recognises(self, table: TableId, there: NftChain, wanted: NftChain) -> bool:
        """Whether a chain that ``read_table`` did not recognise has exactly the rules of ``wanted``, as far as known:
        nothing is read.
        """

    def generation(self, deadline: Deadline) -> int:
        """A number that grows with every transaction by anybody. Raises KernelError."""

    @property
    def reader(self) -> TableReader | None:
        """A reader of the same tables, piece by piece; None: they are always read as a whole."""

    def forget_cached(self) -> None:
        """Free what a large load left in caches."""
