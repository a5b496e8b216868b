"""Recorded flows at the host endpoints of the nodes that they passed.

Rule: of the ways that a flow may have taken those count that fit what was recorded. If they do not agree about what
would become of it, it is uncertain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, NamedTuple

from cni_calico.ctl.policy.at_hosts.facts import KnownHosts
from cni_calico.ctl.policy.at_hosts.outcomes import AskedFlow, HostAnswer, HostOutcome, StageOutcomes
from cni_calico.ctl.policy.at_hosts.ways import PassedWays, PlacedEnd
from cni_calico.ctl.policy.flow_ends import SHARED, ReplayedEnd, Uncertain
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.policy.explain import Decision
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.wanted import Packed, Wanted

_HOST = "decided by a host endpoint, and it is not known on which node"
_WAYS = "flows do not say which interfaces they passed, and host endpoints of the node do not agree"
_UNKNOWN = "it is not recorded where the connection was sent"
_UNTRACKED = "a doNotTrack policy would let it through, or not any more, and nobody knows about its answers"
_TRANSLATION = "it was denied before translation, and nobody knows where it would have gone"
_GONE = "a pod that is gone, on a node that is not known and may have host endpoints"
_OWN_NODE = "a workload's packets to its own node, about which DefaultEndpointToHostAction decides"


@dataclass(frozen=True, slots=True)
class JudgedFlow:
    """``denied``; ``by``: the decision that denies, else that of the destination, else that of the source. ``at``: the
    stage of a host endpoint, if it was one that decided.
    """

    denied: bool
    by: Decision | None
    at: str = ""


class ToldOfFlow(NamedTuple):
    """What a record says of the way: which nodes told of it (the source's first), where it was sent before translation
    (None: it is not known), and whether it was denied.
    """

    nodes: tuple[str, ...]
    reporter: str
    sent: tuple[Packed, int] | None
    denied: bool


def parse_told_of(flow: Mapping[str, Any]) -> ToldOfFlow:
    """Of a document of ``calicoctl flows``. Raises one of ``flow_ends.NO_FLOW``."""
    nodes = flow.get("nodes") or [one for one in (flow.get("node"),) if one]
    to, denied = flow["destination"], flow["verdict"] == "denied"
    asked = to.get("asked")
    sent = None
    if asked is not None:
        sent = ip_address(asked["ip"]).packed, int(asked.get("port", 0))
    elif flow["source"].get("port") is not None and not denied and (flow.get("ended") or flow.get("bytes")):
        sent = ip_address(to["ip"]).packed, int(to["port"])
    return ToldOfFlow(tuple(map(str, nodes)), str(flow.get("reporter")), sent, denied)


class ReplayedHosts:
    """``before`` and ``after`` of the same host endpoints, and judges of them."""

    def __init__(
        self, facts: KnownHosts, records: PolicyRecords, before: Wanted, after: Wanted, judges: tuple[Judge, Judge]
    ) -> None:
        self._facts = facts
        self._ways = PassedWays(facts)
        self._flows = StageOutcomes(facts, before, after, judges)
        self._nodes = {key: record.node for key, record in records.endpoints.items()}

    def judge(
        self,
        told: ToldOfFlow,
        ends: tuple[ReplayedEnd, ReplayedEnd],
        point: tuple[int, int, int],
        workloads: tuple[JudgedFlow, JudgedFlow],
    ) -> tuple[JudgedFlow, JudgedFlow]:
        """``point``: protocol, first and second number; ``workloads``: what is decided at the ends that are some.
        Raises Uncertain.
        """
        source, destination = self._place(told, ends[0], 0), self._place(told, ends[1], 1)
        sent = told.sent
        if sent is None and self._is_host(destination):
            sent = destination.address, point[1]
        asked = AskedFlow(source.address, destination.address, *point, sent)
        found = list(self._outcomes(told, asked, source, destination, workloads))
        if not found:
            raise Uncertain(_HOST)
        fitting = [one for one in found if one[0].denied == told.denied]
        if not fitting and any(guessed for *_, guessed in found):
            raise Uncertain(_UNKNOWN)
        if len({one[1].denied for one in fitting}) > 1:
            raise Uncertain(next((one[2] for one in fitting if one[2]), _WAYS))
        listed = fitting or found[:1]
        was, now, *_ = next((one for one in listed if one[0].by is not None or one[1].by is not None), listed[0])
        return was, now

    def _place(self, told: ToldOfFlow, end: ReplayedEnd, side: int) -> PlacedEnd:
        """Raises Uncertain."""
        node = self._facts.at.get(end.address)
        if node == "" or (node is not None and end.key is not None and end.token == end.address):
            raise Uncertain(SHARED)
        if end.key is None:
            return self._ways.place(end.address, told.nodes[-side] if told.nodes else "")
        if not end.is_gone:
            return PlacedEnd(end.address, True, self._nodes[end.key])
        if told.nodes and (len(told.nodes) > 1 or told.reporter == ("src", "dst")[side]):
            return PlacedEnd(end.address, True, told.nodes[-side])
        raise Uncertain(_GONE)

    def _is_host(self, end: PlacedEnd) -> bool:
        return bool(end.node) and not end.is_workload

    def _outcomes(
        self,
        told: ToldOfFlow,
        asked: AskedFlow,
        source: PlacedEnd,
        destination: PlacedEnd,
        workloads: tuple[JudgedFlow, JudgedFlow],
    ) -> Iterator[tuple[JudgedFlow, JudgedFlow, str, bool]]:
        """What may have become of it, and would, what is not known on which that depends, and whether it is guessed.
        Raises Uncertain.
        """
        nodes = {source.node, destination.node} - {""}
        decides_at_ends = source.is_workload or destination.is_workload
        if nodes or decides_at_ends:
            for way in self._ways.between(source, destination):
                for one in self._flows.outcomes(asked, way):
                    yield self._whole(told, one, workloads, source, destination)
        for node in told.nodes:
            if node not in nodes and node in self._facts.views:
                for way in self._ways.across(node, source, destination):
                    for one in self._flows.outcomes(asked, way):
                        nothing = JudgedFlow(False, None)
                        yield self._whole(told, one, (nothing, nothing), source, destination)

    def _whole(
        self,
        told: ToldOfFlow,
        outcome: HostOutcome,
        workloads: tuple[JudgedFlow, JudgedFlow],
        source: PlacedEnd,
        destination: PlacedEnd,
    ) -> tuple[JudgedFlow, JudgedFlow, str, bool]:
        """Raises Uncertain."""
        was, now = (_both(one, host) for one, host in zip(workloads, (outcome.before, outcome.after), strict=True))
        if was.denied != told.denied:
            return was, now, outcome.why, outcome.guessed
        if outcome.before.untracked != outcome.after.untracked:
            # what is not tracked is not translated either
            is_elsewhere = told.sent is None or told.sent[0] != destination.address
            if is_elsewhere or not (was.denied and now.denied):
                raise Uncertain(_UNTRACKED)
        before, after = outcome.before, outcome.after
        if before.denied and before.early and not (after.denied and after.early) and not destination.is_workload:
            raise Uncertain(_TRANSLATION)
        if was.denied and not now.denied:
            if source.is_workload and self._is_host(destination) and source.node == destination.node:
                view = self._facts.views.get(source.node)
                if view is None or view.felix.endpoint_to_host == "DROP":
                    raise Uncertain(_OWN_NODE)
        return was, now, outcome.why, outcome.guessed


def _both(workload: JudgedFlow, host: HostAnswer) -> JudgedFlow:
    if workload.denied or not (host.denied or workload.by is None):
        return workload
    return JudgedFlow(host.denied, host.by, host.at)
