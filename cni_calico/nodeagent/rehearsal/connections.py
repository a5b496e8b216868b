"""Connections of this node's workloads that would not be allowed again: conntrack's, and those that were recorded.

Rule: each is judged as it is where packets are filtered, by the policies that would be in force, at the ends that are
workloads of this node. A connection that is there goes on when policies change; what counts is that one like it would
be denied. What cannot be judged (an address that was recorded as a network, host endpoints) is counted, never passed
over.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import chain
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.flows.client import RecorderSilent, ask
from cni_calico.flows.names import FOLDED
from cni_calico.flows.packets import parts_of
from cni_calico.flows.query import ALLOWED, ONLY_DENIED, PROTOCOLS, FlowQuery
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.netlink.ended import TrackedConnection, read_tracked
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.nodeagent.rehearsal.found import DeniedConnection, Rehearsed
from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.workloads import WorkloadJudge
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Direction, Packed, Wanted, WantedEndpoint

_DAY_S = 24 * 3600.0
_NUMBERS = {name: number for number, name in PROTOCOLS.items()}
_TRACKED = "conntrack"
_SOURCE_PORT = 49152  # where none was recorded
_HOSTS = "connections of the host itself are not judged: there are host endpoints, and interfaces decide which"


class ConnectionJudge:
    """Judges by one state of policy. ``own``: this host's addresses, from which its own workloads may always be
    reached.
    """

    def __init__(self, wanted: Wanted, own: Iterable[Packed]) -> None:
        self._judge = WorkloadJudge(wanted)
        self._own = frozenset(own)
        self._at: dict[Packed, WantedEndpoint] = {
            address: endpoint for endpoint in wanted.endpoints.values() for address in endpoint.addresses
        }

    def concerns(self, source: Packed, destination: Packed) -> bool:
        """Whether one end is a workload of this node."""
        return source in self._at or (destination in self._at and source not in self._own)

    def deny(
        self, source: Packed, destination: Packed, protocol: int, source_port: int, port: int
    ) -> tuple[Direction, Decision | None] | None:
        """At which end it would be denied, and what denies it; None if it would be allowed. ``port``: of ICMP, the type
        and the code.
        """
        sides: tuple[tuple[Packed, Direction], ...] = ((source, "egress"), (destination, "ingress"))
        for address, direction in sides:
            endpoint = self._at.get(address)
            if endpoint is None or (direction == "ingress" and source in self._own):
                continue
            cell = self._judge.cell(endpoint.key, direction, source, destination, protocol)
            first, second = port, source_port
            if protocol == ICMP[4 if len(source) == 4 else 6]:
                first, second = divmod(port, 256)
            elif protocol not in WITH_PORTS:
                first = second = 0
            decision = cell.find(first, second).decision
            if decision is None or decision.verdict != "Allow":
                return direction, decision
        return None

    def name(self, address: Packed) -> str:
        endpoint = self._at.get(address)
        shown = str(ip_address(address))
        return shown if endpoint is None else f"{endpoint.shown} ({shown})"


def judge_connections(wanted: Wanted, run_dir: str, found: Rehearsed, deadline: Deadline) -> None:
    """Of conntrack, and of a recorder if there is one. Raises KernelError, DeadlineExceeded."""
    interfaces = read_interfaces(deadline)
    judge = ConnectionJudge(wanted, (one.ip.packed for interface in interfaces for one in interface.addresses))
    if wanted.hosts:
        found.uncertain.append(_HOSTS)
    with Nfnetlink() as netlink:
        parts = (judge_tracked(judge, part, found) for part in read_tracked(netlink, deadline))
        found.denied += _summed(chain.from_iterable(parts), _TRACKED)
    query = FlowQuery((), since=time.time() - _DAY_S, aggregate=True)
    try:
        documents = ask(f"{run_dir}/{FLOW_SOCKET}", query, deadline)
        found.denied += _summed(judge_recorded(judge, documents, found), "recorded")
    except RecorderSilent:
        found.notes.append(f"no flows are recorded here: {_ONLY_TRACKED}")


_ONLY_TRACKED = "only the connections that conntrack has now were judged"
_ENDS = "source", "destination"
_NO_ADDRESS = "their addresses were recorded as a network, or not at all"
DeniedEnds = tuple[str, str, str, str]  # the fields of DeniedConnection without how often


def judge_tracked(
    judge: ConnectionJudge, part: Iterable[TrackedConnection], found: Rehearsed
) -> Iterator[tuple[DeniedEnds, int]]:
    """Those that would be denied, each once."""
    for one in part:
        source, destination, protocol, source_port, port = parts_of(one.key)
        if not judge.concerns(source, destination):
            continue
        found.judged += 1
        denied = judge.deny(source, destination, protocol, source_port, port)
        if denied is not None:
            yield (judge.name(source), judge.name(destination), _traffic(protocol, port), _why(*denied)), 1


def judge_recorded(
    judge: ConnectionJudge, documents: Iterable[Mapping[str, Any]], found: Rehearsed
) -> Iterator[tuple[DeniedEnds, int]]:
    """Those that were recorded as allowed and would be denied, with how many connections there were."""
    unknown: Counter[str] = Counter()
    for document in documents:
        if document.get(ONLY_DENIED):
            found.notes.append(f"what is let through is not recorded here: {_ONLY_TRACKED}")
        if lost := document.get("lost"):
            many = lost if type(lost) is int else 1
            unknown["the recorder lost them, or there are too many different ones"] += many
        if document.get("verdict") != ALLOWED:
            continue
        count = _count(document.get("connections", 1))
        if any(isinstance(end := document.get(side), dict) and end.get("kind") in FOLDED for side in _ENDS):
            unknown[_NO_ADDRESS] += count
            continue
        try:
            source, destination = (ip_address(document[side]["ip"]).packed for side in _ENDS)
            protocol = _NUMBERS.get(str(document["protocol"])) or int(str(document["protocol"]))
            icmp = document.get("icmp")
            port = icmp["type"] << 8 | icmp["code"] if icmp else int(document["destination"].get("port") or 0)
        except (ValueError, KeyError, TypeError):
            unknown[_NO_ADDRESS] += count
            continue
        if not judge.concerns(source, destination):
            continue
        found.judged += count
        denied = judge.deny(source, destination, protocol, _SOURCE_PORT, port)
        if denied is not None:
            yield (judge.name(source), judge.name(destination), _traffic(protocol, port), _why(*denied)), count
    found.uncertain += [f"{count} recorded connections: {why}" for why, count in unknown.items() if count]


def _count(value: Any) -> int:
    return value if type(value) is int and value > 0 else 1


def _summed(found: Iterable[tuple[DeniedEnds, int]], where: str) -> list[DeniedConnection]:
    """Equal ones are one, most often seen first."""
    counts: Counter[DeniedEnds] = Counter()
    for ends, count in found:
        counts[ends] += count
    return [
        DeniedConnection(*ends, seen=f"{count} {'in conntrack' if where == _TRACKED else 'recorded in a day'}")
        for ends, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]


def _traffic(protocol: int, port: int) -> str:
    name = PROTOCOLS.get(protocol, f"protocol {protocol}")
    if protocol in ICMP.values():
        return f"{name} type {port >> 8} code {port & 255}"
    return f"{name}/{port}" if protocol in WITH_PORTS else name


def _why(direction: Direction, decision: Decision | None) -> str:
    if decision is not None and decision.policy is not None and decision.rule is not None:
        return f"{direction}: rule {decision.rule + 1} of {decision.policy}"
    if decision is not None and decision.tier:
        return f"{direction}: end of tier {decision.tier}"
    return f"{direction}: no policy and no profile allows it"
