"""``calicoctl flows``: what its options ask for, and what a line, a document and the end say."""

from __future__ import annotations

import json
from argparse import Namespace
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico.ctl.command_line.arguments import parse_arguments
from cni_calico.ctl.flows.show import (
    FlowPrinter,
    describe_kept,
    describe_losses,
    describe_sent,
    describe_steps,
    explain_command,
    parse_query_arguments,
    row_of,
)
from cni_calico.ctl.main import run
from cni_calico.ctl.output.escaping import shown
from cni_calico.ctl.policy.seen import describe_seen
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.flows.query import Condition, FlowQuery
from cni_calico.policy.explain import Packet
from tests.fakes.recorder import ScriptedRecorder

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
POD = {"kind": "pod", "namespace": "shop", "name": "web", "ip": "10.65.0.9", "port": 40000}
DOCUMENT: dict[str, Any] = {
    "start": "2026-11-26T12:00:00.000+00:00",
    "last": "2026-11-26T12:00:01.000+00:00",
    "verdict": "denied",
    "connections": 1,
    "source": POD,
    "destination": {"kind": "address", "ip": "192.0.2.7", "port": 443, "asked": None},
    "protocol": "tcp",
    "decided": [{"said": "egress: shop/a rule 0"}, {"said": "ingress: end of tier default (policies: shop/b)"}],
}


def query(*words: str) -> FlowQuery:
    return parse_query_arguments(parse_arguments(["flows", *words], "calicoctl"), NOW)


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ((), FlowQuery(last=20)),
        (("--last", "5"), FlowQuery(last=5)),
        (("-f",), FlowQuery(follow=True)),
        (("--aggregate",), FlowQuery(aggregate=True)),
        (("--since", "5m"), FlowQuery(since=NOW.timestamp() - 300)),
        (("--until", "2026-11-26T11:00:00Z"), FlowQuery(until=NOW.timestamp() - 3600)),
        (("--first", "5"), FlowQuery(first=5)),
        (("--first", "1", "--since", "5m"), FlowQuery(since=NOW.timestamp() - 300, first=1)),
        (("--from-label", "app=web", "--not", "--service", "10.96.0.1"), FlowQuery((
            Condition("from-label", ("app=web",)), Condition("service", ("10.96.0.1",), negated=True),
        ), 20)),
        (("--port", "1", "--port", "2"), FlowQuery((Condition("port", ("1", "2")),), 20)),
        (
            ("--not", "--port", "1", "--from-pod", "a", "--verdict", "DROPPED"),
            FlowQuery(
                (
                    Condition("port", ("1",), negated=True),
                    Condition("from", ("a",)),
                    Condition("verdict", ("denied",)),
                ),
                20,
            ),
        ),
        (("--verdict", "audit", "--port", "1", "--staged"), FlowQuery((
            Condition("verdict", ("allowed",)), Condition("staged", ("denied",)), Condition("port", ("1",)),
        ), 20, staged=True)),
        (("-n", "shop", "--tier", "t", "--policy", "a/b", "--ip", "::1"), FlowQuery((
            Condition("namespace", ("shop",)), Condition("tier", ("t",)), Condition("policy", ("a/b",)),
            Condition("ip", ("::1",)),
        ), 20)),
    ],
)  # fmt: skip
def test_options(words: tuple[str, ...], asked: FlowQuery) -> None:
    assert query(*words) == asked


@pytest.mark.parametrize(
    "words",
    [
        ("--since", "yesterday"),
        ("--last", "-1"),
        ("--not",),
        ("--port", "1", "--not"),
        ("--first", "-1"),
        ("--first", "1", "--last", "1"),
        ("--first", "1", "-f"),
        ("--first", "1", "--aggregate"),
        ("--since", "5m", "--until", "1h"),
        ("-f", "--until", "5m"),
        ("-f", "--aggregate"),
    ],
)
def test_wrong_options(words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig):
        query(*words)


@pytest.mark.parametrize(
    ("option", "given", "asked"),
    [
        ("--protocol", "6", "tcp"), ("--protocol", "ICMPv6", "icmp6"), ("--protocol", "47", "47"),
        ("--port", "053", "53"),
        ("--ip", "FD00:0::1", "fd00::1"), ("--from", "fd00:0:0::1", "fd00::1"), ("--to", "shop/", "shop/"),
    ],
)  # fmt: skip
def test_a_value_is_asked_for_as_flows_have_it(option: str, given: str, asked: str) -> None:
    [condition] = query(option, given).conditions
    assert condition.values == (asked,)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--port 99999", "argument --port: expected a number up to 65535, got '99999'"),
        ("--port http", "expected a number up to 65535, got 'http'"),
        ("--protocol tpc", "expected icmp, tcp, udp, icmp6, sctp or a number up to 255, got 'tpc'"),
        ("--protocol 256", "or a number up to 255, got '256'"),
        ("--ip 10.65.0.0/16", "expected one address, not a network or a part, got '10.65.0.0/16'"),
        ("--from a/b/c", "expected [NS/]POD|ADDRESS, got 'a/b/c'"),
        ("--policy a/b/c", "expected [NS/]NAME, got 'a/b/c'"),
        ("--label =x", "expected KEY[=VALUE], got '=x'"),
        ("--to=", "expected [NS/]POD|ADDRESS, got ''"),
        ("--tier=", "expected NAME, got ''"),
    ],
)
def test_what_no_flow_can_meet_is_refused(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It looked as if there were none, also to --fail-if-denied."""
    assert run(["flows", *words.split()], {}) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--verdict pending", "expected allowed or denied (also FORWARDED, DROPPED), or AUDIT"),
        ("--verdict=", "expected allowed or denied"),
        ("--not --verdict AUDIT", "goes with no other"),
        ("--verdict AUDIT --verdict denied", "goes with no other"),
        ("--verdict denied --verdict AUDIT", "goes with no other"),
        ("--verdict AUDIT --staged allowed", "goes with no other"),
        ("--staged changed --verdict AUDIT", "goes with no other"),
    ],
)
def test_a_verdict_that_there_is_not(words: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not no flows, which would look like good news."""
    assert run(["flows", *words.split()], {}) == 1
    assert why in capsys.readouterr().err


def test_where_it_was_sent() -> None:
    service = {"namespace": "shop", "name": "db\x1b", "port": "pg"}
    sent = {**DOCUMENT["destination"], "asked": {"ip": "10.96.0.1", "port": 443}}
    assert list(describe_sent(DOCUMENT)) == []
    assert list(describe_sent({**DOCUMENT, "destination": sent})) == ["sent to 10.96.0.1:443"]
    named = {**sent, "asked": {"ip": "fd00::1", "port": 443}, "service": service}
    assert list(describe_sent({**DOCUMENT, "destination": named})) == [r"sent to service shop/db\x1b, [fd00::1]:443"]


def test_a_line() -> None:
    row = row_of(DOCUMENT)
    assert row[1:] == ("shop/web", "192.0.2.7", "tcp/443", "DENIED", "ingress: end of tier default (policies: shop/b)")
    allowed = row_of({**DOCUMENT, "verdict": "allowed", "connections": 7}, wide=True)
    assert allowed[1] == "shop/web (10.65.0.9)"
    assert allowed[5] == "7 x egress: shop/a rule 0, ingress: end of tier default (policies: shop/b)"
    ping = {**DOCUMENT, "protocol": "icmp", "icmp": {"type": 8, "code": 0}, "destination": {"ip": "192.0.2.7"}}
    assert row_of(ping)[3] == "icmp/type 8"
    many = {"kind": "networkset", "namespace": "shop", "name": "partners", "ip": "0.0.0.0"}
    assert row_of({**DOCUMENT, "source": many}, wide=True)[1] == "shop/partners"
    assert explain_command({**DOCUMENT, "source": many}).startswith(
        "calicoctl policy explain --from ADDRESS-IN-shop/partners --to 192.0.2.7 "
    )
    partners = {"namespace": "shop", "name": "partners", "labels": {}}
    assert row_of({**DOCUMENT, "destination": {"ip": "192.0.2.7", "set": partners}})[2] == "192.0.2.7 (shop/partners)"


def test_a_hostile_name_is_escaped() -> None:
    row = row_of({**DOCUMENT, "source": {**POD, "name": "a\x1b[2Jb\u202e\n"}})
    assert row[1] == "shop/a\\x1b[2Jb\\x202e\\x0a" and shown("\t") == "\\x09"


def test_the_command_that_explains() -> None:
    said = "calicoctl policy explain --from shop/web --to 192.0.2.7 --protocol tcp --port 443"
    assert explain_command(DOCUMENT) == said


def printed(*words: str, documents: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    said: list[str] = []
    noted: list[str] = []
    arguments: Namespace = parse_arguments(["flows", *words], "calicoctl")
    arguments.say, arguments.note, arguments.warn = said.append, noted.append, noted.append
    printer = FlowPrinter(arguments)
    for document in documents:
        printer.receive(document)
    rest = printer.rest()
    return [*said, *([rest] if rest else [])], noted


def test_formats() -> None:
    lost = {"from": 0, "to": 1, "source": "nflog-denied", "why": "rate", "count": 3}
    documents = [DOCUMENT, {"lost": 2, "why": "this reader was too slow"}, {"end": True, "lost": [lost]}]
    lines, noted = printed("-v", documents=documents)
    assert lines[0].startswith("TIME") and "DENIED" in lines[1] and "policy explain" in lines[-1]
    assert [line.strip() for line in lines[2:-1]] == [DOCUMENT["decided"][0]["said"]]
    assert noted[0] == "LOST EVENTS: 2: this reader was too slow" and noted[-1] == "1 flow"
    assert "3 reports of what was denied" in noted[1]
    assert [json.loads(text) for text in printed("-o", "jsonl", documents=documents)[0]] == [DOCUMENT]
    assert [json.loads(text) for text in printed("-o", "json", documents=documents)[0]] == [[DOCUMENT]]
    assert "verdict: denied" in printed("-o", "yaml", documents=documents)[0][0]
    assert printed("-f", "-o", "yaml", documents=documents)[0][0].startswith("---\n")
    (whole,) = printed("-o", "dict", documents=documents)[0]
    lines = whole.splitlines()
    assert lines[0] == "start: 2026-11-26T12:00:00.000+00:00" and "destination.asked:" in lines
    assert "source.name: web" in lines and "decided[1].said: ingress: end of tier default (policies: shop/b)" in lines
    (found,) = printed("-o", "jsonpath={[*].source.name}", documents=[DOCUMENT, DOCUMENT, documents[-1]])[0]
    assert found.split() == ["web", "web"]
    each, _ = printed("-f", "-o", "jsonpath={.source.ip}", documents=[DOCUMENT, DOCUMENT])
    assert [text.strip() for text in each] == ["10.65.0.9"] * 2
    with pytest.raises(CalicoError, match="xml"):
        parse_arguments(["flows", "-o", "xml"], "calicoctl")


def test_the_steps_of_both_sides() -> None:
    """What the row does not say: who let a denied one out, and which tiers passed it on."""
    out = {"direction": "egress", "action": "Allow", "said": "egress: profile kns.shop rule 0", "passed": []}
    into = {"direction": "ingress", "action": "Deny", "said": "ingress: shop/db rule 1"}
    step = {"tier": "first", "said": "q rule 0 passes\x1b on"}
    denied = {**DOCUMENT, "decided": [out, {**into, "passed": [step]}]}
    assert list(describe_steps(denied)) == [out["said"], "q rule 0 passes\\x1b on, ingress: shop/db rule 1"]
    allowed = {**DOCUMENT, "verdict": "allowed", "decided": [{**out, "passed": [step]}, into]}
    assert list(describe_steps(allowed)) == ["q rule 0 passes\\x1b on, egress: profile kns.shop rule 0"]


def test_losses_in_words() -> None:
    away = {"from": 0, "to": 60, "source": "nflog-allowed", "why": "recorder", "count": None}
    ends = {"from": 0, "to": 60, "source": "destroy", "why": "overrun", "count": None}
    first, second = describe_losses([away, ends])
    assert "there was no recorder" in first and "ends of connections were lost" in second


def test_what_is_only_kept_added_up_is_named() -> None:
    kept = {"flows": NOW.timestamp() - 3600, "sums": NOW.timestamp() - 7200}
    said = describe_kept(query("--since", "100m"), kept)
    assert said.startswith("connections before ") and said.endswith("--aggregate shows them")
    for words in ((), ("--since", "30m"), ("--since", "100m", "--aggregate"), ("--last", "5")):
        assert describe_kept(query(*words), kept) == ""
    for there in ({}, {"flows": None, "sums": None}, {"flows": 5.0, "sums": None}, {"flows": 5.0, "sums": 6.0}):
        assert describe_kept(query("--since", "1970-01-01T00:00:01Z"), there) == ""
    assert describe_kept(query("--since", "100m"), {"flows": 5.0, "sums": 1.0}) == ""


def test_without_a_recorder(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["flows"], {"CALICO_RUN_DIR": str(tmp_path)}) == 1
    assert "FELIX_FLOWS" in capsys.readouterr().err


def test_a_recorder_of_what_is_denied_says_so_to_who_asks_for_more(
    tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"CALICO_RUN_DIR": str(tmp_path)}
    recorder = ScriptedRecorder(str(tmp_path))
    try:
        for only_denied in (False, True):
            recorder.only_denied = only_denied
            assert run(["flows", "--host"], environ) == 0
            said = "node worker-1 records only what is denied; with FELIX_FLOWS=Enabled also what is let through"
            assert (said in capsys.readouterr().err) == only_denied
            assert run(["flows", "--host", "--verdict", "denied"], environ) == 0
            assert said not in capsys.readouterr().err
        monkeypatch.setenv("CALICO_RUN_DIR", str(tmp_path))
        seen = describe_seen(Packet(ip_address("10.0.0.1"), ip_address("10.0.0.2"), 6, 1, 80))
        assert seen.endswith("nothing denied; what is let through is not recorded.")
    finally:
        recorder.close()
