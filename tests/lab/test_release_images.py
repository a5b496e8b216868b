"""The archive of images that a release has, as nodes without a registry import it: both run, under their names."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cni_calico import __version__
from tests.conftest import ROOT
from tests.deadlines import until
from tests.lab.lab import Lab, install_manifest, running_lab
from tests.lab.test_pods import await_connected, ready_agents
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(1800)]

NAMES = {f"localhost/cni-calico/{name}:v{__version__}" for name in ("node", "kube-controllers")}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From a release of the work tree as it is."""
    out = tmp_path_factory.mktemp("release")
    done = subprocess.run([ROOT / "build" / "release.sh", "--dirty", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    [found] = out.glob("cni-calico-*-images-*.tar")
    return found


def controllers(lab: Lab) -> list[dict[str, Any]]:
    found = [pod for pod in lab.pods("kube-system") if pod["metadata"]["labels"]["k8s-app"] != "calico-node"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def runs(pod: dict[str, Any], image: str) -> bool:
    [status] = pod["status"].get("containerStatuses") or [{}]
    return bool(status.get("ready")) and pod["spec"]["containers"][0]["image"] == image


def test_both_images_run(archive: Path, busybox_image: Path, own_bundle: Path) -> None:
    with running_lab(images=[busybox_image, archive], bundle=own_bundle) as lab:
        for node in lab.nodes:
            listed = node.ctr("images", "ls", "-q").split()
            assert set(listed) >= NAMES
        install_manifest(lab)
        until(lambda: ready_agents(lab) == 2, "calico-node ready on both nodes", timeout_s=240, pause_s=0.1)
        lab.apply(deployment(Wanted("web", 2)))
        await_connected(lab, lab.await_pods(2))
        # upstream's way: the second image, without a command
        image = f"localhost/cni-calico/kube-controllers:v{__version__}"
        change = [
            {"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": image},
            {"op": "remove", "path": "/spec/template/spec/containers/0/command"},
        ]
        patch = str(change).replace("'", '"')
        lab.kubectl("patch", "deployment", "calico-kube-controllers", "-n", "kube-system", "--type=json", "-p", patch)
        until(
            lambda: [runs(pod, image) for pod in controllers(lab)] == [True, True],
            f"the controllers' own image: {lab.describe()[-2000:]}",
            timeout_s=240,
            pause_s=0.5,
        )
