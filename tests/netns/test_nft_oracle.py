"""nft's own program as the judge of our messages: what it writes we read, what we write it lists."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    RETURN,
    AddressInNet,
    AddressInSet,
    AtInterface,
    ConnectionIs,
    ConnectionLimit,
    Dispatch,
    HasMark,
    IcmpType,
    IsProtocol,
    IsTranslated,
    LogPacket,
    NftRule,
    NoTrack,
    PortIn,
    PortInSet,
    RateLimit,
    Reject,
    SetMark,
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
    NftSet,
    NftTable,
    Operation,
    TableId,
    Tables,
    mirror,
)
from tests.netns.namespaces import Namespace, namespace
from tests.unit.netfilter.rules import rule

pytestmark = pytest.mark.netns

T4, T6 = TableId("ip", "calico-policy"), TableId("ip6", "calico-policy")
TCP, ICMP, UDP = IsProtocol(6), IsProtocol(1), IsProtocol(17)


def port(number: int) -> bytes:
    return number.to_bytes(2, "big")


# as nft prints it -> what we write
RULES: dict[str, NftRule] = {
    "ct state established,related accept": rule(ConnectionIs(("established", "related")), ACCEPT),
    "ct state invalid drop": rule(ConnectionIs(("invalid",)), DROP),
    "ct status dnat accept": rule(IsTranslated(), ACCEPT),
    "iifname vmap @from": rule(Dispatch(False, "from")),
    'iifname "cali*" drop': rule(AtInterface(False, "cali", is_prefix=True), DROP),
    'oifname "eth0" drop': rule(AtInterface(True, "eth0"), DROP),
    "tcp dport 80 ip saddr @s-a accept": rule(TCP, PortIn(False, 80, 80), AddressInSet(True, "s-a"), ACCEPT),
    "tcp dport 80-90 accept": rule(TCP, PortIn(False, 80, 90), ACCEPT),
    "tcp dport != 80-90 accept": rule(TCP, PortIn(False, 80, 90, negated=True), ACCEPT),
    "tcp dport @ports return": rule(TCP, PortInSet(False, "ports"), RETURN),
    "tcp dport != @ranges accept": rule(TCP, PortInSet(False, "ranges", negated=True), ACCEPT),
    "ip daddr . meta l4proto . th dport @s-p accept": rule(AddressInSet(False, "s-p", with_port=True), ACCEPT),
    "ip saddr 10.0.0.0/24 accept": rule(AddressInNet(True, bytes((10, 0, 0, 0)), 24), ACCEPT),
    "ip saddr != 10.0.0.0/21 accept": rule(AddressInNet(True, bytes((10, 0, 0, 0)), 21, negated=True), ACCEPT),
    "ip saddr @s-n accept": rule(AddressInSet(True, "s-n"), ACCEPT),
    "icmp type echo-request icmp code net-unreachable accept": rule(ICMP, IcmpType(8, 8, 0), ACCEPT),
    "icmp type != echo-request accept": rule(ICMP, IcmpType(8, 8, negated=True), ACCEPT),
    "meta mark set meta mark | 0x00010000": rule(SetMark(0x10000)),
    "meta mark set meta mark & 0xfffeffff": rule(SetMark(0x10000, cleared=True)),
    "meta mark & 0x00010000 != 0x00000000 return": rule(HasMark(0x10000), RETURN),
    "meta mark & 0x00010000 == 0x00000000 return": rule(HasMark(0x10000, negated=True), RETURN),
    "limit rate over 500/second burst 20 packets drop": rule(RateLimit(500, 1, 20, over=True), DROP),
    'limit rate 10/minute burst 7 packets log prefix "x y: " level info': rule(
        RateLimit(10, 60, 7), LogPacket("x y: ")
    ),
    'log prefix "x y" group 61789': rule(LogPacket("x y", group=61789)),
    "meta l4proto tcp ct count over 10 reject with tcp reset": rule(TCP, ConnectionLimit(10), Reject(with_reset=True)),
    "reject": rule(Reject()),
    "fib saddr . mark . iif oif 0 drop": rule(SourceIsElsewhere(), DROP),
    "udp dport 4789 notrack": rule(UDP, PortIn(False, 4789, 4789), NoTrack()),
    'jump class comment "policy: x"': rule(jump("class"), comment="policy: x"),
}
SETS = (
    NftSet("s-a", ("ipv4_addr",)),
    NftSet("s-n", ("ipv4_addr",), interval=True),
    NftSet("s-p", ("ipv4_addr", "inet_proto", "inet_service")),
    NftSet("ports", ("inet_service",)),
    NftSet("ranges", ("inet_service",), interval=True),
)
FROM = NftSet("from", ("ifname",), verdicts=True)
ELEMENTS = {
    "s-a": frozenset((bytes((10, 0, 0, 1)),)),
    "s-n": frozenset((bytes((10, 1, 0, 0, 10, 1, 255, 255)), bytes((255, 0, 0, 0, 255, 255, 255, 255)))),
    "s-p": frozenset((bytes((10, 0, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0)),)),
    "ports": frozenset((port(80),)),
    "ranges": frozenset((port(80) + port(90), port(65000) + port(65535))),
}
VERDICTS = {b"cali1".ljust(16, b"\0"): jump("class")}

LISTED = """table ip calico-policy {
	set s-a {
		type ipv4_addr
		elements = { 10.0.0.1 }
	}

	set s-n {
		type ipv4_addr
		flags interval
		elements = { 10.1.0.0/16, 255.0.0.0/8 }
	}

	set s-p {
		type ipv4_addr . inet_proto . inet_service
		elements = { 10.0.0.1 . tcp . 80 }
	}

	set ports {
		type inet_service
		elements = { 80 }
	}

	set ranges {
		type inet_service
		flags interval
		elements = { 80-90, 65000-65535 }
	}

	map from {
		type ifname : verdict
		elements = { "cali1" : jump class }
	}

	chain class {
		drop
	}

	chain rules {
		type filter hook prerouting priority filter + 2; policy accept;
RULES	}
}
""".replace("RULES", "".join(f"\t\t{text}\n" for text in RULES))


def _operations() -> list[Operation]:
    return [
        AddTable(T4),
        *(AddSet(T4, spec) for spec in SETS),
        *(AddElements(T4, spec, ELEMENTS[spec.name]) for spec in SETS),
        AddSet(T4, FROM),
        AddChain(T4, "class"),
        AddRules(T4, "class", (rule(DROP),)),
        AddVerdicts(T4, FROM, VERDICTS),
        AddChain(T4, "rules", BaseHook("prerouting", 2)),
        AddRules(T4, "rules", tuple(RULES.values())),
    ]


def _write() -> None:
    with NfTables() as real:
        real.apply(_operations(), Deadline.after(10))


def _read() -> NftTable | None:
    with NfTables() as real:
        tables: Tables = {}
        mirror(tables, _operations())
        return real.read_table(T4, Deadline.after(10), (tables[T4],))


def _list(ns: Namespace) -> str:
    return ns.run("nft", "list", "ruleset").stdout


def _plain(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _run_script(ns: Namespace, script: str) -> None:
    import subprocess

    done = subprocess.run(
        ["nsenter", f"--net={ns.path}", "nft", "-f", "-"], input=script, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


def test_nft_lists_what_we_write() -> None:
    with namespace("nft") as made:
        made.call(_write)
        # nft spells a rejection out where its listing would be read as another family's
        listed = _list(made).replace("reject with icmp port-unreachable", "reject")
        assert _plain(listed) == _plain(LISTED)


def test_we_read_what_nft_writes() -> None:
    with namespace("nft") as ours, namespace("nft") as nfts:
        ours.call(_write)
        _run_script(nfts, LISTED)
        expected: Any = ours.call(_read)
        found: Any = nfts.call(_read)
        assert found.sets == expected.sets
        assert found.elements == expected.elements and found.verdicts == expected.verdicts
        for there, wanted in zip(found.chains["rules"].rules, expected.chains["rules"].rules, strict=True):
            assert there == wanted
        assert found == expected
