"""One suite for the packet filter: the real kernel in a namespace of its own, and the fake of the unit tests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from errno import EBUSY, EEXIST, ELOOP, EMLINK, ENOENT, EPERM
from typing import Any

import pytest

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import RulesRefused, RulesUnknown
from cni_calico.kernel.filter.interface import PacketFilter
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    AddressInNet,
    AddressInSet,
    ArpSenderInSet,
    AtInterface,
    ConnectionIs,
    ConnectionLimit,
    CountPacket,
    Dispatch,
    DispatchMark,
    HasMark,
    IcmpType,
    IsArpReply,
    IsProtocol,
    IsTranslated,
    LogPacket,
    NoTrack,
    PacketVerdict,
    PortIn,
    PortInSet,
    RateLimit,
    Reject,
    SetMark,
    SetMarkTo,
    SourceIsElsewhere,
    jump,
)
from cni_calico.netfilter.tables import (
    AddChain,
    AddElements,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    BaseHook,
    DropChain,
    DropElements,
    DropSet,
    DropTable,
    FlushChain,
    NftChain,
    NftSet,
    NftTable,
    Operation,
    TableId,
    Tables,
    mirror,
    word_key,
)
from tests.fakes.nftables import FakePacketFilter
from tests.netns.namespaces import Namespace, namespace
from tests.unit.netfilter.rules import rule

T4, T6, ARP = TableId("ip", "calico-policy"), TableId("ip6", "calico-policy"), TableId("arp", "calico-policy")
ADDRESSES = NftSet("addresses", ("ipv4_addr",))
NETWORKS = NftSet("networks", ("ipv4_addr",), interval=True)
MEMBERS = NftSet("members", ("ipv4_addr", "inet_proto", "inet_service"))
PORTS = NftSet("ports", ("inet_service",))
DISPATCH = NftSet("dispatch", ("ifname",), verdicts=True)
MARKED = NftSet("marked", ("mark",), verdicts=True)
FEW = NftSet("few", ("mark",), verdicts=True, size=16)


def a(text: str) -> bytes:
    return bytes(map(int, text.split(".")))


def net(first: str, last: str) -> bytes:
    return a(first) + a(last)


def name(text: str) -> bytes:
    return text.encode().ljust(16, b"\0")


@dataclass
class Kernel:
    """``run`` calls a function with a PacketFilter, in the kernel's own namespace. ``known``: what was applied."""

    run: Callable[[Callable[[PacketFilter], Any]], Any]
    namespace: Namespace | None = None
    known: Tables = field(default_factory=dict)

    def apply(self, *operations: Operation) -> None:
        self.run(lambda pf: pf.apply(operations, Deadline.after(10)))
        mirror(self.known, operations)

    def read(self, table: TableId = T4) -> NftTable | None:
        likes = tuple(known for known in (self.known.get(table),) if known is not None)
        found: NftTable | None = self.run(lambda pf: pf.read_table(table, Deadline.after(10), likes))
        return found

    def refused(self, *operations: Operation) -> tuple[int, int]:
        """(errno, number of the operation)."""
        with pytest.raises(RulesRefused) as e:
            self.apply(*operations)
        return e.value.errno, e.value.index


def _in_a_child(function: Callable[[PacketFilter], Any]) -> Any:
    with NfTables() as real:
        try:
            return True, function(real)
        except RulesRefused as e:
            return False, (str(e), e.errno, e.index)


@pytest.fixture(params=["fake", pytest.param("kernel", marks=pytest.mark.netns)])
def filter_kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    if request.param == "fake":
        fake = FakePacketFilter()
        yield Kernel(lambda function: function(fake))
        return
    with namespace("nft") as made:

        def run(function: Callable[[PacketFilter], Any]) -> Any:
            ok, value = made.call(_in_a_child, function)
            if not ok:
                raise RulesRefused(value[0], errno=value[1], index=value[2])
            return value

        yield Kernel(run, made)


TCP = IsProtocol(6)
EVERYTHING = (
    rule(ConnectionIs(("established", "related")), ACCEPT),
    rule(ConnectionIs(("invalid", "new", "untracked"), negated=True), ACCEPT),
    rule(IsTranslated(negated=True), CountPacket(), DROP),
    rule(AtInterface(False, "cali", is_prefix=True), DROP, comment="what is said: ünïcödé" * 6),
    rule(AtInterface(True, "eth0"), DROP),
    rule(TCP, PortIn(False, 1, 2, negated=True), DROP),
    rule(TCP, PortIn(True, 1, 2), PortIn(False, 80, 80), DROP),
    rule(TCP, PortInSet(False, "ports"), DROP),
    rule(IsProtocol(1), IcmpType(8, 8, 0, negated=True), DROP),
    rule(IsProtocol(1), IcmpType(3, 5), DROP),
    rule(AddressInNet(True, a("10.64.0.0"), 10), ACCEPT),
    rule(AddressInNet(True, a("10.1.0.0"), 16), AddressInNet(False, a("10.1.0.1"), 32, negated=True), ACCEPT),
    rule(AddressInSet(False, "addresses"), ACCEPT),
    rule(AddressInSet(False, "networks", negated=True), ACCEPT),
    rule(AddressInSet(False, "members", with_port=True), ACCEPT),
    rule(HasMark(0x20000), ACCEPT),
    rule(HasMark(0x20000, negated=True), SetMark(0x10000)),
    rule(SetMark(0x10000, cleared=True)),
    rule(RateLimit(500, 1, 20, over=True), DROP),
    rule(RateLimit(10, 60), LogPacket("x y: "), LogPacket("z", 3)),
    rule(LogPacket("what is said", group=61789), DROP),
    rule(TCP, ConnectionLimit(10), Reject(with_reset=True)),
    rule(Reject()),
    rule(jump("other")),
    rule(Dispatch(False, "dispatch")),
    rule(SetMarkTo(0xDC0000, 0x40000)),
    rule(DispatchMark(0xDC0000, "marked")),
)
BASE: tuple[Operation, ...] = (
    AddTable(T4),
    AddSet(T4, ADDRESSES),
    AddSet(T4, NETWORKS),
    AddSet(T4, MEMBERS),
    AddSet(T4, PORTS),
    AddSet(T4, DISPATCH),
    AddSet(T4, MARKED),
    AddSet(T4, FEW),
    AddElements(T4, ADDRESSES, frozenset((a("10.0.0.1"), a("10.0.0.2")))),
    AddElements(T4, NETWORKS, frozenset((net("10.1.0.0", "10.1.255.255"), net("10.2.0.0", "10.2.0.0")))),
    AddElements(T4, MEMBERS, frozenset((a("10.0.0.1") + b"\x06\0\0\0" + b"\0\x50\0\0",))),
    AddChain(T4, "other"),
    AddChain(T4, "base", BaseHook("forward", 2)),
    AddVerdicts(T4, DISPATCH, {name("cali1"): jump("other"), name("cali2"): DROP}),
    AddVerdicts(T4, MARKED, {word_key(0x40000): jump("other"), word_key(0x80000): DROP}),
    AddVerdicts(T4, FEW, {word_key(8): PacketVerdict("continue"), word_key(1): ACCEPT}),
    AddRules(T4, "base", EVERYTHING),
    AddRules(T4, "other", (rule(DROP),)),
)


def test_what_is_written_is_read_back(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    found = filter_kernel.read()
    assert found is not None
    assert found.chains == {
        "base": NftChain("base", EVERYTHING, BaseHook("forward", 2)),
        "other": NftChain("other", (rule(DROP),)),
    }
    assert found.sets == {spec.name: spec for spec in (ADDRESSES, NETWORKS, MEMBERS, PORTS, DISPATCH, MARKED, FEW)}
    assert found.elements == {
        "addresses": {a("10.0.0.1"), a("10.0.0.2")},
        "networks": {net("10.1.0.0", "10.1.255.255"), net("10.2.0.0", "10.2.0.0")},
        "members": {a("10.0.0.1") + b"\x06\0\0\0" + b"\0\x50\0\0"},
        "ports": set(),
    }
    assert found.verdicts == {
        "dispatch": {name("cali1"): jump("other"), name("cali2"): DROP},
        "marked": {word_key(0x40000): jump("other"), word_key(0x80000): DROP},
        "few": {word_key(8): PacketVerdict("continue"), word_key(1): ACCEPT},
    }


def test_what_is_read_in_pieces_is_the_same(filter_kernel: Kernel) -> None:
    """Of sets and maps the elements, of an interval set its ends; a list that was given up disturbs no other."""
    many = frozenset(bytes((10, 3, number >> 8, number & 255)) for number in range(3000))
    filter_kernel.apply(*BASE, AddElements(T4, ADDRESSES, many))
    found = filter_kernel.read()
    assert found is not None
    sets, chains, rules, elements, pieces = filter_kernel.run(lambda pf: _read_in_pieces(pf, found.chains))
    assert sets == found.sets
    assert chains == {name: chain.hook for name, chain in found.chains.items()}
    assert rules == {"base": (True, False, False, False), "other": (True, False, False, False)}
    assert elements["addresses"] == found.elements["addresses"] and pieces > 1
    assert elements["members"] == found.elements["members"]
    assert elements["dispatch"] == set(found.verdicts["dispatch"].items())
    ends = [("10.1.0.0", False), ("10.2.0.0", True), ("10.2.0.0", False), ("10.2.0.1", True)]
    assert elements["networks"] == {(a(text), is_end) for text, is_end in ends}


def _read_in_pieces(kernel: PacketFilter, held: dict[str, NftChain]) -> tuple[Any, ...]:
    """Of each chain whether it has the rules that are held; and with one more, one less, or another last one."""
    reader, deadline = kernel.reader, Deadline.after(10)
    assert reader is not None
    next(iter(reader.elements(T4, ADDRESSES, deadline)))
    reader.reset()
    sets = {spec.name: spec for part in reader.sets(T4, deadline) for spec in part}
    chains = {chain.name: chain.hook for part in reader.chains(T4, deadline) for chain in part}
    rules = {}
    for name in chains:
        its, other = held[name].rules, rule(DROP, comment="another")
        asked = [replace(held[name], rules=some) for some in (its, (*its, other), its[:-1], (*its[:-1], other))]
        rules[name] = tuple(list(reader.compare_rules(T4, chain, deadline))[-1] for chain in asked)
    parts = {name: list(reader.elements(T4, spec, deadline)) for name, spec in sets.items()}
    elements = {name: {element for part in some for element in part} for name, some in parts.items()}
    return sets, chains, rules, elements, len(parts["addresses"])


def test_ipv6_and_arp(filter_kernel: Kernel) -> None:
    six = NftSet("six", ("ipv6_addr", "inet_proto", "inet_service"))
    element = bytes(15) + b"\1" + b"\x11\0\0\0" + b"\0\x35\0\0"
    rules = (
        rule(AddressInSet(False, "six", negated=True, with_port=True), Reject()),
        rule(AddressInNet(True, bytes.fromhex("fd80") + bytes(14), 9), Reject()),
        rule(SourceIsElsewhere(), DROP),
        rule(NoTrack()),
    )
    own = NftSet("own", ("ifname", "ipv4_addr"))
    replies = (rule(IsArpReply(), ArpSenderInSet("own"), DROP),)
    filter_kernel.apply(
        AddTable(T6),
        AddSet(T6, six),
        AddElements(T6, six, frozenset((element,))),
        AddChain(T6, "f", BaseHook("forward", 3)),
        AddRules(T6, "f", rules[:2]),
        AddChain(T6, "raw", BaseHook("prerouting", -300)),
        AddRules(T6, "raw", rules[2:]),
        AddTable(ARP),
        AddChain(ARP, "out", BaseHook("output", 0)),
        AddSet(ARP, own),
        AddRules(ARP, "out", replies),
    )
    found, arp = filter_kernel.read(T6), filter_kernel.read(ARP)
    assert found is not None and arp is not None
    assert found.chains["f"].rules == rules[:2] and arp.chains["out"].rules == replies
    assert found.chains["raw"] == NftChain("raw", rules[2:], BaseHook("prerouting", -300))
    assert found.elements == {"six": {element}}
    assert arp.chains["out"].hook == BaseHook("output", 0)


def test_a_table_that_is_not_there(filter_kernel: Kernel) -> None:
    assert filter_kernel.read() is None
    assert filter_kernel.refused(DropTable(T4)) == (ENOENT, 0)
    filter_kernel.apply(*BASE)
    filter_kernel.apply(DropTable(T4))
    assert filter_kernel.read() is None


def test_refused_as_a_whole(filter_kernel: Kernel) -> None:
    """The first wrong operation is named, and nothing of the others is in force."""
    filter_kernel.apply(*BASE)
    before = filter_kernel.read()
    bad = AddRules(T4, "nowhere", (rule(DROP),))
    assert filter_kernel.refused(FlushChain(T4, "base"), AddChain(T4, "new"), bad, AddChain(T4, "newer")) == (ENOENT, 2)
    assert filter_kernel.read() == before


def test_the_last_operation_is_wrong(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    assert filter_kernel.refused(AddChain(T4, "new"), AddRules(T4, "new", (rule(jump("nowhere")),))) == (ENOENT, 1)


def test_what_is_in_use_stays(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    assert filter_kernel.refused(DropChain(T4, "other")) == (EBUSY, 0)
    assert filter_kernel.refused(DropSet(T4, "addresses")) == (EBUSY, 0)
    filter_kernel.apply(
        FlushChain(T4, "base"),
        DropElements(T4, DISPATCH, frozenset((name("cali1"),))),
        DropElements(T4, MARKED, frozenset((word_key(0x40000),))),
        DropChain(T4, "other"),
        DropSet(T4, "addresses"),
    )
    found = filter_kernel.read()
    assert found is not None and set(found.chains) == {"base"} and "addresses" not in found.sets


def test_unknown_set(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    assert filter_kernel.refused(AddRules(T4, "other", (rule(AddressInSet(True, "none"), DROP),))) == (
        ENOENT,
        0,
    )


def test_loops(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    with pytest.raises(RulesRefused) as e:
        filter_kernel.apply(
            AddChain(T4, "c"), AddRules(T4, "other", (rule(jump("c")),)), AddRules(T4, "c", (rule(jump("other")),))
        )
    assert e.value.errno in (ELOOP, EMLINK)  # which one depends on the kernel


def test_elements(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    both = frozenset((a("10.0.0.2"), a("10.0.0.3")))
    filter_kernel.apply(AddElements(T4, ADDRESSES, both))
    filter_kernel.apply(DropElements(T4, ADDRESSES, frozenset((a("10.0.0.1"),))))
    assert filter_kernel.refused(DropElements(T4, ADDRESSES, frozenset((a("10.0.0.9"),)))) == (ENOENT, 0)
    found = filter_kernel.read()
    assert found is not None and found.elements["addresses"] == both


def test_overlapping_networks(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    overlap = frozenset((net("10.1.4.0", "10.1.5.255"),))
    assert filter_kernel.refused(AddElements(T4, NETWORKS, overlap)) == (EEXIST, 0)
    filter_kernel.apply(
        DropElements(T4, NETWORKS, frozenset((net("10.1.0.0", "10.1.255.255"),))), AddElements(T4, NETWORKS, overlap)
    )
    filter_kernel.apply(AddElements(T4, NETWORKS, overlap))
    found = filter_kernel.read()
    assert found is not None and found.elements["networks"] == overlap | {net("10.2.0.0", "10.2.0.0")}


def test_the_whole_address_space(filter_kernel: Kernel) -> None:
    everything = frozenset((net("0.0.0.0", "255.255.255.255"),))
    filter_kernel.apply(AddTable(T4), AddSet(T4, NETWORKS), AddElements(T4, NETWORKS, everything))
    found = filter_kernel.read()
    assert found is not None and found.elements["networks"] == everything


def test_adjoining_ranges(filter_kernel: Kernel) -> None:
    ranges = frozenset(
        (net("10.0.0.0", "10.0.0.255"), net("10.0.1.0", "10.0.1.7"), net("255.255.255.0", "255.255.255.255"))
    )
    filter_kernel.apply(AddTable(T4), AddSet(T4, NETWORKS), AddElements(T4, NETWORKS, ranges))
    found = filter_kernel.read()
    assert found is not None and found.elements["networks"] == ranges


def test_verdicts(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    filter_kernel.apply(AddVerdicts(T4, DISPATCH, {name("cali2"): DROP}))
    errno, index = filter_kernel.refused(AddVerdicts(T4, DISPATCH, {name("cali2"): jump("other")}))
    assert errno in (EBUSY, EEXIST) and index == 0  # which one depends on the kernel
    filter_kernel.apply(
        AddChain(T4, "third"),
        DropElements(T4, DISPATCH, frozenset((name("cali2"),))),
        AddVerdicts(T4, DISPATCH, {name("cali2"): jump("third")}),
    )
    found = filter_kernel.read()
    assert found is not None
    assert found.verdicts["dispatch"] == {name("cali1"): jump("other"), name("cali2"): jump("third")}


def test_a_chain_made_anew_in_one_transaction(filter_kernel: Kernel) -> None:
    filter_kernel.apply(*BASE)
    filter_kernel.apply(FlushChain(T4, "other"), AddRules(T4, "other", (rule(ACCEPT), rule(DROP))))
    found = filter_kernel.read()
    assert found is not None and found.chains["other"].rules == (rule(ACCEPT), rule(DROP))


def test_a_chain_goes_with_its_rules(filter_kernel: Kernel) -> None:
    filter_kernel.apply(AddTable(T4), AddChain(T4, "x"), AddRules(T4, "x", (rule(DROP),)))
    filter_kernel.apply(DropChain(T4, "x"))
    found = filter_kernel.read()
    assert found is not None and found.chains == {}


def test_generations(filter_kernel: Kernel) -> None:
    def look(pf: PacketFilter) -> tuple[int, int, int]:
        first = pf.generation(Deadline.after(10))
        pf.apply((AddTable(T4),), Deadline.after(10))
        second = pf.generation(Deadline.after(10))
        with pytest.raises(RulesRefused):
            pf.apply((DropChain(T4, "none"),), Deadline.after(10))
        return first, second, pf.generation(Deadline.after(10))

    first, second, third = filter_kernel.run(look)
    assert second == first + 1 and third == second


def test_many_elements(filter_kernel: Kernel) -> None:
    """More than one attribute, and one message of the dump, can hold."""
    rng = random.Random(7)
    many = frozenset(rng.randbytes(4) for _ in range(20000))
    # every other eighth of a network, so that none meet
    ranges = frozenset(i.to_bytes(4, "big") + (i + 7).to_bytes(4, "big") for i in range(0, 16 * 3000, 16))
    filter_kernel.apply(
        AddTable(T4),
        AddSet(T4, ADDRESSES),
        AddSet(T4, NETWORKS),
        AddElements(T4, ADDRESSES, many),
        AddElements(T4, NETWORKS, ranges),
    )
    found = filter_kernel.read()
    assert found is not None and found.elements == {"addresses": many, "networks": ranges}


def test_a_comment_that_is_too_long_for_the_kernel_is_recognised(filter_kernel: Kernel) -> None:
    long = (rule(DROP, comment="ü" * 200),)
    filter_kernel.apply(AddTable(T4), AddChain(T4, "x"), AddRules(T4, "x", long))
    found = filter_kernel.read()
    assert found is not None and found.chains["x"].rules == long


@pytest.mark.netns
def test_without_permission() -> None:
    """Refused as a whole, at once: the kernel's only answer is to the transaction's begin."""

    def attempt() -> tuple[int, int]:
        import ctypes

        libc = ctypes.CDLL(None)
        for capability in (12, 21):  # NET_ADMIN and SYS_ADMIN, out of the bounding set; a new process has them not
            libc.prctl(24, capability, 0, 0, 0)
        libc.prctl(8, 0, 0, 0, 0)
        import os

        os.setresuid(65534, 65534, 65534)
        with NfTables() as real, pytest.raises(RulesRefused) as e:
            real.apply((AddTable(T4),), Deadline.after(5))
        return e.value.errno, e.value.index

    with namespace("nft") as made:
        assert made.call(attempt) == (EPERM, -1)


@pytest.mark.netns
@pytest.mark.parametrize(("when", "there"), [("before", False), ("after", True)])
def test_a_transaction_that_fails_or_whose_answer_is_lost(when: str, there: bool) -> None:
    """nfnetlink.commit: refused means that nothing happened, unknown that it must be read."""

    def attempt() -> tuple[str, bool]:
        with NfTables() as real:
            faults.install(faults.FaultPlan(f"nfnetlink.commit:{when}:1:fail"))
            try:
                real.apply((AddTable(T4),), Deadline.after(5))
            except (RulesRefused, RulesUnknown) as e:
                return type(e).__name__, real.read_table(T4, Deadline.after(5)) is not None
            finally:
                faults.install(None)
        return "", False

    with namespace("nft") as made:
        assert made.call(attempt) == ("RulesUnknown" if there else "RulesRefused", there)
