"""kubectl's plugin as krew installs it, on a host with an older C library: unpacked, linked, called."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.install.fresh_host import FreshHost

sys.path.insert(0, str(ROOT / "build"))
sys.path.insert(0, str(ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "build" / "image"))

import kubectl

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.takes(30)]

OLD_ROOT = LAB_CACHE / "old-root.tar.gz"
# what krew does: unpack, move everything to a directory of its own, link what the manifest calls "bin"
KREW = """
set -e
export HOME=/home/user
mkdir -p /home/user/.krew/store/calico/v1 /home/user/.krew/bin
tar -C /home/user/.krew/store/calico/v1 -xzf /run/release/plugin.tar.gz
ln -s /home/user/.krew/store/calico/v1/kubectl-calico /home/user/.krew/bin/kubectl-calico
export PATH=$PATH:/home/user/.krew/bin:/run/release
kubectl calico version --client
kubectl calico get nodes 2>&1 || echo status $?
DATASTORE_TYPE=etcdv3 ETCD_ENDPOINTS=http://127.0.0.1:1 kubectl calico get nodes 2>&1 || echo status $?
"""


def test_kubectl_calico_on_debian_11(tmp_path: Path, bundle: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    subprocess.run([ROOT / "build/install-bundle.sh", "--plain", bundle, tree / "bin"], check=True)
    shutil.copy(ROOT / "LICENSE", tree)
    (tree / "NOTICE").write_text("of others\n")
    release = tmp_path / "release"
    release.mkdir()
    kubectl.stage_plugin(tree, tmp_path / "plugin")
    # compressed less than a release's, for this test's sake
    pack = [
        "tar",
        "-C",
        tmp_path / "plugin",
        "--use-compress-program",
        "gzip -1",
        "-cf",
        release / "plugin.tar.gz",
        ".",
    ]
    subprocess.run(pack, check=True)
    shutil.copy(LAB_CACHE / "bin/kubectl", release)
    (tmp_path / "old").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "old", "-xzf", OLD_ROOT], check=True)
    host = FreshHost(tmp_path / "host", release, tmp_path / "old")
    said = host.run("sh", "-c", KREW)
    lines = said.stdout.splitlines()
    assert lines[0].startswith("Client Version:"), said
    assert lines[2:5] == [
        "cannot read kubeconfig /home/user/.kube/config: no such file or directory",
        "(the kubeconfig is the one of KUBECONFIG)",
        "status 1",
    ]
    assert lines[5].startswith("cannot run this command: ") and lines[-1] == "status 1"
    assert "/home/user/.krew/store/calico/v1/LICENSE" in host.changes()
