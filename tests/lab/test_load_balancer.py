"""A Service of type LoadBalancer on real kubelets.

The controllers of the manifest, frozen and in pods, give it an address, the nodes announce that to a router outside of
the cluster (BIRD, with a session to each node), and kube-proxy takes what comes to its pods.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.deadlines import until
from tests.lab.control_plane import NET4
from tests.lab.host import end, run, start
from tests.lab.lab import Lab, install_manifest, running_lab
from tests.lab.proxy import install_kube_proxy
from tests.lab.workloads import Wanted, deployment

pytestmark = [pytest.mark.slow, pytest.mark.lab, pytest.mark.bundle, pytest.mark.timeout(600)]
RANGE = "198.51.100.0/28"
ROUTER, ROUTERS_AS = f"{NET4}.1", 64999
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
    "spec": {
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",  # announced by the nodes that have pods, address by address
        "selector": {"app": "web"},
        "ports": [{"port": 80, "targetPort": 8080}],
    },
}
ANNOUNCED = {
    "apiVersion": "crd.projectcalico.org/v1",
    "kind": "BGPConfiguration",
    "metadata": {"name": "default"},
    "spec": {"serviceLoadBalancerIPs": [{"cidr": RANGE}]},
}
PEER = {
    "apiVersion": "crd.projectcalico.org/v1",
    "kind": "BGPPeer",
    "metadata": {"name": "outside"},
    "spec": {"peerIP": ROUTER, "asNumber": ROUTERS_AS},
}


@pytest.fixture(scope="module")
def balanced_lab(busybox_image: Path, product_image: Path, own_bundle: Path) -> Iterator[Lab]:
    with running_lab(images=[busybox_image, product_image], bundle=own_bundle) as made:
        install_manifest(made, backend="bird", CALICO_IPV4POOL_VXLAN="Never")
        install_kube_proxy(made, "nftables")
        with router(made):
            yield made


@contextmanager
def router(lab: Lab) -> Iterator[None]:
    """BIRD where the control plane is, which is no node: it learns routes from the nodes, and has none for them."""
    sessions = [
        f"protocol bgp node{number} {{ local {ROUTER} as {ROUTERS_AS}; neighbor {node.address} as 64512;"
        " ipv4 { import all; export none; }; }"
        for number, node in enumerate(lab.nodes)
    ]
    lines = [f"router id {ROUTER};", "protocol device { }", "protocol kernel { ipv4 { export all; import none; }; }"]
    file = lab.directory / "router.conf"
    file.write_text("\n".join([*lines, *sessions]) + "\n")
    command: list[str | Path] = [
        "bird",
        "-f",
        "-c",
        file,
        "-s",
        lab.directory / "router.ctl",
        "-P",
        lab.directory / "router.pid",
    ]
    process = start(lab.directory / "router.log", *lab.plane.inside(*command))
    try:
        yield
    finally:
        end(process)


def routes(lab: Lab, address: str) -> list[str]:
    """The next hops that the router has for exactly this address."""
    found = json.loads(run(*lab.plane.inside("ip", "-j", "route", "show", "exact", f"{address}/32")).stdout or "[]")
    hops = [hop for route in found for hop in (route.get("nexthops") or [route])]
    return [hop["gateway"] for hop in hops if "gateway" in hop]


def answer_outside(lab: Lab, address: str) -> str:
    script = f"exec 3<>/dev/tcp/{address}/80; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    argv = [str(word) for word in lab.plane.inside("timeout", "5", "bash", "-c", script)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    return (done.stdout.splitlines() or [""])[-1].strip()


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


def test_a_service_gets_an_address_at_which_its_pods_answer_until_it_goes(balanced_lab: Lab) -> None:
    lab = balanced_lab
    lab.apply(POOL, ANNOUNCED, PEER, deployment(Wanted("web", 2)), deployment(Wanted("client", 2)), SERVICE)
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
    until(lambda: routes(lab, address), "a route to the address outside", timeout_s=120)
    assert set(routes(lab, address)) <= {node.address for node in lab.nodes}
    until(lambda: answer_outside(lab, address) in servers, "an answer outside", timeout_s=60)

    lab.kubectl("delete", "service", "web")
    until(lambda: taken(lab) == 0, "the address is released", timeout_s=60)
    until(lambda: not routes(lab, address), "no route any more", timeout_s=60)
    # its range is still announced, and kube-proxy follows the Service in its own time
    until(lambda: answer_outside(lab, address) == "", "no answer outside any more", timeout_s=60)
    until(lambda: answer(lab, clients[0], address) == "", "no answer inside either", timeout_s=60)
