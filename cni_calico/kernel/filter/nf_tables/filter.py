"""nf_tables without the nft program: operations in one transaction, a table read back as values.

Rule: everything is addressed by name, never by handle, so a change needs no reading first. What ``nft list ruleset``
needs is in the user data of our objects; that of others' is never looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from errno import EAFNOSUPPORT, EINVAL, ENOENT, EOPNOTSUPP, EPROTONOSUPPORT

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.interface import TableReader
from cni_calico.kernel.filter.nf_tables.attributes import number_of
from cni_calico.kernel.filter.nf_tables.messages import encode_operations
from cni_calico.kernel.filter.nf_tables.objects import GENERATION, GETGEN
from cni_calico.kernel.filter.nf_tables.printer import forget_cached, is_printed_as
from cni_calico.kernel.filter.nf_tables.reader import PieceReader
from cni_calico.kernel.filter.nf_tables.table_reading import ask_for, read_bounded
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES, Nfnetlink, general
from cni_calico.netfilter.tables import NftChain, NftTable, Operation, TableId

_ABSENT = (EINVAL, EOPNOTSUPP, EPROTONOSUPPORT, EAFNOSUPPORT, ENOENT)  # how a kernel says that it has no nf_tables


class NfTables:
    """The kernel's packet filter, in the network namespace of the thread that created this object."""

    at_once = False

    def __init__(self) -> None:
        self._netlink = Nfnetlink()
        self._reader = PieceReader()

    @property
    def reader(self) -> TableReader:
        return self._reader

    def forget_cached(self) -> None:
        forget_cached()

    @property
    def port(self) -> int:
        """The socket's port, which notifications give as the cause of a change."""
        return self._netlink.port

    def close(self) -> None:
        self._netlink.close()
        self._reader.close()

    def __enter__(self) -> NfTables:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def apply(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        self._netlink.transact(encode_operations(operations), "change the packet filter's rules", deadline)

    def check(self, operations: Sequence[Operation], deadline: Deadline) -> None:
        messages = encode_operations(operations)
        self._netlink.transact(messages, "check the packet filter's rules", deadline, commit=False)

    def generation(self, deadline: Deadline) -> int:
        replies = self._netlink.request(GETGEN, 0, general(""), "read the packet filter's generation", deadline)
        for reply in replies:
            return number_of(wire.attributes(reply, GENERAL_BYTES).get(GENERATION))
        raise KernelError("cannot read the packet filter's generation: the kernel's answer does not contain it")

    def has_table(self, table: TableId, deadline: Deadline) -> bool:
        """Raises KernelError."""
        return bool(ask_for(self._netlink, table, f"look for the packet filter's table {table}", deadline))

    def read_table(self, table: TableId, deadline: Deadline, likes: Sequence[NftTable] = ()) -> NftTable | None:
        return read_bounded(table, deadline, likes)

    def count_unrecognised(self, table: TableId, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        """``read_table`` returns every chain."""
        return {}

    def recognises(self, table: TableId, there: NftChain, wanted: NftChain) -> bool:
        return is_printed_as(there.rules, wanted.rules, table.family)


def why_no_nf_tables(wanted: Sequence[Operation], deadline: Deadline) -> str:
    """Why this kernel cannot have that, "" if it can; nothing is changed. Raises CalicoError if that is unknown: a
    failure that passes must not change the packet filter.
    """
    try:
        with NfTables() as kernel:
            # a kernel built without the tables of a family would still answer a question
            kernel.check(wanted, deadline)
    except KernelError as e:
        if e.errno not in _ABSENT:
            raise  # it may be there
        return f"this kernel has no nf_tables ({e})"
    return ""
