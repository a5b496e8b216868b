"""The names of the chains in the kernel, which is much less than their rules.

Rule: a table that is not there has none.
"""

from __future__ import annotations

from collections.abc import Collection, Generator
from contextlib import closing
from errno import ENOENT

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.filter.interface import TableReader
from cni_calico.netfilter.tables import TableId


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
