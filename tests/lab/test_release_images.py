"""What a release has for a cluster, on nodes without a registry: its archive of images, imported, and its chart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cni_calico import __version__
from tests.lab.chart import install_chart
from tests.lab.lab import Lab, running_lab
from tests.lab.layouts import KUBEADM
from tests.lab.proxy import install_kube_proxy
from tests.lab.test_pods import await_connected, ready_agents
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.helm, pytest.mark.bundle, pytest.mark.timeout(1800)]

NODE, CONTROLLERS = (f"localhost/cni-calico/{name}:v{__version__}" for name in ("node", "kube-controllers"))


def images_of(lab: Lab, component: str) -> list[str]:
    """What its pods run that are Ready, and not on their way out."""
    found = []
    for pod in lab.pods("kube-system"):
        labelled = pod["metadata"]["labels"].get("k8s-app") == component
        if labelled and "deletionTimestamp" not in pod["metadata"]:
            statuses: list[dict[str, Any]] = pod["status"].get("containerStatuses") or []
            found += [one["image"] for one in statuses if one["ready"]]
    return found


def test_both_images_of_the_archive_run(built_release: Path, busybox_image: Path, own_bundle: Path) -> None:
    [archive], [chart] = built_release.glob("*-images-*.tar"), built_release.glob("*-chart-*.tgz")
    with running_lab(images=[busybox_image, archive], bundle=own_bundle) as lab:
        for node in lab.nodes:
            assert {NODE, CONTROLLERS} <= set(node.ctr("images", "ls", "-q").split())
        install_kube_proxy(lab, "nftables")
        install_chart(lab, KUBEADM, chart, image__digest="")
        lab.until_or_describe(lambda: ready_agents(lab) == 2, "calico-node ready on both nodes", 240)
        assert images_of(lab, "calico-node") == [NODE, NODE]
        lab.apply(deployment(Wanted("web", 2)))
        await_connected(lab, lab.await_pods(2))
        # upstream's way: the second image, without a command
        container = "/spec/template/spec/containers/0"
        change = [{"op": "replace", "path": f"{container}/image", "value": CONTROLLERS}]
        change.append({"op": "remove", "path": f"{container}/command"})
        name = ("deployment", "calico-kube-controllers", "-n", "kube-system")
        lab.kubectl("patch", *name, "--type=json", "-p", json.dumps(change))
        lab.until_or_describe(
            lambda: images_of(lab, "calico-kube-controllers") == [CONTROLLERS, CONTROLLERS], "controllers of it", 240
        )
