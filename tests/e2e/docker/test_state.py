"""The frozen ``calico-docker`` reads the files of its former life; the executables have no annotations."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from cni_calico.docker.state import DockerEndpoint, DockerNetwork, DockerState, HeldAddress
from cni_calico.kernel.files import Files
from cni_calico.log import SILENT

pytestmark = [pytest.mark.bundle]


def test_every_kind_of_file(tmp_path: Path, bundle: Path) -> None:
    state = DockerState(Files(), str(tmp_path), SILENT)
    state.read()
    state.networks.put(DockerNetwork("n1", 1400, name="shop", made_s=1.5))
    state.addresses.put(HeldAddress("a1", "boot", "pool", "10.65.0.7", owed=True))
    endpoint = DockerEndpoint("e1", "n1", "boot", 1.0, ["10.65.0.7"], labels={"a": "b"}, ports=["tcp * 80 10.65.0.7 8"])
    state.endpoints.put(endpoint)
    wrong = tmp_path / "docker" / "endpoints" / "wrong.json"
    wrong.write_text('{"format": 1, "id": "wrong", "network": 7}')
    environ = {"CALICO_STATE_DIR": str(tmp_path), "NODENAME": "n1", "CALICO_DOCKER_PLUGIN_DIR": str(tmp_path)}
    done = subprocess.run([bundle / "calico-docker", "-status"], capture_output=True, text=True, env=environ)
    assert "networks 1, endpoints 1, addresses 1, to be released 1" in done.stdout, done.stdout + done.stderr
    assert "shop" in done.stdout and "80->8/tcp" in done.stdout
    assert f"not used, because it cannot be read: {wrong}: network is wrong" in done.stdout
