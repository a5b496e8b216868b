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
    Bitwise,
    Compare,
    CompareRange,
    ConnectionLimit,
    CtLoad,
    Expression,
    FibSourceInterface,
    LogPacket,
    MetaLoad,
    MetaStore,
    NftRule,
    NoTrack,
    PayloadLoad,
    RateLimit,
    RejectPacket,
    SetLookup,
    host32,
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
)
from tests.netns.namespaces import Namespace, namespace

pytestmark = pytest.mark.netns

T4, T6 = TableId("ip", "calico-policy"), TableId("ip6", "calico-policy")
TCP = (MetaLoad("l4proto"), Compare("eq", b"\x06"))
DPORT = PayloadLoad("transport", 2, 2)
SADDR = PayloadLoad("network", 12, 4)
STATE = CtLoad("state")
MARK = MetaLoad("mark")


def port(number: int) -> bytes:
    return number.to_bytes(2, "big")


def state(bits: int) -> tuple[Expression, ...]:
    return (STATE, Bitwise(host32(bits), host32(0)), Compare("neq", host32(0)))


# as nft prints it -> what we write
RULES: dict[str, tuple[Expression, ...]] = {
    "ct state established,related accept": (*state(6), ACCEPT),
    "ct state invalid drop": (*state(1), DROP),
    "iifname vmap @from": (MetaLoad("iifname"), SetLookup("from", verdict=True)),
    'iifname "cali*" drop': (MetaLoad("iifname"), Compare("eq", b"cali"), DROP),
    'oifname "eth0" drop': (MetaLoad("oifname"), Compare("eq", b"eth0".ljust(16, b"\0")), DROP),
    "tcp dport 80 ip saddr @s-a accept": (*TCP, DPORT, Compare("eq", port(80)), SADDR, SetLookup("s-a"), ACCEPT),
    "tcp dport 80-90 accept": (*TCP, DPORT, Compare("gte", port(80)), Compare("lte", port(90)), ACCEPT),
    "tcp dport != 80-90 accept": (*TCP, DPORT, CompareRange("neq", port(80), port(90)), ACCEPT),
    "tcp dport @ports return": (*TCP, DPORT, SetLookup("ports"), RETURN),
    "tcp dport != @ranges accept": (*TCP, DPORT, SetLookup("ranges", invert=True), ACCEPT),
    "ip daddr . meta l4proto . th dport @s-p accept": (
        PayloadLoad("network", 16, 4),
        MetaLoad("l4proto", 9),
        PayloadLoad("transport", 2, 2, 10),
        SetLookup("s-p"),
        ACCEPT,
    ),
    "ip saddr 10.0.0.0/24 accept": (PayloadLoad("network", 12, 3), Compare("eq", bytes((10, 0, 0))), ACCEPT),
    "ip saddr != 10.0.0.0/21 accept": (
        SADDR,
        Bitwise(bytes((255, 255, 248, 0)), bytes(4)),
        Compare("neq", bytes((10, 0, 0, 0))),
        ACCEPT,
    ),
    "ip saddr @s-n accept": (SADDR, SetLookup("s-n"), ACCEPT),
    "icmp type echo-request icmp code net-unreachable accept": (
        MetaLoad("l4proto"),
        Compare("eq", b"\1"),
        PayloadLoad("transport", 0, 2),
        Compare("eq", b"\x08\0"),
        ACCEPT,
    ),
    "meta mark set meta mark | 0x00010000": (MARK, Bitwise(host32(0xFFFEFFFF), host32(0x10000)), MetaStore("mark")),
    "meta mark set meta mark & 0xfffeffff": (MARK, Bitwise(host32(0xFFFEFFFF), host32(0)), MetaStore("mark")),
    "meta mark & 0x00010000 == 0x00010000 return": (
        MARK,
        Bitwise(host32(0x10000), host32(0)),
        Compare("eq", host32(0x10000)),
        RETURN,
    ),
    "limit rate over 500/second burst 20 packets drop": (RateLimit(500, 1, 20, over=True), DROP),
    'limit rate 10/minute burst 7 packets log prefix "x y: " level info': (RateLimit(10, 60, 7), LogPacket("x y: ")),
    'log prefix "x y" group 61789': (LogPacket("x y", group=61789),),
    "meta l4proto tcp ct count over 10 reject with tcp reset": (*TCP, ConnectionLimit(10), RejectPacket()),
    "reject": (RejectPacket(3),),
    "fib saddr . mark . iif oif 0 drop": (FibSourceInterface(), Compare("eq", host32(0)), DROP),
    "udp dport 4789 notrack": (
        MetaLoad("l4proto"),
        Compare("eq", b"\x11"),
        DPORT,
        Compare("eq", port(4789)),
        NoTrack(),
    ),
    'jump class comment "policy: x"': (jump("class"),),
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
    rules = tuple(NftRule(expressions, "policy: x" if "comment" in text else "") for text, expressions in RULES.items())
    return [
        AddTable(T4),
        *(AddSet(T4, spec) for spec in SETS),
        *(AddElements(T4, spec, ELEMENTS[spec.name]) for spec in SETS),
        AddSet(T4, FROM),
        AddChain(T4, "class"),
        AddRules(T4, "class", (NftRule((DROP,)),)),
        AddVerdicts(T4, FROM, VERDICTS),
        AddChain(T4, "rules", BaseHook("prerouting", 2)),
        AddRules(T4, "rules", rules),
    ]


def _write() -> None:
    with NfTables() as real:
        real.apply(_operations(), Deadline.after(10))


def _read() -> NftTable | None:
    with NfTables() as real:
        return real.read_table(T4, Deadline.after(10))


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
