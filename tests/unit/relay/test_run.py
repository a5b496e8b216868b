"""How a relay begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import DatastoreUnavailable
from cni_calico.relay import run
from tests.e2e.kubernetes.cluster import free_port


def test_a_relay_that_waits_for_its_api_server_can_be_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "GROUP_S", 0.2)
    config = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "clusters": [{"name": "x", "cluster": {"server": f"http://127.0.0.1:{free_port()}"}}],
        "users": [{"name": "x", "user": {"token": "t"}}],
    }
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    names = {"KUBECONFIG": "kubeconfig", "TYPHA_SERVERCERTFILE": "server.crt", "TYPHA_SERVERKEYFILE": "server.key"}
    stopping = Stopping()
    stopping.set()
    with pytest.raises(DatastoreUnavailable):
        run.RelayProcess({name: str(tmp_path / file) for name, file in names.items()}, stopping)
