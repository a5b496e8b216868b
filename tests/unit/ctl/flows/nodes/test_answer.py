"""What nodes may answer that is no recorder's, and what is said about those that do not answer."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.ctl.flows.nodes.agents import NoAgents, NodeAgent
from cni_calico.ctl.flows.nodes.answer import ClusterAnswer, TooManyFlows
from cni_calico.ctl.flows.show import describe_incomplete, describe_losses, describe_only_denied, describe_unanswered
from cni_calico.datastore.kubernetes.exec.command import ContainerCommand
from tests.fakes.recorder import address, flow, rule

COMMAND = ContainerCommand("kube-system", "p", "calico-node", ("calico-node", "-flows-pipe"))
LOSS = {"from": 1.0, "to": 2.0, "source": "destroy", "why": "overrun", "count": None}
FLOW = flow(address("10.0.0.1"), address("10.0.0.2", 80), rule("egress", "a", "b", 0))


def agent(node: str) -> NodeAgent:
    return NodeAgent(node, COMMAND)


def test_the_end_of_all_answers() -> None:
    answer = ClusterAnswer(10)
    answer.receive(agent("a"), {"end": True, "lost": [LOSS], "kept": {"flows": 5.0, "sums": 3.0}})
    answer.receive(agent("b"), {"end": True, "lost": [], "kept": {"flows": 7.0, "sums": None}})
    answer.receive(agent("b"), {"lost": 3, "why": "slow"})
    answer.fail(agent("c"), "no \x1b[2J")
    answer.require_some(3)
    ending = answer.ending()
    assert ending["kept"] == {"flows": 7.0, "sums": 3.0}
    assert [text[:18] for text in describe_losses(ending["lost"])] == ["node a: ends of co"]
    assert list(describe_unanswered(ending)) == ["node c did not answer: no \\x1b[2J"]
    assert answer.others == [{"lost": 3, "why": "node b: slow"}]
    assert list(describe_only_denied(ending)) == []


def test_nodes_that_record_only_what_is_denied_are_named() -> None:
    answer = ClusterAnswer(10)
    for number in range(3):
        more = {"only_denied": [f"n{number}"]} if number else {}
        answer.receive(agent(f"n{number}"), {"end": True, "node": f"n{number}", "lost": [], **more})
        answer.require_some(3)
        said = list(describe_incomplete(answer.ending()))
        assert bool(said) == bool(number)
    assert said[0].startswith("2 nodes, such as node n1, record only what is denied; with FELIX_FLOWS=Enabled")


@pytest.mark.parametrize(
    "document",
    [
        {"end": True, "lost": [{**LOSS, "from": float("inf")}]},
        {"end": True, "lost": [{**LOSS, "to": -1}]},
        {"end": True, "lost": [{**LOSS, "count": "many"}]},
        {"end": True, "lost": [{**LOSS, "from": None}]},
        {"end": True, "lost": [{"from": 1, "to": 2}]},
        {"end": True, "lost": 5},
        {"end": True},
        {"end": True, "lost": [], "kept": {"flows": "x"}},
        {"end": True, "lost": [], "kept": 5},
        {"lost": "many"},
        {"text": 1},
    ],
)
def test_what_is_no_answer(document: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        ClusterAnswer(10).receive(agent("a"), document)


def test_nobody_answers() -> None:
    answer = ClusterAnswer(10)
    answer.fail(agent("b"), "x")
    answer.fail(agent("a"), "no recorder")
    with pytest.raises(NoAgents, match=r"cannot read flows of node a \(and 1 more nodes\): no recorder"):
        answer.require_some(2)


def test_more_than_can_be_put_in_order() -> None:
    answer = ClusterAnswer(1)
    answer.receive(agent("a"), dict(FLOW))
    with pytest.raises(ValueError, match="too many"):
        answer.receive(agent("a"), dict(FLOW))
    with pytest.raises(TooManyFlows, match="cannot show more than 1 flows"):
        answer.require_some(1)
