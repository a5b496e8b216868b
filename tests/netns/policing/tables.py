"""What the kernel holds, as the values that it is expected to be."""

from __future__ import annotations

from collections.abc import Mapping

from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.netfilter.tables import NftTable, TableId
from cni_calico.nodeagent.policing.tables.touched import TABLES
from tests.deadlines import soon


def read_all(kernel: NfTables, expected: Mapping[TableId, NftTable]) -> dict[TableId, NftTable]:
    """Our tables; a chain that is not as expected holds rules that equal none of ours."""
    found = {}
    for table in TABLES:
        likes = (expected[table],) if table in expected else ()
        there = kernel.read_table(table, soon(), likes)
        if there is not None:
            found[table] = there
    return found
