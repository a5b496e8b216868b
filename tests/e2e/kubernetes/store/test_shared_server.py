"""The API server that the tests of a process share: one that ended must not fail all tests after it."""

from __future__ import annotations

import pytest

from tests.e2e.kubernetes.cluster import Cluster

pytestmark = pytest.mark.kubernetes


@pytest.mark.parametrize("ended", [["kube-apiserver"], ["etcd", "kube-apiserver"]])
def test_a_server_that_ended_is_started_again(
    kube: Cluster, ended: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    kube.create_node("before")
    for program in ended:
        kube.processes[program].kill()
        kube.processes[program].wait()
    kube.revive()
    assert [item["metadata"]["name"] for item in kube.request("GET", "/api/v1/nodes")["items"]] == ["before"]
    said = capsys.readouterr().err
    assert all(f"{program} ended with -9" in said for program in ended)
