"""The exec probes and the status: what they look at, by what they are asked and where they run."""

import json
from pathlib import Path

import pytest

from cni_calico.nodeagent.commands import describe_status
from cni_calico.nodeagent.status.probes import run_probes

BIRD = {"bird-live", "bird-ready"}


@pytest.mark.parametrize("backend", [None, "", "bird", "brid"])
def test_bird_is_looked_at_where_there_is_or_may_be_one(tmp_path: Path, backend: str | None) -> None:
    environ = {"CALICO_RUN_DIR": str(tmp_path)} | ({} if backend is None else {"CALICO_NETWORKING_BACKEND": backend})
    faults = run_probes(BIRD, {}, environ)
    assert len(faults) == 2 and all("BIRD" in fault for fault in faults)


@pytest.mark.parametrize("backend", ["vxlan", "none", " vxlan "])
def test_a_backend_without_bird_has_none_to_miss(tmp_path: Path, backend: str) -> None:
    environ = {"CALICO_RUN_DIR": str(tmp_path), "CALICO_NETWORKING_BACKEND": backend}
    assert run_probes(BIRD, {}, environ) == []
    [fault] = run_probes({*BIRD, "felix-live"}, {}, environ)
    assert "felix" in fault


@pytest.mark.parametrize(("networking", "count"), [("false", 0), ("true", 2), ("False", 2)])
def test_the_older_word_for_networking_wins(tmp_path: Path, networking: str, count: int) -> None:
    environ = {"CALICO_RUN_DIR": str(tmp_path), "CALICO_NETWORKING": networking}
    for backend in ("", "none", "vxlan", "bird"):
        assert len(run_probes(BIRD, {}, environ | {"CALICO_NETWORKING_BACKEND": backend})) == count


@pytest.mark.parametrize(("backend", "said"), [("vxlan", "none on this node"), ("bird", "cannot connect to BIRD")])
def test_the_status_misses_bird_only_where_there_is_to_be_one(tmp_path: Path, backend: str, said: str) -> None:
    (tmp_path / "agent-status.json").write_text(json.dumps({"node": "n1", "backend": backend}))
    [line] = [x for x in describe_status({"CALICO_RUN_DIR": str(tmp_path)}).splitlines() if x.startswith("BGP:")]
    assert said in line
