"""A distribution's page, followed in a lab by somebody who knows nothing else: the blocks that are not the
distribution's own.

Rule: the commands are the page's; filled in are only the place of the cluster's kubeconfig, a registry's name, and for
kubeadm VXLAN, as not every kernel has the IPIP that is its default.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from cni_calico import __version__
from tests.conftest import ROOT
from tests.lab.host import BIN
from tests.lab.lab import Lab
from tests.lab.layouts import Layout
from tests.pages import blocks

sys.path.insert(0, str(ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "build" / "image"))

import kubectl


def is_followed(page: str) -> bool:
    """Whether the network is installed by commands of its page, and not as a part of the cluster."""
    return "\n## The network\n" in (ROOT / "docs" / f"distributions/{page}.md").read_text()


def make_release_directory(directory: Path, bundle: Path, chart: Path) -> Path:
    """What those commands take of a release: the chart, and calicoctl."""
    tree, plugin, release = (directory / name for name in ("tree", "plugin", "release"))
    for each in (tree, release):
        each.mkdir(parents=True)
    subprocess.run([ROOT / "build/install-bundle.sh", "--plain", bundle, tree / "bin"], check=True)
    shutil.copy(ROOT / "LICENSE", tree)
    (tree / "NOTICE").write_text("of others\n")
    kubectl.stage_plugin(tree, plugin)
    archive = release / f"kubectl-calico_{__version__}_linux_amd64.tar.gz"
    # compressed less than a release's, for the test's sake
    pack = ["tar", "-C", plugin, "--use-compress-program", "gzip -1", "-cf", archive, "."]
    subprocess.run(pack, check=True)
    shutil.copy(chart, release / f"cni-calico-chart-{__version__}.tgz")
    return release


def follow(lab: Lab, layout: Layout, page: str, release: Path) -> str:
    """What the commands print. ``release``: of make_release_directory."""
    name = f"distributions/{page}.md"
    # the block of a directory with a release; what a published release says in its place comes after it
    calicoctl, network = (blocks(name, heading)[0] for heading in ("calicoctl", "The network"))
    place = next(line for line in network.splitlines() if line.startswith("export KUBECONFIG="))
    network = network.replace(place, f"export KUBECONFIG={lab.plane.admin}").replace("REGISTRY/", "localhost/")
    if not layout.provider:
        network = network.replace("--namespace kube-system", "--namespace kube-system --set vxlan=true")
    environ = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(release)}
    command = lab.plane.inside("bash", "-euxo", "pipefail", "-c", calicoctl + network)
    done = subprocess.run(command, cwd=release, env=environ, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{lab.describe()}"
    return done.stdout
