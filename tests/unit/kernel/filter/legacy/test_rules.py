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
    Compare,
    Expression,
    FibSourceInterface,
    Immediate,
    LogPacket,
    MetaLoad,
    NftRule,
    NoTrack,
    PayloadLoad,
    RateLimit,
    RejectPacket,
    SetLookup,
    UnknownExpression,
    jump,
)
from cni_calico.netfilter.tables import NftSet, NftTable
from cni_calico.nodeagent.policing.tables.chains import ESTABLISHED, ZERO, clear_mark, has_mark, set_mark
from cni_calico.nodeagent.policing.tables.matches import in_network, network_list, protocol, render_match
from cni_calico.nodeagent.policing.tables.stages import begins_with, interface_key
from cni_calico.policy.wanted import WantedRule, WantedSide

MARKS = Marks(0x40000, 0x80000)
TCP, UDP = 6, 17
ALLOW = "-g cali-p-do-40000-40000"


def table(family: str = "ip", *sets: NftSet) -> NftTable:
    return NftTable(family, "calico-policy", sets={one.name: one for one in sets})


def rules(*expressions: Expression, where: NftTable | None = None, base: bool = False) -> list[str]:
    done = Compiled()
    compile_rule(NftRule(expressions), where or table(), MARKS, base=base, done=done)
    return done.rules


def matches(rule: WantedRule, family: int, *sets: NftSet) -> list[str]:
    """The rules of all alternatives, which drop."""
    rendered = render_match(rule, family, lambda name: False)
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
    assert rules(RejectPacket(3)) == ["-j REJECT --reject-with icmp-port-unreachable"]
    assert rules(RejectPacket(4)) == ["-j REJECT --reject-with icmp6-port-unreachable"]
    assert rules(*protocol(TCP), RejectPacket()) == ["-p 6 -j REJECT --reject-with tcp-reset"]
    assert rules(*set_mark(0x10000), RETURN) == ["-g cali-p-do-10000-10000"]
    assert rules(*clear_mark(0x10000)) == ["-j MARK --set-xmark 0x0/0x10000"]
    assert rules(*set_mark(0x20000), NoTrack(), ACCEPT) == ["-g cali-p-do-60000-60000n"]
    assert rules(NoTrack(), base=True) == ["-j CT --notrack"]


def test_a_jump_comes_back_only_without_a_verdict() -> None:
    assert rules(*has_mark(0x10000), jump("pi-gnp/x")) == [
        "-m mark --mark 0x10000/0x10000 -j cali-p-pi-gnp/x",
        "-m mark --mark 0x40000/0x40000 -j RETURN",
    ]
    assert rules(MetaLoad("oifname"), SetLookup("to-workloads", verdict=True)) == [
        "-j cali-p-by-o/to-workloads",
        "-m mark --mark 0x40000/0x40000 -j RETURN",
    ]


def test_what_packets_are_like() -> None:
    assert rules(*ESTABLISHED.expressions) == [f"-m conntrack --ctstate ESTABLISHED,RELATED {ALLOW}"]
    assert rules(*begins_with("iifname", "cali"), DROP) == ['-i "cali+" -j DROP']
    assert rules(MetaLoad("oifname"), Compare("eq", interface_key("eth0")), DROP) == ['-o "eth0" -j DROP']
    unrouted = (FibSourceInterface(), Compare("eq", ZERO))
    assert rules(*unrouted, DROP) == ["-m rpfilter --validmark --invert -j DROP"]
    for text in ("10.0.0.0/8", "10.65.0.0/26", "192.0.2.7/32"):
        assert rules(*in_network(ip_network(text), True), DROP) == [f"-s {text} -j DROP"]
    six = ip_network("2001:db8::/33")
    assert rules(*in_network(six, False, "neq"), DROP, where=table("ip6")) == [f"! -d {six} -j DROP"]


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
    assert rules(*protocol(TCP, "neq"), *protocol(UDP, "neq"), DROP) == [
        "-j MARK --set-xmark 0x80000/0x80000",
        "-p 17 -j MARK --set-xmark 0x0/0x80000",
        "! -p 6 -m mark --mark 0x80000/0x80000 -j DROP",
    ]
    assert rules(*protocol(TCP), *protocol(UDP, "neq"), DROP) == ["-p 6 -j DROP"]
    assert rules(*protocol(TCP), *protocol(TCP, "neq"), DROP) == []


def test_limits() -> None:
    assert rules(RateLimit(100, 1, 5, over=True), DROP) == [
        "-j MARK --set-xmark 0x80000/0x80000",
        "-m limit --limit 100/second --limit-burst 5 -j MARK --set-xmark 0x0/0x80000",
        "-m mark --mark 0x80000/0x80000 -j DROP",
    ]
    assert rules(*protocol(TCP), RateLimit(1, 86400, 5), LogPacket("x: ")) == [
        '-p 6 -m limit --limit 1/day --limit-burst 4 -j LOG --log-level 6 --log-prefix "x: "'  # a word of 32 bits
    ]
    with pytest.raises(CannotExpress, match="rates above 10000"):
        rules(RateLimit(10001, 1, 5), DROP)
    with pytest.raises(CannotExpress, match="inverted"):
        rules(*protocol(TCP), RateLimit(100, over=True), DROP)


def test_log_prefixes_are_cut() -> None:
    (line,) = rules(LogPacket("calico-packet default gnp a-very-long-name: "))
    assert line.endswith('--log-prefix "calico-packet default gnp a: "')


@pytest.mark.parametrize(
    "expressions",
    [
        (UnknownExpression("x", b""),),
        (Immediate("goto", "x"),),
        (MetaLoad("mark"), Compare("eq", b"\1\0\0\0"), DROP),
        (PayloadLoad("transport", 13, 1), Compare("eq", b"\2"), DROP),
        (MetaLoad("iifname"), Compare("eq", interface_key("cali+")), DROP),
        (PayloadLoad("network", 12, 4), SetLookup("nowhere"), DROP),
    ],
)
def test_what_cannot_be_expressed_is_refused(expressions: tuple[Expression, ...]) -> None:
    with pytest.raises(CannotExpress):
        rules(*expressions)
