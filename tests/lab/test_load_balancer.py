"""A Service of type LoadBalancer on real kubelets.

The controllers of the manifest, frozen and in pods, give it an address, and kube-proxy takes that to its pods.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.lab import Lab, install_manifest, running_lab
from tests.lab.proxy import install_kube_proxy
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(600)]
RANGE = "198.51.100.0/28"
POOL = {
    "apiVersion": "crd.projectcalico.org/v1",
    "kind": "IPPool",
    "metadata": {"name": "services"},
    "spec": {"cidr": RANGE, "blockSize": 28, "allowedUses": ["LoadBalancer"], "nodeSelector": "all()"},
}
SERVICE = {
    "apiVersion": "v1",
    "kind": "Service",
    "metadata": {"name": "web", "namespace": "default"},
    "spec": {"type": "LoadBalancer", "selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
}


@pytest.fixture(scope="module")
def balanced_lab(busybox_image: Path, product_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(images=[busybox_image, product_image], bundle=own_bundle) as made:
        install_manifest(made)
        install_kube_proxy(made, "nftables")
        yield made


def ingress(lab: Lab) -> list[str]:
    found = lab.get("service", "web")["status"]["loadBalancer"].get("ingress") or []
    return [entry["ip"] for entry in found]


def taken(lab: Lab) -> int:
    """Addresses that IPAM has given to services."""
    blocks: list[dict[str, Any]] = lab.get("ipamblocks.crd.projectcalico.org")["items"]
    mine = [block["spec"] for block in blocks if block["spec"].get("affinity") == "virtual:load-balancer"]
    return sum(index is not None for spec in mine for index in spec["allocations"])


def answer(lab: Lab, client: dict[str, Any], address: str) -> str:
    """What a pod reads there; the image's wget looks for a name service first."""
    script = f"printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 {address} 80"
    return (lab.exec(client, "sh", "-c", script, check=False).splitlines() or [""])[-1].strip()


def test_a_service_gets_an_address_at_which_its_pods_answer(balanced_lab: Lab) -> None:
    lab = balanced_lab
    lab.apply(POOL, deployment(Wanted("web", 2)), deployment(Wanted("client", 2)), SERVICE)
    pods = lab.await_pods(4, seconds=240)
    servers = {pod["metadata"]["name"] for pod in pods if pod["metadata"]["name"].startswith("web")}
    clients = [pod for pod in pods if pod["metadata"]["name"].startswith("client")]
    until(lambda: ingress(lab), "an address from the controllers", timeout_s=120, pause_s=0.1)
    [address] = ingress(lab)
    assert address.startswith("198.51.100.") and taken(lab) == 1
    for client in clients:  # one on each node
        who = client["metadata"]["name"]
        until(
            lambda client=client: answer(lab, client, address) in servers,
            f"an answer to {who}",
            timeout_s=60,
            pause_s=0.1,
        )
