"""The chart on nodes as each distribution makes them: by the commands of its page, from a registry to the removal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest

from build.distribution_pages import read_distributions, render_removal
from tests.deadlines import until
from tests.lab.chart import CHART, helm, install_chart
from tests.lab.follow import follow, is_followed, make_release_directory
from tests.lab.host import BIN, PLUGINS, end, run, start
from tests.lab.lab import Lab, running_lab
from tests.lab.layouts import LAYOUTS, TALOS, Layout
from tests.lab.node import Node
from tests.lab.proxy import install_kube_proxy
from tests.lab.test_pods import addresses, await_connected, ready_agents
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.timeout(900)]

KUBEADM_RANGE = "10.66.0.0/16"
HOST_PORT = 8089


@pytest.fixture(scope="module")
def pulled_chart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Through a registry."""
    directory = tmp_path_factory.mktemp("chart")
    registry = start(directory / "registry.log", BIN / "crane", "registry", "serve", "--address", "127.0.0.1:0")
    try:
        address = until(lambda: _address(directory / "registry.log"), "the registry", pause_s=0.1)
        run(BIN / "helm", "package", CHART, "--destination", directory)
        [packed] = directory.glob("*.tgz")
        run(BIN / "helm", "push", "--plain-http", packed, f"oci://{address}/charts")
        out = directory / "pulled"
        out.mkdir()
        run(BIN / "helm", "pull", "--plain-http", f"oci://{address}/charts/cni-calico", "--destination", out)
        [pulled] = out.iterdir()
        assert pulled.read_bytes() == packed.read_bytes()
        yield pulled
    finally:
        end(registry)


def _address(log: Path) -> str:
    _, found, text = log.read_text().partition("serving on port ")
    return f"127.0.0.1:{text.split()[0]}" if found else ""


def listing(node: Node) -> dict[str, list[str]]:
    """What lies in the two directories."""
    return {path: sorted(node.run("ls", "-A", path).split()) for path in (node.layout.bin_dir, node.layout.conf_dir)}


def prepare(lab: Lab, layout: Layout) -> None:
    """What the distribution itself leaves on nodes and in the cluster."""
    for node in lab.nodes:
        node.install_plugins(*layout.ships, source=PLUGINS)
    if layout.in_kubeadm_config:
        text = f"networking:\n  podSubnet: {layout.range or KUBEADM_RANGE}\n"
        metadata = {"name": "kubeadm-config", "namespace": "kube-system"}
        lab.apply(
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"ClusterConfiguration": text}}
        )


def install(lab: Lab, layout: Layout, page: str, chart: Path, scratch: Path) -> None:
    if is_followed(page):
        assert lab.bundle is not None
        said = follow(lab, layout, page, make_release_directory(scratch, lab.bundle, chart))
        assert "failed" not in said, said
    else:
        install_chart(lab, layout, chart)
    lab.until_or_describe(lambda: ready_agents(lab) == 2, "calico-node ready on both nodes", 240)
    lab.await_ready_nodes()


def rolled_out(lab: Lab) -> bool:
    [found] = lab.get("daemonsets", "-n", "kube-system")["items"]
    status: dict[str, Any] = found["status"]
    observed = status.get("observedGeneration") == found["metadata"]["generation"]
    return observed and status.get("updatedNumberScheduled") == 2 == status.get("numberReady")


def reaches_host_port(lab: Lab, node: Node) -> bool:
    ask = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=2)"
    url = f"http://{node.address}:{HOST_PORT}/"
    return run(*lab.plane.inside(sys.executable, "-c", ask, url), check=False).returncode == 0


def started(lab: Lab, node: Node) -> dict[str, str]:
    """When the containers of its pods began to run, as the API server knows it."""
    found = {}
    for pod in lab.pods():
        if pod["spec"]["nodeName"] == node.name:
            [container] = pod["status"]["containerStatuses"]
            found[pod["metadata"]["name"]] = container["state"].get("running", {}).get("startedAt", "")
    return found


def reboot(lab: Lab, node: Node) -> None:
    """Until its pods have a network again; what the API server says of them until then is of before."""
    before = started(lab, node)
    node.power_off()
    node.power_on()
    conflist = f"{node.layout.conf_dir}/10-calico.conflist"
    until(lambda: "10-calico" in node.run("ls", conflist, check=False), f"{conflist} again", timeout_s=180, pause_s=0.2)
    lab.until_or_describe(
        lambda: all(started(lab, node).get(name, "") > time for name, time in before.items()), "containers anew", 180
    )
    lab.until_or_describe(lambda: ready_agents(lab) == 2, "calico-node ready again", 180)


@pytest.mark.helm
@pytest.mark.bundle
@pytest.mark.takes(130)
@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.name)
def test_from_the_chart_to_the_removal(
    layout: Layout, busybox_image: Path, product_image: Path, own_bundle: Path, pulled_chart: Path, tmp_path: Path
) -> None:
    [row] = [each for each in read_distributions() if each["provider"] == layout.provider]
    with running_lab(images=[busybox_image, product_image], bundle=own_bundle, layout=layout) as lab:
        prepare(lab, layout)
        before = [listing(node) for node in lab.nodes]
        install_kube_proxy(lab, "nftables")
        install(lab, layout, row["page"], pulled_chart, tmp_path)
        lab.apply(deployment(Wanted("web", 2, host_port=HOST_PORT)))
        pods = lab.await_pods(2, seconds=180)
        pool = ip_network(layout.range or KUBEADM_RANGE)
        assert all(ip_address(address) in pool for pod in pods for address in addresses(pod))
        await_connected(lab, pods)
        until(lambda: all(reaches_host_port(lab, node) for node in lab.nodes), "the host's port", pause_s=0.2)
        reboot(lab, lab.nodes[1])
        await_connected(lab, lab.await_pods(2, seconds=180))
        helm(lab, "upgrade", pulled_chart, "--reuse-values", node__podAnnotations__again="yes")
        until(lambda: rolled_out(lab), "the upgrade", timeout_s=240, pause_s=0.2)
        await_connected(lab, lab.await_pods(2))
        assert "failed" not in lab.calicoctl("cluster", "check")
        lab.kubectl("delete", "deployment", "--all")
        lab.await_no_pods()
        helm(lab, "uninstall", "--wait")
        for node in lab.nodes:
            node.run("sh", "-euc", render_removal(row))
        assert [listing(node) for node in lab.nodes] == before


def test_a_layout_is_what_its_name_says(busybox_image: Path) -> None:
    """Of Talos: nothing runs from the directory of configuration, a boot empties it, and modules cannot be loaded."""
    with running_lab(nodes=1, images=[busybox_image], layout=TALOS) as lab:
        [node] = lab.nodes
        node.run("sh", "-c", f"echo 'exit 0' >{TALOS.conf_dir}/x && chmod 755 {TALOS.conf_dir}/x")
        assert "denied" in run(*node.inside(f"{TALOS.conf_dir}/x"), check=False).stderr
        pid = (node.directory / "containerd.pid").read_text().strip()
        bounding = int(node.run("sh", "-c", f"sed -n 's/^CapBnd:\t//p' /proc/{pid}/status"), 16)
        assert not bounding & 1 << 16  # CAP_SYS_MODULE
        node.power_off()
        node.power_on()
        assert node.run("ls", "-A", TALOS.conf_dir) == ""
