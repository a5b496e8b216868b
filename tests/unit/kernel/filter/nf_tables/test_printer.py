"""Rules as expressions of nf_tables: each word of the language, what is recognised, and what is kept in caches."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.filter.nf_tables import printer
from cni_calico.kernel.filter.nf_tables.attributes import be32, encode_expression, rewritten
from cni_calico.kernel.filter.nf_tables.expressions import (
    Bitwise,
    Compare,
    CompareRange,
    CtLoad,
    CtStore,
    Expression,
    FibSourceInterface,
    MetaLoad,
    MetaStore,
    PayloadLoad,
    PayloadStore,
    PrintedRule,
    RejectPacket,
    SetLookup,
    WordsLoad,
    host32,
)
from cni_calico.kernel.filter.nf_tables.printer import are_printed, forget_cached, print_rule, recognise
from cni_calico.kernel.netlink.wire import list_elements, nested, text
from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    KNOWN_BEFORE,
    KNOWN_BY_STATE,
    KNOWN_BY_STATUS,
    RETURN,
    AcceptKnown,
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
    LabelConnection,
    LogPacket,
    NftRule,
    NoTrack,
    PacketVerdict,
    PortIn,
    PortInEither,
    PortInSet,
    RateLimit,
    Reject,
    ReportDecision,
    RuleAction,
    RuleTest,
    SetDscp,
    SetMark,
    SetMarkTo,
    SourceIsElsewhere,
    Unrecognised,
    jump,
)
from tests.fakes.expressions import expressions_of
from tests.unit.netfilter.rules import rule

ZERO, PROTOCOL, MARK = host32(0), MetaLoad("l4proto"), MetaLoad("mark")
DPORT = PayloadLoad("transport", 2, 2)
SIX = bytes.fromhex("20010db8") + bytes(12)
# what we write -> (family, what the kernel gets)
Word = RuleTest | RuleAction
PRINTED: list[tuple[Word, str, tuple[Expression, ...]]] = [
    (IsProtocol(6), "ip", (PROTOCOL, Compare("eq", b"\6"))),
    (IsProtocol(6, negated=True), "ip6", (PROTOCOL, Compare("neq", b"\6"))),
    (PortIn(False, 80, 80), "ip", (DPORT, Compare("eq", b"\0\x50"))),
    (PortIn(True, 80, 80, negated=True), "ip", (PayloadLoad("transport", 0, 2), Compare("neq", b"\0\x50"))),
    (PortIn(False, 1, 256), "ip", (DPORT, Compare("gte", b"\0\1"), Compare("lte", b"\1\0"))),
    (PortIn(False, 1, 256, negated=True), "ip", (DPORT, CompareRange("neq", b"\0\1", b"\1\0"))),
    (PortInSet(False, "p"), "ip", (DPORT, SetLookup("p"))),
    (PortInSet(False, "p", negated=True), "ip", (DPORT, SetLookup("p", invert=True))),
    (IcmpType(8, 8), "ip", (PayloadLoad("transport", 0, 1), Compare("eq", b"\x08"))),
    (IcmpType(3, 3, 4, negated=True), "ip", (PayloadLoad("transport", 0, 2), Compare("neq", b"\3\4"))),
    (IcmpType(130, 136), "ip6", (PayloadLoad("transport", 0, 1), CompareRange("eq", b"\x82", b"\x88"))),
    (AddressInNet(True, bytes((10, 1, 0, 0)), 16), "ip", (PayloadLoad("network", 12, 2), Compare("eq", b"\x0a\1"))),
    (AddressInNet(False, SIX, 32), "ip6", (PayloadLoad("network", 24, 4), Compare("eq", SIX[:4]))),
    (
        AddressInNet(False, bytes((10, 64, 0, 0)), 10, negated=True),
        "ip",
        (PayloadLoad("network", 16, 4), Bitwise(b"\xff\xc0\0\0", ZERO), Compare("neq", bytes((10, 64, 0, 0)))),
    ),
    (AddressInNet(True, bytes(4), 0), "ip", (PayloadLoad("network", 12, 4), Bitwise(ZERO, ZERO), Compare("eq", ZERO))),
    (AddressInSet(True, "s"), "ip6", (PayloadLoad("network", 8, 16), SetLookup("s"))),
    (AddressInSet(True, "s", negated=True), "ip", (PayloadLoad("network", 12, 4), SetLookup("s", invert=True))),
    (
        AddressInSet(False, "m", with_port=True),
        "ip",
        (PayloadLoad("network", 16, 4), MetaLoad("l4proto", 9), PayloadLoad("transport", 2, 2, 10), SetLookup("m")),
    ),
    (
        AddressInSet(True, "m", negated=True, with_port=True),
        "ip6",
        (
            PayloadLoad("network", 8, 16),
            MetaLoad("l4proto", 2),
            PayloadLoad("transport", 0, 2, 13),
            SetLookup("m", invert=True),
        ),
    ),
    (AtInterface(False, "cali", is_prefix=True), "ip", (MetaLoad("iifname"), Compare("eq", b"cali"))),
    (AtInterface(True, "eth0"), "ip", (MetaLoad("oifname"), Compare("eq", b"eth0".ljust(16, b"\0")))),
    (ConnectionIs(("established", "related")), "ip", (CtLoad("state"), Bitwise(host32(6), ZERO), Compare("neq", ZERO))),
    (ConnectionIs(("new",), negated=True), "ip", (CtLoad("state"), Bitwise(host32(8), ZERO), Compare("eq", ZERO))),
    (IsTranslated(), "ip", (CtLoad("status"), Bitwise(host32(32), ZERO), Compare("neq", ZERO))),
    (HasMark(4), "ip", (MARK, Bitwise(host32(4), ZERO), Compare("neq", ZERO))),
    (HasMark(4, negated=True), "ip", (MARK, Bitwise(host32(4), ZERO), Compare("eq", ZERO))),
    (SourceIsElsewhere(), "ip", (FibSourceInterface(), Compare("eq", ZERO))),
    (RateLimit(5), "ip", (RateLimit(5),)),
    (ConnectionLimit(5), "ip", (ConnectionLimit(5),)),
    (IsArpReply(), "arp", (PayloadLoad("network", 6, 2), Compare("eq", b"\0\2"))),
    (ArpSenderInSet("s"), "arp", (MetaLoad("oifname"), PayloadLoad("network", 14, 4, 2), SetLookup("s"))),
    (jump("c"), "ip", (jump("c"),)),
    (Reject(), "ip", (RejectPacket(3),)),
    (Reject(), "ip6", (RejectPacket(4),)),
    (Reject(with_reset=True), "ip6", (RejectPacket(),)),
    (Dispatch(True, "m"), "ip", (MetaLoad("oifname"), SetLookup("m", verdict=True))),
    (DispatchMark(12, "m"), "ip", (MARK, Bitwise(host32(12), ZERO), SetLookup("m", verdict=True))),
    (SetMarkTo(12, 4), "ip", (MARK, Bitwise(host32(0xFFFFFFF3), host32(4)), MetaStore("mark"))),
    (SetMark(4), "ip", (MARK, Bitwise(host32(0xFFFFFFFB), host32(4)), MetaStore("mark"))),
    (SetMark(4, cleared=True), "ip", (MARK, Bitwise(host32(0xFFFFFFFB), ZERO), MetaStore("mark"))),
    (
        SetDscp(46),  # as nft prints "ip dscp set ef"
        "ip",
        (
            PayloadLoad("network", 0, 2),
            Bitwise(b"\xff\x03", b"\x00\xb8"),
            PayloadStore("network", 0, 2, checksum_at=10),
        ),
    ),
    (
        SetDscp(46),
        "ip6",
        (PayloadLoad("network", 0, 2), Bitwise(b"\xf0\x3f", b"\x0b\x80"), PayloadStore("network", 0, 2)),
    ),
    (NoTrack(), "ip", (NoTrack(),)),
    (LogPacket("x", group=4), "ip", (LogPacket("x", group=4),)),
    (CountPacket(), "ip", (CountPacket(),)),
    (
        AcceptKnown(),
        "ip",
        (
            CtLoad("state"),
            SetLookup("connection-by-state", verdict=True),
            CtLoad("status"),
            Bitwise(host32(8), ZERO),
            SetLookup("connection-by-status", verdict=True),
        ),
    ),
    (
        LabelConnection(0x102, ingress=False),
        "ip",
        (WordsLoad(host32(0x102) + host32(0xFFFFFEFD) + bytes(8)), CtStore("labels")),
    ),
    (
        LabelConnection(1, ingress=True),
        "ip6",
        (WordsLoad(bytes(8) + host32(1) + host32(0xFFFFFFFE)), CtStore("labels")),
    ),
    (ReportDecision(258, 7), "ip", (ReportDecision(258, 7),)),
]


@pytest.mark.parametrize(("part", "family", "expressions"), PRINTED, ids=lambda one: type(one).__name__)
def test_each_word(part: Word, family: str, expressions: tuple[Expression, ...]) -> None:
    assert expressions_of(rule(part), family) == expressions


def test_no_word_is_forgotten() -> None:
    words = {*get_args(RuleTest), *get_args(RuleAction)}
    assert {type(part) for part, _, _ in PRINTED} == words - {PortInEither, Unrecognised}
    can_be_negated = {word for word in words if any(field.name == "negated" for field in fields(word))}
    negated = {type(part) for part, _, _ in PRINTED if getattr(part, "negated", False)}
    assert can_be_negated - negated == {IsTranslated}  # as ConnectionIs


PARTS = st.sampled_from([(part, family) for part, family, _ in PRINTED if family != "arp"])


@given(st.lists(PARTS, max_size=6), st.sampled_from(("ip", "ip6")), st.text(max_size=200))
def test_what_is_encoded_is_read_back(parts: list[tuple[Word, str]], family: str, comment: str) -> None:
    words = [part for part, its in parts if family == its or not isinstance(part, AddressInNet)]
    tests = tuple(word for word in words if isinstance(word, RuleTest))
    one = NftRule(tests, tuple(word for word in words if isinstance(word, RuleAction)), comment)
    printed = print_rule(one, family)
    elements = list_elements(printed.expressions)
    assert b"".join(map(rewritten, elements)) == printed.expressions
    assert recognise((printed,), [(one,)], family) == (one,)
    assert printed.comment.encode() == comment.encode("utf-8", "replace")[: len(printed.comment.encode())]
    assert len(printed.comment.encode()) <= 120


def test_what_is_not_wanted_equals_nothing_of_ours() -> None:
    ours = (rule(HasMark(4), ACCEPT), rule(DROP))
    there = [print_rule(one, "ip") for one in ours]
    assert recognise(there, [ours[:1], ours[::-1], (), (*ours, ours[0]), ours], "ip") is ours
    for other in (ours[:1], ours[::-1], (ours[0], rule(RETURN)), (ours[0], replace(ours[1], comment="x"))):
        found = recognise(there, [other], "ip")
        assert len(found) == 2 and not {*found} & {*ours, *other}
        assert recognise(there, [found], "ip") == found == recognise(there, [], "ip")  # read again: nobody changed it
        assert recognise(there, [found, ours], "ip") is ours  # it was not wanted then, and is now
        assert not are_printed(found, [*there[:1], print_rule(rule(RETURN), "ip")], "ip")
    assert recognise([], [ours, ()], "ip") == () == recognise([], [ours], "ip")


def test_little_is_kept_of_chains_whose_names_do_not_come_again() -> None:
    forget_cached()
    for number in range(10_000):
        one = rule(jump(f"host-in-h-{number:024x}"))
        printed = print_rule(one, "ip").expressions
        (element,) = list_elements(printed)
        assert rewritten(element) == printed
    caches = (printer._encoded, rewritten)
    kept = [cache.cache_info().currsize for cache in caches]
    forget_cached()
    assert max(kept) <= 2048 and not any(cache.cache_info().currsize for cache in caches)


def test_what_a_thousand_policies_have_is_kept_once_for_both_families() -> None:
    forget_cached()
    for family in ("ip", "ip6"):
        for number in range(1500):
            print_rule(rule(jump(f"pi-gnp/default.p{number}")), family)
    hits = printer._encoded.cache_info().hits
    forget_cached()
    assert hits == 1500


def test_what_the_kernel_adds_does_not_matter_but_what_we_do_not_know_does() -> None:
    """Attributes in another order, and one that is new, say the same; an expression that we never write does not."""
    meta = text(1, "meta"), nested(2, be32(1, 1), be32(99, 7), be32(2, 16))
    assert (
        rewritten(b"".join(meta)) == print_rule(rule(IsProtocol(6)), "ip").expressions[: len(rewritten(b"".join(meta)))]
    )
    dscp = text(1, "exthdr") + nested(2, be32(1, 1))
    assert rewritten(dscp) == nested(1, dscp) != rewritten(text(1, "exthdr") + nested(2, be32(1, 2)))


@pytest.mark.parametrize(
    ("ours", "sets", "actions"),
    [
        (rule(AddressInSet(True, "s"), PortInSet(False, "p"), SetMark(4), RETURN), ("s", "p"), (SetMark(4), RETURN)),
        (
            rule(AddressInNet(True, bytes((10, 64, 0, 0)), 10), SetMark(4, cleared=True)),
            (),
            (SetMark(4, cleared=True),),
        ),
        (rule(HasMark(8), CountPacket(), jump("c")), (), (jump("c"),)),
        (rule(LogPacket("x")), (), ()),
    ],
)
def test_what_is_not_recognised_can_be_kept(ours: NftRule, sets: tuple[str, ...], actions: tuple[Word, ...]) -> None:
    """It says what it needs, and is printed as it was read."""
    there = print_rule(ours, "ip")
    (found,) = recognise([there], [], "ip")
    assert found == NftRule((Unrecognised(there, sets, True),), actions) and found.lookups() == sets
    assert print_rule(found, "ip") == there


def test_rules_with_the_former_names_of_maps_can_be_kept() -> None:
    """What an earlier version had in force stays until its policy has been read."""
    former = [KNOWN_BY_STATE, KNOWN_BY_STATUS, *KNOWN_BEFORE]
    there = PrintedRule(b"".join(encode_expression(SetLookup(name, verdict=True)) for name in former))
    (found,) = recognise([there], [], "ip")
    assert found == NftRule((Unrecognised(there, tuple(former), True),))


def test_what_is_not_known_says_so() -> None:
    later = PrintedRule(nested(1, text(1, "exthdr")))
    for there in (
        print_rule(rule(Dispatch(False, "m")), "ip"),
        later,
        print_rule(rule(PacketVerdict("goto", "c")), "ip"),
    ):
        (found,) = recognise([there], [], "ip")
        assert isinstance(found.tests[0], Unrecognised) and not found.tests[0].is_known
