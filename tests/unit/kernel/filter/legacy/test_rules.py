"""Rules of the packet filter as rules of iptables: what becomes of each kind of test and action."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.kernel.filter.legacy.matches import CannotExpress, Marks
from cni_calico.kernel.filter.legacy.port_chains import port_chain
from cni_calico.kernel.filter.legacy.rules import Compiled, compile_rule
from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    RETURN,
    AddressInNet,
    AddressInSet,
    ArpSenderInSet,
    AtInterface,
    CountPacket,
    Dispatch,
    HasMark,
    IcmpType,
    IsArpReply,
    IsProtocol,
    LogPacket,
    NoTrack,
    PacketVerdict,
    PortIn,
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
from cni_calico.netfilter.tables import NftSet, NftTable
from cni_calico.nodeagent.policing.tables.chains import TRACKED
from cni_calico.nodeagent.policing.tables.matches import in_network, network_list, render_match
from cni_calico.policy.wanted import WantedRule, WantedSide
from tests.unit.netfilter.rules import rule

MARKS = Marks(0x40000, 0x80000)
TCP, UDP = 6, 17
ALLOW = "-g cali-p-do-40000-40000"


def table(family: str = "ip", *sets: NftSet) -> NftTable:
    return NftTable(family, "calico-policy", sets={one.name: one for one in sets})


def rules(*parts: RuleTest | RuleAction, where: NftTable | None = None, base: bool = False) -> list[str]:
    done = Compiled()
    compile_rule(rule(*parts), where or table(), MARKS, base=base, done=done)
    return done.rules


def matches(wanted_rule: WantedRule, family: int, *sets: NftSet) -> list[str]:
    """The rules of all alternatives, which drop."""
    rendered = render_match(wanted_rule, family, lambda name: False)
    where = table("ip" if family == 4 else "ip6", *sets)
    for name, listed in rendered.lists.items():
        where.sets[name], where.elements[name] = listed.spec, set(listed.elements)
    return [line for match in rendered.matches for line in rules(*match, DROP, where=where)]


def wanted(
    source: WantedSide | None = None,
    destination: WantedSide | None = None,
    *,
    protocol: int | None = None,
    icmp: tuple[int, int | None] | None = None,
    not_icmp: tuple[int, int | None] | None = None,
) -> WantedRule:
    sides = {"source": source or WantedSide(), "destination": destination or WantedSide()}
    return WantedRule("Deny", protocol=protocol, icmp=icmp, not_icmp=not_icmp, **sides)


def test_actions() -> None:
    assert rules(ACCEPT) == [ALLOW] and rules(ACCEPT, base=True) == ["-j RETURN"]
    assert rules(RETURN) == ["-j RETURN"] and rules(DROP) == ["-j DROP"]
    assert rules(Reject()) == ["-j REJECT --reject-with icmp-port-unreachable"]
    assert rules(Reject(), where=table("ip6")) == ["-j REJECT --reject-with icmp6-port-unreachable"]
    assert rules(IsProtocol(TCP), Reject(with_reset=True)) == ["-p 6 -j REJECT --reject-with tcp-reset"]
    assert rules(SetMark(0x10000), RETURN) == ["-g cali-p-do-10000-10000"]
    assert rules(SetMark(0x10000, cleared=True), RETURN) == ["-g cali-p-do-0-10000"]
    assert rules(SetMark(0x10000)) == ["-j MARK --set-xmark 0x10000/0x10000"]
    assert rules(SetMark(0x10000, cleared=True)) == ["-j MARK --set-xmark 0x0/0x10000"]
    assert rules(SetMarkTo(0x30000, 0x10000)) == ["-j MARK --set-xmark 0x10000/0x30000"]
    assert rules(SetMark(0x20000), NoTrack(), ACCEPT) == ["-g cali-p-do-60000-60000n"]
    assert rules(CountPacket(), DROP) == ["-j DROP"]
    assert rules(NoTrack(), base=True) == ["-j CT --notrack"]
    assert rules(IsProtocol(TCP), SetDscp(8)) == ["-p 6 -j DSCP --set-dscp 0x08"]


def test_a_jump_comes_back_only_without_a_verdict() -> None:
    assert rules(HasMark(0x10000), jump("pi-gnp/x")) == [
        "-m mark --mark 0x10000/0x10000 -j cali-p-pi-gnp/x",
        "-m mark --mark 0x40000/0x40000 -j RETURN",
    ]
    assert rules(Dispatch(True, "to-workloads")) == [
        "-j cali-p-by-o/to-workloads",
        "-m mark --mark 0x40000/0x40000 -j RETURN",
    ]


def test_what_packets_are_like() -> None:
    assert rules(TRACKED, ACCEPT) == [f"-m conntrack --ctstate ESTABLISHED,RELATED {ALLOW}"]
    assert rules(AtInterface(False, "cali", is_prefix=True), DROP) == ['-i "cali+" -j DROP']
    assert rules(AtInterface(False, "123456789012345", is_prefix=True), DROP) == ['-i "123456789012345" -j DROP']
    assert rules(AtInterface(True, "eth0"), DROP) == ['-o "eth0" -j DROP']
    assert rules(SourceIsElsewhere(), DROP) == ["-m rpfilter --validmark --invert -j DROP"]
    for text in ("10.0.0.0/8", "10.65.0.0/26", "192.0.2.7/32"):
        assert rules(*in_network(ip_network(text), True), DROP) == [f"-s {text} -j DROP"]
    six = ip_network("2001:db8::/33")
    assert rules(*in_network(six, False, True), DROP, where=table("ip6")) == [f"! -d {six} -j DROP"]


def test_ports() -> None:
    sides = WantedSide(ports=((80, 80),)), WantedSide(not_ports=((1, 1023),))
    assert matches(wanted(*sides, protocol=TCP), 4) == [
        "-p 6 -m multiport --sports 80 -m multiport ! --dports 1:1023 -j DROP"
    ]
    many = WantedSide(ports=tuple((port, port + 1) for port in range(1000, 1100, 10)))
    ready, tested, denied = matches(wanted(None, many, protocol=UDP), 4)
    assert ready == "-j MARK --set-xmark 0x80000/0x80000" and tested.startswith("-p 17 -j cali-p-of-")
    assert denied == "-p 17 -m mark --mark 0x80000/0x80000 -j DROP"
    (none_of,) = matches(wanted(None, WantedSide(not_ports=many.ports), protocol=UDP), 4)
    assert none_of.count("! --dports") == 2
    with pytest.raises(CannotExpress, match="no ports of protocol"):
        matches(wanted(None, many), 4)


def test_a_long_list_of_ports_is_a_chain() -> None:
    ranges = [(port, port + 1) for port in range(1000, 1100, 10)]
    cleared = "MARK --set-xmark 0x0/0x80000"
    first, second, last = port_chain(UDP, "dports", ranges, "", cleared, invert=False).rules()
    assert [line.count(":") for line in (first, second)] == [7, 3] and "1060:1061" in first and "1090:1091" in second
    assert first.endswith("-j RETURN") and second.endswith("-j RETURN") and last == f"-j {cleared}"
    inverted = port_chain(UDP, "dports", ranges, "", cleared, invert=True).rules()
    assert [line.endswith(f"-j {cleared}") for line in inverted] == [True, True]


def test_icmp() -> None:
    assert matches(wanted(icmp=(8, 0)), 4) == ["-p 1 -m icmp --icmp-type 8/0 -j DROP"]
    assert matches(wanted(icmp=(128, None)), 6) == ["-p 58 -m icmp6 --icmpv6-type 128 -j DROP"]
    assert matches(wanted(not_icmp=(8, None)), 4) == [
        "! -p 1 -j DROP",
        "-p 1 -m icmp ! --icmp-type 8 -j DROP",
    ]
    with pytest.raises(CannotExpress, match="255"):  # it would match every type
        matches(wanted(icmp=(255, None)), 4)


def test_sets() -> None:
    plain, ports = NftSet("s-a", ("ipv4_addr",)), NftSet("p-b", ("ipv4_addr", "inet_proto", "inet_service"))
    sides = WantedSide(port_sets=("p-b",)), WantedSide(sets=("s-a",))
    assert matches(wanted(*sides), 4, plain, ports) == [
        "-m set --match-set cali40p-p-b src,src -m set --match-set cali40p-s-a dst -j DROP"
    ]
    sides = WantedSide(not_sets=("s-a",)), WantedSide(not_port_sets=("p-b",))
    assert matches(wanted(*sides), 4, plain, ports) == [
        "-m set ! --match-set cali40p-p-b dst,dst -m set ! --match-set cali40p-s-a src -j DROP"
    ]
    listed = network_list((ip_network("10.0.0.0/8"), ip_network("192.0.2.0/24")))
    (line,) = matches(wanted(WantedSide(nets=(ip_network("10.0.0.0/8"), ip_network("192.0.2.0/24")))), 4)
    assert listed.spec.name[:5] == "nets4" and line.startswith("-m set --match-set cali40p-") and " src " in line


def test_what_iptables_tests_only_once() -> None:
    """A second network of a side, or a second protocol, clears the scratch bit."""
    side = WantedSide(nets=(ip_network("10.0.0.0/8"),), not_nets=(ip_network("10.1.0.0/16"),))
    assert matches(wanted(side), 4) == [
        "-j MARK --set-xmark 0x80000/0x80000",
        "-s 10.1.0.0/16 -j MARK --set-xmark 0x0/0x80000",
        "-s 10.0.0.0/8 -m mark --mark 0x80000/0x80000 -j DROP",
    ]
    assert rules(IsProtocol(TCP, negated=True), IsProtocol(UDP, negated=True), DROP) == [
        "-j MARK --set-xmark 0x80000/0x80000",
        "-p 17 -j MARK --set-xmark 0x0/0x80000",
        "! -p 6 -m mark --mark 0x80000/0x80000 -j DROP",
    ]
    assert rules(IsProtocol(TCP), IsProtocol(UDP, negated=True), DROP) == ["-p 6 -j DROP"]
    assert rules(IsProtocol(TCP), IsProtocol(TCP, negated=True), DROP) == []


def test_limits() -> None:
    assert rules(RateLimit(100, 1, 5, over=True), DROP) == [
        "-j MARK --set-xmark 0x80000/0x80000",
        "-m limit --limit 100/second --limit-burst 5 -j MARK --set-xmark 0x0/0x80000",
        "-m mark --mark 0x80000/0x80000 -j DROP",
    ]
    assert rules(IsProtocol(TCP), RateLimit(1, 86400, 5), LogPacket("x: ")) == [
        '-p 6 -m limit --limit 1/day --limit-burst 4 -j LOG --log-level 6 --log-prefix "x: "'  # a word of 32 bits
    ]
    with pytest.raises(CannotExpress, match="rates above 10000"):
        rules(RateLimit(10001, 1, 5), DROP)
    with pytest.raises(CannotExpress, match="inverted"):
        rules(IsProtocol(TCP), RateLimit(100, over=True), DROP)


def test_log_prefixes_are_cut() -> None:
    (line,) = rules(LogPacket("calico-packet default gnp a-very-long-name: "))
    assert line.endswith('--log-prefix "calico-packet default gnp a: "')


@pytest.mark.parametrize(
    "parts",
    [
        (Unrecognised("x"), DROP),
        (IsProtocol(0), DROP),  # iptables would take it for every protocol
        (LogPacket("x: ", group=5),),
        (PacketVerdict("goto", "x"),),
        (PortIn(True, 1, 1), DROP),
        (IcmpType(8, 8), DROP),
        (IsProtocol(1), IcmpType(8, 9, negated=True), DROP),
        (AtInterface(False, "cali+"), DROP),
        (AtInterface(False, ""), DROP),
        (AddressInSet(True, "nowhere"), DROP),
        (IsArpReply(), ArpSenderInSet("x"), DROP),
        (LogPacket("x"), DROP),
        (SetMark(1), DROP),
        (NoTrack(), Dispatch(False, "x")),
        (AddressInNet(True, bytes((10, 0, 0, 0)), 8),),
    ],
)
def test_what_cannot_be_expressed_is_refused(parts: tuple[RuleTest | RuleAction, ...]) -> None:
    with pytest.raises(CannotExpress):
        rules(*parts)


def test_reports_are_rules_of_their_own_before_the_verdict() -> None:
    to = "-j NFLOG --nflog-prefix 0000012c --nflog-group 7 --nflog-size 64 --nflog-threshold 32"
    tcp = "-p 6"
    assert rules(IsProtocol(TCP), CountPacket(), ReportDecision(300, 7), DROP) == [f"{tcp} {to}", f"{tcp} -j DROP"]
    once = rules(ReportDecision(300, 7, once=True), ACCEPT, base=True)
    assert once == [f"-m conntrack ! --ctstatus CONFIRMED {to}", "-j RETURN"]
    limited = rules(RateLimit(5, over=True), ReportDecision(300, 7), DROP)
    assert limited[-1].endswith("-j DROP") and not any("NFLOG" in line for line in limited)
