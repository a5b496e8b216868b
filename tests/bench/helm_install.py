#!/usr/bin/env python3
"""How long `helm install` takes until everything is Ready: two nodes of the lab, which have the image already.

    .venv/bin/python -m tests.bench.helm_install [rounds [CHART...]]

Each round has a lab of its own, with the layout of kubeadm; the times are those since helm was called. Of several
charts (directories; default: the one here) each has its turn in each round.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from tests.conftest import ROOT
from tests.deadlines import until
from tests.lab.chart import CHART, install_chart
from tests.lab.images import make_busybox, make_product
from tests.lab.lab import Lab, running_lab
from tests.lab.layouts import KUBEADM
from tests.lab.proxy import install_kube_proxy


def ready(lab: Lab) -> set[str]:
    """What has come so far: both nodes, both agents, all controllers; and their containers before."""
    [agents], [controllers] = (lab.get(kind, "-n", "kube-system")["items"] for kind in ("daemonsets", "deployments"))
    running: dict[str, list[bool]] = {}
    for pod in lab.pods("kube-system"):
        statuses = pod["status"].get("containerStatuses") or [{"state": {}}]
        component = pod["metadata"]["labels"].get("k8s-app", "")
        running.setdefault(component, []).append(all("running" in one["state"] for one in statuses))
    found = {
        "agents run": running.get("calico-node") == [True, True],
        "controllers run": running.get("calico-kube-controllers") == [True, True],
        "nodes": lab.ready_nodes() == {node.name for node in lab.nodes},
        "agents": agents["status"].get("numberReady") == len(lab.nodes),
        "controllers": controllers["status"].get("readyReplicas") == controllers["spec"]["replicas"],
    }
    return {name for name, is_so in found.items() if is_so}


def one_round(images: list[Path], bundle: Path, chart: Path) -> str:
    times: dict[str, float] = {}
    with running_lab(images=images, bundle=bundle) as lab:
        install_kube_proxy(lab, "nftables")  # as kubeadm has it before
        begun = time.monotonic()
        install_chart(lab, KUBEADM, chart)
        times["helm"] = time.monotonic() - begun

        def all_ready() -> bool:
            for name in ready(lab):
                times.setdefault(name, time.monotonic() - begun)
            return len(times) == 6

        until(all_ready, "everything Ready", timeout_s=240, pause_s=0.2)
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items())


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    charts = [Path(word) for word in sys.argv[2:]] or [CHART]
    with tempfile.TemporaryDirectory() as made:
        images = [make_busybox(Path(made)), make_product(Path(made))]
        for number in range(1, rounds + 1):
            for chart in charts:
                times = one_round(images, ROOT / "dist" / "bin", chart)
                print(f"round {number}, {chart}: {times}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
