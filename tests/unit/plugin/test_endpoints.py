"""Writing an endpoint: what is known of an attempt whose answer was lost."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.datastore.interface import CommitConflict, Committed, Failed
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DatastoreUnavailable, OutcomeUnknown
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.plugin.endpoints import apply_endpoint
from tests.unit.nodeagent.fabric import workload

KEY = ResourceKey("WorkloadEndpoint", "n1-k8s-w-eth0", "default")


class Scripted:
    """A store whose commits end as told; nothing is ever found."""

    def __init__(self, *outcomes: CalicoError | None) -> None:
        self.outcomes = list(outcomes)

    def commit(self, writes: Any, deadline: Deadline) -> Committed:
        outcome = self.outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return Committed(1, ())

    def get(self, key: Any, deadline: Deadline) -> None:
        return None


def conflict() -> CommitConflict:
    return CommitConflict([Failed(0, KEY, None)])


def apply(store: Any) -> None:
    def build(_: WorkloadEndpoint | None) -> WorkloadEndpoint:
        return workload("w", "calia", "10.65.1.5/32")

    apply_endpoint(store, KEY, None, build, Deadline.after(5))


@pytest.mark.parametrize(
    "later",
    [[DatastoreUnavailable("away")], [conflict(), DatastoreUnavailable("away")], [conflict()] * 5],
    ids=["the store goes away", "a conflict, then it goes away", "nothing but conflicts"],
)
def test_an_unknown_outcome_stays_unknown(later: list[CalicoError]) -> None:
    """It is not there when it is looked for; it may come all the same."""
    with pytest.raises(OutcomeUnknown):
        apply(Scripted(OutcomeUnknown("lost"), *later))


def test_a_success_settles_it() -> None:
    apply(Scripted(OutcomeUnknown("lost"), None))


def test_without_a_lost_answer_the_error_is_its_own() -> None:
    with pytest.raises(DatastoreUnavailable) as caught:
        apply(Scripted(conflict(), DatastoreUnavailable("away")))
    assert not isinstance(caught.value, OutcomeUnknown)
