"""The chart in a lab, as helm installs it for a distribution.

Rule: helm is told what that distribution's page says, and what only the lab needs: where the API server is, as nothing
leads to its Service yet, and no IPIP, which not every kernel has.
"""

from __future__ import annotations

from pathlib import Path

from tests.conftest import ROOT
from tests.lab.control_plane import NET4
from tests.lab.host import BIN, run
from tests.lab.lab import Lab
from tests.lab.layouts import Layout

CHART = ROOT / "manifests" / "chart"


def helm(lab: Lab, command: str, *words: str | Path, **values: str) -> None:
    """``values``: of the chart, with "__" for a dot."""
    given = [word for name, value in values.items() for word in ("--set", f"{name.replace('__', '.')}={value}")]
    kubeconfig = f"--kubeconfig={lab.plane.admin}"
    run(*lab.plane.inside(BIN / "helm", command, "calico", *words, "--namespace=kube-system", kubeconfig, *given))


def install_chart(lab: Lab, layout: Layout, chart: Path = CHART, **more: str) -> None:
    """``more``: further values. Returns when helm does; nothing may be ready by then."""
    values = {"kubernetesServiceEndpoint__host": f"{NET4}.1", "kubernetesServiceEndpoint__port": "6443"}
    if not layout.provider:
        values["vxlan"] = "true"
    helm(lab, "install", chart, installation__kubernetesProvider=layout.provider, **values, **more)
