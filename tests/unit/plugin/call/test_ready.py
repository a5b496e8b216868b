"""Whether the cluster accepts requests, and how long an ADD waits for a cluster that is being made."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import NotReady
from cni_calico.plugin.call.ready import require_ready
from cni_calico.plugin.call.services import CallDatastore

MADE, LOCKED = ({"spec": {"clusterGUID": "0" * 32, "datastoreReady": ready}} for ready in (True, False))


def datastore(*records: Any, kind: str = "etcdv3") -> CallDatastore:
    """What it answers, one after the other; the last for ever."""

    def answers() -> Iterator[Any]:
        yield from records
        while True:
            yield records[-1]

    told = answers()
    return cast(CallDatastore, SimpleNamespace(read=lambda *_: next(told), config=SimpleNamespace(type=kind)))


def test_a_record_that_comes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("cni_calico.plugin.call.ready.time.sleep", pauses.append)
    require_ready(datastore(None, None, MADE), Deadline.after(60), wait_s=30)
    assert len(pauses) == 2


@pytest.mark.parametrize(("deadline_s", "wait_s"), [(60, 0.0), (0, 30.0)])
def test_one_that_does_not_come_is_an_error(deadline_s: float, wait_s: float) -> None:
    with pytest.raises(NotReady, match="ClusterInformation 'default' does not exist"):
        require_ready(datastore(None), Deadline.after(deadline_s), wait_s=wait_s)


def test_a_lock_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("cni_calico.plugin.call.ready.time.sleep", pauses.append)
    with pytest.raises(NotReady) as caught:
        require_ready(datastore(None, LOCKED), Deadline.after(60), wait_s=30)
    assert "does not exist" not in str(caught.value) and len(pauses) == 1


def test_the_embedded_store_is_a_cluster_of_its_own() -> None:
    require_ready(datastore(None, kind="local"), Deadline.after(60))
