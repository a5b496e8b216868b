"""What nodes answer to one question: flows, what they have lost, and who has not answered.

Rule: what a node says is checked before it is kept, and stands under that node's name, whatever it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.flows.nodes.agents import NoAgents, NodeAgent
from cni_calico.ctl.flows.nodes.joined import ToldFlow, parse_told
from cni_calico.errors import CalicoError
from cni_calico.flows.query import ONLY_DENIED
from cni_calico.flows.told import require_loss, require_missed


class TooManyFlows(CalicoError):
    """More than what can be put in order here."""

    hint = "ask for less: --last, a shorter time, or filters; or have them added up with --aggregate"


class ClusterAnswer:
    """``receive``, ``receive_status`` and ``fail`` are called in threads. ``most``: flows that are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.flows: list[ToldFlow] = []
        self.others: list[dict[str, Any]] = []
        self.lost_so_far = Counter[str]()
        self._lost: list[dict[str, Any]] = []
        self._kept: dict[str, float] = {}
        self._unanswered: dict[str, str] = {}
        self._only_denied: list[str] = []
        self._too_many = False

    def receive(self, agent: NodeAgent, document: dict[str, Any]) -> None:
        """Raises ValueError if it is not a recorder's, or one too many."""
        if document.get("end"):
            self._end(agent.node, document)
        elif "lost" in document:
            self.others.append(parse_missed(agent.node, document))
        elif len(self.flows) >= self._most:
            self._too_many = True
            raise ValueError("there were too many flows")
        else:
            self.flows.append(parse_told(agent.node, document))

    def _end(self, node: str, document: dict[str, Any]) -> None:
        try:
            self._lost += [parse_loss(node, one) for one in document["lost"]]
            for name, since in dict(document.get("kept") or {}).items():
                if since is not None:
                    self._kept[name] = max(self._kept.get(name, 0.0), float(since))
            if document.get(ONLY_DENIED):
                self._only_denied.append(node)
        except (KeyError, TypeError) as e:
            raise ValueError(f"what it says is no end of an answer: {e}") from e

    def receive_status(self, agent: NodeAgent, document: dict[str, Any]) -> None:
        """Raises ValueError."""
        try:
            counts = {str(source): int(count) for source, count in dict(document["lost"]).items()}
        except (KeyError, TypeError) as e:
            raise ValueError(f"what it says is no status: {e}") from e
        self.lost_so_far.update(counts)

    def fail(self, agent: NodeAgent, why: str) -> None:
        self._unanswered[agent.node] = why

    def require_some(self, asked: int) -> None:
        """Raises NoAgents if nobody has answered, TooManyFlows."""
        if self._too_many:
            raise TooManyFlows(f"cannot show more than {self._most} flows of several nodes")
        if len(self._unanswered) == asked:
            node, why = min(self._unanswered.items())
            others = f" (and {asked - 1} more nodes)" if asked > 1 else ""
            raise NoAgents(f"cannot read flows of node {node}{others}: {why}")

    def ending(self) -> dict[str, Any]:
        unanswered = dict(sorted(self._unanswered.items()))
        kept = {name: self._kept.get(name) for name in ("flows", "sums")}
        only_denied = {ONLY_DENIED: sorted(self._only_denied)} if self._only_denied else {}
        return {"end": True, "node": "", "lost": self._lost, "kept": kept, "unanswered": unanswered, **only_denied}


def parse_loss(node: str, found: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError."""
    require_loss(found)
    times = {name: float(found[name]) for name in ("from", "to")}
    return {"node": node, **times, "count": found["count"], **_texts(found)}


def _texts(found: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(found[name]) for name in ("source", "why")}


def parse_missed(node: str, document: Mapping[str, Any]) -> dict[str, Any]:
    """Raises ValueError."""
    require_missed(document)
    return {"lost": document["lost"], "why": f"node {node}: {document.get('why')}"}
