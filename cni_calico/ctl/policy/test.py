"""``calicoctl policy test``: whether policies allow and deny what files of expectations say.

Rule: labels stand for every workload that has them, and an expectation must hold for each; without a datastore labels
that no workload has stand for one that is made for them. What cannot be judged has failed.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from cni_calico.ctl.opening import open_session
from cni_calico.ctl.output.escaping import shown_lines
from cni_calico.ctl.output.values import TABLE, render_value
from cni_calico.ctl.policy.at_hosts.expected import ExpectedHosts
from cni_calico.ctl.policy.at_hosts.outcomes import HostAnswer
from cni_calico.ctl.policy.changed_rows import describe_decider, describe_decision
from cni_calico.ctl.policy.expectations import Expectation, ExpectedEnd, parse_expectations
from cni_calico.ctl.policy.flow_ends import Uncertain
from cni_calico.ctl.policy.proposed import ProposedChange, documents_of, read_proposed
from cni_calico.ctl.policy.records import workload_name
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, WorkloadEndpoint
from cni_calico.policy.judge.workloads import WorkloadJudge
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Direction, Packed

FAILED, TROUBLE = 1, 2
_ECHO = {4: (8, 0), 6: (128, 0)}
_MADE = ip_network("100.64.0.0/10")  # of workloads that are made for labels


@dataclass(frozen=True, slots=True)
class CheckedExpectation:
    """``whys``: for whom it does not hold; () if it holds."""

    expected: Expectation
    source: str
    whys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JudgedEnd:
    key: ResourceKey | None
    name: str
    addresses: tuple[Packed, ...]


def test(arguments: Namespace, environ: Mapping[str, str]) -> str:
    """Raises InvalidConfig, and CommandFailed with what does not hold."""
    expected = [
        (source, one)
        for name in arguments.files
        for source, document in documents_of(name, "")
        for one in parse_expectations(document, source)
    ]
    if not expected:
        raise InvalidConfig(f"cannot test: {', '.join(arguments.files)} has no expectations")
    if arguments.alone:
        if not arguments.overlay:
            raise InvalidConfig("cannot test: --alone has no policies without --with FILE or DIR")
        ends = [end for _, one in expected for end in (one.source, one.destination)]
        change = read_proposed(None, arguments, lambda records: made_for(ends, records))
    elif arguments.endpoints:
        raise InvalidConfig("cannot test: --endpoints is for --alone; without it the datastore has the endpoints")
    else:
        with open_session(arguments, environ) as session:
            change = read_proposed(session, arguments)
    tester = ExpectationTester(change)
    tested = [CheckedExpectation(one, source, tuple(tester.whys(one))) for source, one in expected]
    failed = [one for one in tested if one.whys]
    text = _render(tested, failed, change.uncertain, arguments.output)
    if not failed and not change.uncertain:
        return text
    raise CommandFailed("", output=text, status=TROUBLE if change.uncertain else FAILED)


def made_for(ends: list[ExpectedEnd], records: Mapping[ResourceKey, Any]) -> dict[ResourceKey, WorkloadEndpoint]:
    """A workload for each end that names labels which none of the records has."""
    found: dict[ResourceKey, WorkloadEndpoint] = {}
    addresses = _MADE.hosts()
    there = [one for one in records.values() if isinstance(one, WorkloadEndpoint)]
    for end in dict.fromkeys(ends):
        if end.address is not None or end.pod or any(_has(end, one) for one in there):
            continue
        name = f"expected-{len(found)}"
        metadata = Metadata(name, end.namespace, labels=dict(end.labels))
        account = [f"ksa.{end.namespace}.{end.service_account}"] if end.service_account else []
        found[ResourceKey("WorkloadEndpoint", name, end.namespace)] = WorkloadEndpoint(
            metadata,
            orchestrator="k8s",
            node="made",
            pod=end.shown.partition("/")[2],
            endpoint="eth0",
            interface_name=f"cali{len(found)}",
            ip_networks=(ip_network(str(next(addresses))),),
            profiles=(f"kns.{end.namespace}", *account),
            service_account=end.service_account,
        )
    return found


def _has(end: ExpectedEnd, record: WorkloadEndpoint) -> bool:
    labels = record.metadata.labels
    return (
        record.metadata.namespace == end.namespace
        and all(labels.get(name) == value for name, value in end.labels)
        and end.service_account in ("", record.service_account)
    )


EndAt = tuple[JudgedEnd, Packed]


class ExpectationTester:
    """Judges expectations by the state after a change."""

    def __init__(self, change: ProposedChange) -> None:
        self._judge = WorkloadJudge(change.after)
        self._hosts: ExpectedHosts | None = None
        if change.hosts is not None:
            nodes = {key: record.node for key, record in change.records.endpoints.items()}
            self._hosts = ExpectedHosts(change.hosts, change.after, self._judge.judge, nodes)
        self._ends = change.after.endpoints
        self._records = change.records.endpoints
        self._at = {one: key for key, its in change.after.endpoints.items() for one in its.addresses}
        self._named: dict[tuple[str, str], list[ResourceKey]] = {}
        self._labelled: dict[tuple[str, str, str], list[ResourceKey]] = {}  # namespace, label and value; "": all of it
        for key, record in self._records.items():
            self._named.setdefault((key.namespace, workload_name(key, record)), []).append(key)
            for pair in (("", ""), *record.metadata.labels.items()):
                self._labelled.setdefault((key.namespace, *pair), []).append(key)
        self._found: dict[ExpectedEnd, list[JudgedEnd]] = {}

    def whys(self, expected: Expectation) -> Iterator[str]:
        """For whom it does not hold, and why."""
        sides = self._of(expected.source), self._of(expected.destination)
        for end, its in zip((expected.source, expected.destination), sides, strict=True):
            if not its:
                yield f"there is no workload {end.shown}"
                return
        tried = False
        for source in sides[0]:
            for destination in sides[1]:
                for one in source.addresses:
                    for other in destination.addresses:
                        if len(one) == len(other):
                            tried = True
                            why = self._why(expected, (source, one), (destination, other))
                            if why:
                                yield f"{source.name} -> {destination.name}: {why}"
        if not tried:
            yield "the ends have no IP family in common"

    def _of(self, end: ExpectedEnd) -> list[JudgedEnd]:
        known = self._found.get(end)
        if known is None:
            known = self._found[end] = self._look(end)
        return known

    def _look(self, end: ExpectedEnd) -> list[JudgedEnd]:
        if end.address is not None:
            return [JudgedEnd(self._at.get(end.address.packed), str(end.address), (end.address.packed,))]
        if end.pod:
            keys = self._named.get((end.namespace, end.pod), [])
        else:
            labels = [(end.namespace, *pair) for pair in end.labels] or [(end.namespace, "", "")]
            fewest = min((self._labelled.get(one, []) for one in labels), key=len)
            keys = [key for key in fewest if _has(end, self._records[key])]
        return [
            JudgedEnd(key, f"{key.namespace}/{workload_name(key, self._records[key])}", self._ends[key].addresses)
            for key in keys
            if key in self._ends and self._ends[key].addresses
        ]

    def _why(self, expected: Expectation, source: EndAt, destination: EndAt) -> str:
        family = 4 if len(source[1]) == 4 else 6
        protocol = ICMP[family] if expected.protocol in ICMP.values() else expected.protocol
        point = (expected.port, expected.source_port) if protocol in WITH_PORTS else (0, 0)
        if protocol == ICMP[family]:
            point = expected.icmp or _ECHO[family]
        sides: tuple[tuple[Direction, ResourceKey | None], ...] = (
            ("egress", source[0].key),
            ("ingress", destination[0].key),
        )
        judged: list[tuple[bool, str]] = []  # whether it is denied, and in words
        for direction, key in sides:
            if key is not None:
                cell = self._judge.cell(key, direction, source[1], destination[1], protocol)
                one = cell.find(*point)
                is_denied = one.decision is None or one.decision.verdict == "Deny"
                judged.append((is_denied, f"{direction} {describe_decision(one)}"))
        if self._hosts is not None:
            asked = (source[0].key, source[1]), (destination[0].key, destination[1])
            try:
                host = self._hosts.judge(*asked, protocol, point)
            except Uncertain as e:
                return str(e)
            if host is not None and (host.by is not None or not judged):
                judged.append((host.denied, _describe_host(host)))
        if not judged:
            return "neither end is a workload, or a host with host endpoints: nothing here decides about it"
        denying = [one for one in judged if one[0]]
        if bool(denying) != expected.allowed:
            return ""
        return "; ".join(text for _, text in (denying[:1] or judged))


def _describe_host(host: HostAnswer) -> str:
    verdict = "DENIED" if host.denied else "allowed"
    if host.by is None:
        return f"{verdict}: no host endpoint on its way decides about it"
    return f"{verdict} {describe_decider(host.by)}, at {host.at}"


# -- out --------------------------------------------------------------------------------------------------------------


def _render(
    tested: list[CheckedExpectation], failed: list[CheckedExpectation], uncertain: list[str], output: str
) -> str:
    if output != TABLE:
        document = {
            "passed": len(tested) - len(failed),
            "failed": [_document(one) for one in failed],
            "uncertain": uncertain,
        }
        return render_value(document, output)
    lines = []
    for one in failed:
        named = f" ({one.expected.name})" if one.expected.name else ""
        lines.append(f"{one.source}: {one.expected.shown}{named}: expected {_word(one.expected)}")
        lines += [f"    {why}" for why in one.whys[:5]]
        lines += [f"    ... and {len(one.whys) - 5} more"] if len(one.whys) > 5 else []
    lines += [f"Uncertain: {one}" for one in uncertain]
    counted = f"{len(tested) - len(failed)} of {len(tested)} expectations hold."
    return shown_lines("\n".join([*lines, *([""] if lines else []), counted]) + "\n")


def _word(expected: Expectation) -> str:
    return "allowed" if expected.allowed else "denied"


def _document(one: CheckedExpectation) -> dict[str, Any]:
    expected = one.expected
    return {
        **{"file": one.source, "name": expected.name, "connection": expected.shown},
        **{"expected": _word(expected), "why": list(one.whys)},
    }
