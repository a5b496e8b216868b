"""Flows of all nodes of a cluster, as one answer.

Rule: a node that does not answer is named, and costs nobody else's flows. 16 nodes are asked at a time, except for what
is new, of which each node tells by itself.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any

from cni_calico.ctl.flows.nodes.agents import NodeAgent, find_agents, find_names, find_services
from cni_calico.ctl.flows.nodes.answer import ClusterAnswer
from cni_calico.ctl.flows.nodes.asking import AskedNodes
from cni_calico.ctl.flows.nodes.joined import APART_S, ToldFlow, join, join_sums
from cni_calico.ctl.flows.nodes.new import NewClusterFlows
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.deadline import Deadline
from cni_calico.flows.conditions import meets
from cni_calico.flows.query import DENIED, Condition, FlowQuery
from cni_calico.model.access import KubernetesAccess

AT_ONCE, MOST = 16, 100_000
_OF_ONE_SIDE = ("verdict", "policy", "tier")  # what the two nodes of a connection may answer differently


class ClusterFlows:
    """``nodes``: only of these, if there are any. ``note`` tells the user what is incomplete. ``most``: flows of one
    answer.
    """

    losses_s = 60.0

    def __init__(
        self, access: KubernetesAccess, nodes: Sequence[str], note: Callable[[str], object], most: int = MOST
    ) -> None:
        self._api, self._nodes, self._note, self._most = KubernetesAPI(access), nodes, note, most

    def ask(self, query: FlowQuery, timeout_s: float) -> Iterator[dict[str, Any]]:
        agents, query = self._prepared(query, timeout_s)
        if not query.follow:
            yield from self._ask(agents, query, timeout_s)
            return
        with self._following(agents, query, timeout_s) as new:
            begun, shown = time.time(), set[str]()
            if query.last is not None or query.since is not None:
                for document in self._ask(agents, replace(query, follow=False), timeout_s):
                    if "verdict" in document:
                        shown.add(_mark(document))
                        yield document
            for document in new.documents(None):
                if document and not ("verdict" in document and _starts(document) < begun and _mark(document) in shown):
                    yield document

    @contextmanager
    def follow(self, query: FlowQuery, timeout_s: float) -> Iterator[NewClusterFlows]:
        agents, query = self._prepared(query, timeout_s)
        with self._following(agents, query, timeout_s) as new:
            yield new

    def lost_so_far(self, timeout_s: float) -> dict[str, int]:
        agents, query = self._prepared(FlowQuery(status=True), timeout_s)
        answer = ClusterAnswer(self._most)
        with AskedNodes(self._api, agents, query, timeout_s, AT_ONCE, answer.receive_status, answer.fail) as asked:
            asked.wait()
        answer.require_some(len(agents))
        return dict(answer.lost_so_far)

    def _prepared(self, query: FlowQuery, timeout_s: float) -> tuple[list[NodeAgent], FlowQuery]:
        deadline = Deadline.after(timeout_s)
        agents = find_agents(self._api, self._nodes, deadline)
        query = replace(query, conditions=find_services(self._api, query.conditions, deadline))
        return agents, replace(query, names=find_names(self._api, query.conditions, deadline, self._note))

    def _ask(self, agents: list[NodeAgent], query: FlowQuery, timeout_s: float) -> Iterator[dict[str, Any]]:
        answer = self._answer(agents, query, timeout_s)
        flows = list(answer.flows)
        if denials := _denials(query, flows):
            # what one side has allowed the other one may have denied, which only its own record says
            flows += self._answer(agents, denials, timeout_s).flows
        joined = join_sums(flows) if query.aggregate else join(flows)
        conditions = _of_one_side(query)
        found = [one for one in joined if meets(one, conditions)]
        if query.last is not None and not query.aggregate:
            found = found[max(0, len(found) - query.last) :]
        yield from found[: query.first]
        yield from answer.others
        yield answer.ending()

    def _answer(self, agents: list[NodeAgent], query: FlowQuery, timeout_s: float) -> ClusterAnswer:
        answer = ClusterAnswer(self._most)
        with AskedNodes(self._api, agents, query, timeout_s, AT_ONCE, answer.receive, answer.fail) as asked:
            asked.wait()
        answer.require_some(len(agents))
        return answer

    @contextmanager
    def _following(self, agents: list[NodeAgent], query: FlowQuery, timeout_s: float) -> Iterator[NewClusterFlows]:
        conditions = _of_one_side(query)
        others = tuple(one for one in query.conditions if one not in conditions)
        kept = query.conditions if _asks_for_denied(conditions) else others
        asked = replace(query, conditions=kept, follow=True, aggregate=False, last=None, since=None)
        new = NewClusterFlows(len(agents), conditions)
        with (
            AskedNodes(self._api, agents, asked, timeout_s, len(agents), new.receive, new.fail),
            new,
        ):
            yield new


def _of_one_side(query: FlowQuery) -> tuple[Condition, ...]:
    return tuple(one for one in query.conditions if one.field in _OF_ONE_SIDE)


def _asks_for_denied(conditions: Iterable[Condition]) -> bool:
    """Whether a record that was not denied has nothing to do with the answer."""
    return list(conditions) == [Condition("verdict", (DENIED,))]


def _denials(query: FlowQuery, flows: Sequence[ToldFlow]) -> FlowQuery | None:
    """The question for what the other sides of these flows may have denied; None if that is in the answer already."""
    conditions = _of_one_side(query)
    if not conditions or not flows or _asks_for_denied(conditions):
        return None
    others = tuple(one for one in query.conditions if one not in conditions)
    since = query.since if query.aggregate else min(one.start for one in flows) - APART_S
    return replace(query, conditions=(*others, Condition("verdict", (DENIED,))), last=None, first=None, since=since)


def _starts(document: dict[str, Any]) -> float:
    return datetime.fromisoformat(document["start"]).timestamp()


def _mark(document: dict[str, Any]) -> str:
    ends = [[document[side]["ip"], document[side].get("port")] for side in ("source", "destination")]
    return json.dumps([*ends, document["protocol"], document["verdict"]])
