"""The exec probes and the status: what they look at, by what they are asked and where they run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from cni_calico.nodeagent.commands import describe_status
from cni_calico.nodeagent.status.file import STARTING_S, forget_status, since_boot, write_status
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


READY = {"synced": True, "cni_server": False}


@pytest.mark.parametrize(
    ("fields", "alive_s", "said"),
    [
        ({}, 0, "has not applied the network yet"),
        (READY, 0, ""),
        (READY | {"unmet": ["no IPIP"]}, STARTING_S - 1, "no IPIP"),
        # what may never come does not keep the other probes from beginning
        (READY | {"unmet": ["no IPIP"]}, STARTING_S + 1, ""),
        (READY | {"policing_stalled_s": 1e6}, STARTING_S + 1, "stuck"),
    ],
)
def test_a_start_ends_with_readiness_or_some_time_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: Mapping[str, Any], alive_s: float, said: str
) -> None:
    begun = since_boot()
    write_status(str(tmp_path), fields)
    monkeypatch.setattr("cni_calico.nodeagent.status.file.since_boot", lambda: begun + alive_s)
    write_status(str(tmp_path), fields)
    faults = run_probes({"felix-started"}, {}, {"CALICO_RUN_DIR": str(tmp_path)})
    forget_status(str(tmp_path))
    assert said in "".join(faults) and bool(faults) == bool(said)


def test_nothing_has_started_before_there_is_a_status(tmp_path: Path) -> None:
    [fault] = run_probes({"felix-started"}, {}, {"CALICO_RUN_DIR": str(tmp_path)})
    assert fault == "felix has not started: the agent has not started: it has written no status"
