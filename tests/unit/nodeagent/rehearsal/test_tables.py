"""A rehearsed packet filter holds what the real one would hold, and the real one stays as it is."""

from __future__ import annotations

import copy

from cni_calico.deadline import Deadline
from cni_calico.netfilter.rules import ACCEPT, DROP, NftRule
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    DropChain,
    DropElements,
    DropTable,
    FlushChain,
    NftSet,
    Operation,
    TableId,
)
from cni_calico.nodeagent.rehearsal.tables import RehearsedFilter
from tests.fakes.nftables import FakePacketFilter

T, OTHER, NEW = TableId("ip", "t"), TableId("ip", "other"), TableId("ip6", "t")
SET = NftSet("s", ("ipv4_addr",))
FIRST: list[Operation] = [
    *(AddTable(T), AddTable(OTHER), AddSet(T, SET), AddElements(T, SET, frozenset((b"\1\0\0\0", b"\2\0\0\0")))),
    *(AddChain(T, "a"), AddRules(T, "a", (NftRule((), (ACCEPT,)),)), AddChain(T, "b"), AddChain(T, "c")),
]
SECOND: list[Operation] = [
    *(AddTable(NEW), AddChain(NEW, "x"), AddRules(NEW, "x", (NftRule((), (DROP,)),)), DropTable(OTHER)),
    *(FlushChain(T, "a"), AddRules(T, "a", (NftRule((), (DROP,)),)), DropChain(T, "b"), AddChain(T, "d")),
    *(DropElements(T, SET, frozenset((b"\1\0\0\0",))), AddElements(T, SET, frozenset((b"\3\0\0\0", b"\4\0\0\0")))),
]


def test_what_changes_and_what_does_not() -> None:
    deadline = Deadline.after(10)
    kernel = FakePacketFilter()
    kernel.apply(FIRST, deadline)
    as_it_was = copy.deepcopy(kernel.tables)
    rehearsed = RehearsedFilter(kernel)
    for table in (T, OTHER, NEW):
        assert rehearsed.read_table(table, deadline) == as_it_was.get(table)
    assert rehearsed.was_there() and rehearsed.differences() == []
    rehearsed.apply(SECOND, deadline)
    assert (kernel.tables, len(kernel.transactions)) == (as_it_was, 1)
    real = FakePacketFilter()
    real.apply(FIRST, deadline)
    real.apply(SECOND, deadline)
    for table in (T, OTHER, NEW):
        assert rehearsed.read_table(table, deadline) == real.read_table(table, deadline)
    assert rehearsed.differences() == [
        "table ip t: add chain d",
        "table ip t: remove chain b",
        "table ip t: change chain a",
        "table ip t: change set s: 2 members more, 1 fewer",
        "remove table ip other",
        "add table ip6 t: 1 chain, 1 rule, 0 sets",
    ]


def test_what_is_read_is_the_reader_s() -> None:
    """The engine keeps what it has read up to date itself."""
    deadline = Deadline.after(10)
    kernel = FakePacketFilter()
    kernel.apply(FIRST, deadline)
    rehearsed = RehearsedFilter(kernel)
    found = rehearsed.read_table(T, deadline)
    assert found is not None
    found.chains.clear()
    found.elements["s"].clear()
    rehearsed.apply([AddChain(T, "d")], deadline)
    assert rehearsed.differences() == ["table ip t: add chain d"]
    assert not RehearsedFilter(FakePacketFilter()).was_there()
