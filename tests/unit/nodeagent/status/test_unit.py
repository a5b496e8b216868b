"""When calico-node.service is ready: by what the agent says, how long that has taken, and which datastore it has."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cni_calico.nodeagent.status.unit import ANSWER_S, DEADLINE_S, why_ready

NOW = 1000.0
DECIDED = {"ready": True, "sentence": "2 policies are in force for 3 workloads"}
UNDECIDED = {"ready": False, "sentence": "no policy is enforced on this node: the policies have not been read yet"}


def agent(policing: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"updated": NOW, "policing": policing, **more}


@pytest.mark.parametrize(
    ("fields", "waited_s", "may_be_here", "answered", "said"),
    [
        (agent(DECIDED), 0.5, False, True, "2 policies are in force"),
        (agent(DECIDED), 0.5, True, False, "2 policies are in force"),
        (agent(UNDECIDED), 0.5, True, True, ""),
        (agent(UNDECIDED), ANSWER_S, True, True, ""),
        (agent(UNDECIDED), DEADLINE_S, True, True, "not decided .*: no policy is enforced on this node: the policies"),
        ({}, ANSWER_S, False, False, ""),  # the embedded datastore: nothing has to start first
        ({}, ANSWER_S - 1, True, False, ""),
        ({}, ANSWER_S, True, False, "not decided .*: the datastore has not answered$"),
        ({"startup_error": "no endpoint"}, ANSWER_S, True, False, "the datastore has not answered: no endpoint"),
        ({"startup_error": "no card"}, ANSWER_S, True, True, ""),
        ({"startup_error": "no card"}, DEADLINE_S, True, True, "not decided .*: .*start-up fails: no card"),
        ({}, DEADLINE_S, False, False, "not decided .*: the agent has not started"),
        # an agent that ended has decided nothing that holds
        (agent(DECIDED, updated=NOW - 600), 1.0, False, True, ""),
    ],
)
def test_why_it_is_ready(fields: dict[str, Any], waited_s: float, may_be_here: bool, answered: bool, said: str) -> None:
    why = why_ready(fields, NOW, waited_s, may_be_here=may_be_here, answered=answered)
    if said:
        assert re.search(said, why), why
    else:
        assert why == ""
