"""The names of the chains in the kernel, which is much less than their rules; and how many rules some of them have.

Rule: a table that is not there has none.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Mapping
from contextlib import closing
from errno import ENOENT

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.interface import PacketFilter, TableReader
from cni_calico.netfilter.tables import NftTable, TableId
from cni_calico.nodeagent.policing.tables.parts import count_rules_of


def read_chain_names(reader: TableReader, table: TableId, deadline: Deadline) -> Generator[str, None, None]:
    """Close it if it is not read to the end. Raises KernelError, DeadlineExceeded."""
    try:
        for part in reader.chains(table, deadline):
            yield from (chain.name for chain in part)
    except KernelError as e:
        if e.errno != ENOENT:
            raise
    finally:
        reader.reset()


def has_other_names(reader: TableReader, table: TableId, names: Collection[str], deadline: Deadline) -> bool:
    """Whether there are chains besides these. Raises KernelError, DeadlineExceeded."""
    with closing(read_chain_names(reader, table, deadline)) as there:
        return any(name not in names for name in there)


def count_rules_in(
    kernel: PacketFilter, held: NftTable, chains: Collection[str], deadline: Deadline
) -> Mapping[str, int]:
    """Of these chains, as they were found (``held``). Raises KernelError, DeadlineExceeded."""
    if not chains:
        return {}
    known = {name: count_rules_of(held, name) for name in chains if name in held.chains}
    return {**kernel.count_unrecognised(TableId(held.family, held.name), chains, deadline), **known}
