"""docs/kubernetes.md with a release, followed by somebody who knows nothing else.

Rule: the commands are the page's, in its order, and run on the first node, as kubeadm leaves its administrator there.
Not run are kubeadm's own, CRI-O's, and those of a cluster without kube-proxy; a copy to the node's disk stands for scp.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from tests.lab.host import BIN, run
from tests.lab.images import make_web
from tests.lab.lab import Lab, running_lab
from tests.lab.layouts import KUBEADM
from tests.lab.node import Node
from tests.lab.proxy import install_kube_proxy
from tests.lab.test_layouts import prepare
from tests.pages import blocks

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(1800)]

PAGE = "kubernetes.md"
# what is installed on this machine's disk lies in memory, for as long as the commands run
_SHELL = "mount -t tmpfs none /opt && mount -t tmpfs none /usr/local/bin && eval"


def on_the_first_node(lab: Lab, home: Path, commands: str) -> str:
    """What they print."""
    settings = [f"HOME={home}", f"PATH=/usr/local/bin:{BIN}:{os.environ['PATH']}"]
    shell = ["unshare", "--mount", "--propagation", "private", "bash", "-euc", f'{_SHELL} "$1"', "sh", commands]
    command = lab.nodes[0].inside("env", "-C", home, *settings, *shell)
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{lab.describe()}"
    return done.stdout


def load(node: Node, home: Path, commands: str) -> None:
    """The archive of images, by the page's two commands."""
    copy, imported, *_ = commands.splitlines()
    place = node.disk("/var/lib/cni")
    run("bash", "-euc", f"cd {home}\n" + copy.replace("scp ", "cp ").replace("NODE:", f"{place}/"))
    assert imported.endswith("# on NODE, with containerd")
    node.run("env", "-C", "/var/lib/cni", f"PATH={BIN}/containerd:/usr/sbin:/usr/bin:/bin", "bash", "-euc", imported)


def test_to_the_letter(built_release: Path, busybox_image: Path, tmp_path: Path) -> None:
    [images] = [block for block in blocks(PAGE, "1. The image") if "dist/release" in block]
    assert "ctr -n k8s.io" in images
    [cluster] = blocks(PAGE, "2. The cluster")
    vxlan, without_proxy, network = blocks(PAGE, "3. The network")
    install, use, look = blocks(PAGE, "4. Look at it")
    assert "kubernetes-services-endpoint" in without_proxy
    [name] = re.findall(r"--image=(\S+)", use)

    home = tmp_path / "home"
    for part in ("dist", ".kube"):
        (home / part).mkdir(parents=True)
    (home / "dist/release").symlink_to(built_release)
    web = make_web(tmp_path, f"docker.io/library/{name}")
    with running_lab(images=[busybox_image, web], layout=KUBEADM) as lab:
        prepare(lab, replace(KUBEADM, range=re.findall(r"--pod-network-cidr=(\S+)", cluster)[0]))
        install_kube_proxy(lab, "nftables")
        shutil.copy(lab.plane.admin, home / ".kube/config")
        for node in lab.nodes:
            load(node, home, images)
        unpack = images.splitlines()[-1]
        said = on_the_first_node(lab, home, "\n".join((unpack, vxlan, network, install, use, look)))
        assert lab.ready_nodes() == {"node1", "node2"}
        assert "successfully rolled out" in said and "\nwelcome\n" in said, said
        assert "ok         pods: " in said and "The network works." in said and "192.168.0.0/16" in said, said
