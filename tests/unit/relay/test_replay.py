"""What a relay asks of the API server about the time before its own history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.errors import Compacted
from cni_calico.model.access import KubernetesAccess
from cni_calico.relay.replay import read_changes
from tests.fakes.scripted_http import Scripted

NODES = "/api/v1/nodes"


@pytest.fixture
def past_server() -> Iterator[Scripted]:
    found = Scripted([])
    yield found
    found.close()


def line(kind: str, version: int) -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": "n", "resourceVersion": str(version)}}}


def read(past_server: Scripted) -> list[tuple[str, str]]:
    api = KubernetesAPI(KubernetesAccess(api_root=past_server.url))
    try:
        found = read_changes(api, NODES, 5, 9)
    finally:
        api.close()
    return [(kind, obj["metadata"]["resourceVersion"]) for kind, obj in found]


def test_the_answer_is_complete_with_the_last_version(past_server: Scripted) -> None:
    past_server.steps = [[line("MODIFIED", 7), line("DELETED", 9), "hang"]]
    assert read(past_server) == [("MODIFIED", "7"), ("DELETED", "9")]
    assert "resourceVersion=5" in past_server.requests[0][1]


def test_or_with_a_bookmark_behind_it(past_server: Scripted) -> None:
    past_server.steps = [[line("ADDED", 6), line("BOOKMARK", 12), "hang"]]
    assert read(past_server) == [("ADDED", "6")]


def test_a_watch_that_ends_without_its_bookmark_is_opened_again_for_longer(past_server: Scripted) -> None:
    past_server.steps = [[line("ADDED", 6)], [line("ADDED", 6), line("BOOKMARK", 9), "hang"]]
    assert read(past_server) == [("ADDED", "6")]
    seconds = [path.partition("timeoutSeconds=")[2] for _, path, _, _ in past_server.requests]
    assert int(seconds[0]) < int(seconds[1])


def test_half_an_answer_is_none(past_server: Scripted) -> None:
    past_server.steps = [[line("ADDED", 6)], [line("ADDED", 6)]]
    with pytest.raises(Compacted, match="ended before it reached 9"):
        read(past_server)
