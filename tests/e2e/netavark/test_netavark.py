"""podman's plugin: the frozen executable called as netavark calls it, and by a real netavark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cni_calico import __version__
from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.e2e.host import Node
from tests.fixtures.namespaces import MakeNamespace
from tests.netns.namespaces import Namespace

pytestmark = [pytest.mark.netns, pytest.mark.bundle]

NETAVARK = LAB_CACHE / "bin" / "netavark"
CONTAINER = "752947ff91f961eb3cb47ffe9315016979f3ffbec09e4d96a4fae3fb03391697"
PROBE = """
import socket
s = socket.create_connection(("192.0.2.10", 8080), 2)
s.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
print(s.recv(100).decode())
"""
CREATED = {
    "name": "pods",
    "id": "2f259bab",
    "driver": "calico",
    "ipv6_enabled": True,
    "internal": False,
    "dns_enabled": True,
}


@pytest.fixture
def driver(bundle: Path, tmp_path: Path) -> Path:
    """A plugin directory of netavark, in which the driver ``calico`` is a link to ours."""
    directory = tmp_path / "netavark"
    directory.mkdir()
    (directory / "calico").symlink_to(bundle / "calico-netavark")
    return directory / "calico"


class Podman:
    """Calls the driver as netavark does."""

    def __init__(self, node: Node, driver: Path) -> None:
        self.node = node
        self.driver = driver

    def environ(self) -> dict[str, str]:
        run, state = self.node.root / "run", self.node.root / "state"
        return {"PATH": os.environ["PATH"], "CALICO_RUN_DIR": str(run), "CALICO_STATE_DIR": str(state)}

    def run(self, *command: str | Path, document: Any = None) -> subprocess.CompletedProcess[str]:
        argv = ["nsenter", f"--net={self.node.host.path}", *command]
        stdin = "" if document is None else json.dumps(document)
        return subprocess.run(argv, input=stdin, capture_output=True, text=True, env=self.environ(), timeout=120)

    def created(self, **more: str) -> dict[str, Any]:
        """The network that ``podman network create -d calico`` would store; with ``more`` of its "-o" options."""
        options = {"datastore_path": self.node.datastore.path, "nodename": self.node.nodename, **more}
        done = self.run(self.driver, "create", document={**CREATED, "options": options})
        assert done.returncode == 0, done.stdout
        made: dict[str, Any] = json.loads(done.stdout)
        return made

    def connection(self, **changes: Any) -> dict[str, Any]:
        return {
            "container_id": CONTAINER,
            "container_name": "web",
            "port_mappings": None,
            "network": self.created(),
            "network_options": {"aliases": ["752947ff91f9"], "interface_name": "eth0"},
            **changes,
        }


@pytest.fixture
def podman(plain_node: Node, driver: Path) -> Podman:
    return Podman(plain_node, driver)


def test_info_and_errors_are_what_netavark_reads(podman: Podman) -> None:
    said = json.loads(podman.run(podman.driver, "info").stdout)
    version, _, build = said.pop("version").partition("+")
    assert (version, said) == (__version__, {"api_version": "1.0.0"}) and build
    for arguments in ((), ("explode",), ("setup",), ("create",)):
        done = podman.run(podman.driver, *arguments)
        assert done.returncode == 1 and list(json.loads(done.stdout)) == ["error"] and done.stderr == ""


def test_a_container_is_connected_and_disconnected(podman: Podman, pod_ns: Namespace) -> None:
    connection = podman.connection()
    assert {key: connection["network"][key] for key in ("name", "id", "driver")} == {
        key: CREATED[key] for key in ("name", "id", "driver")
    }
    done = podman.run(podman.driver, "setup", pod_ns.path, document=connection)
    assert done.returncode == 0, done.stdout
    shown = json.loads(done.stdout)["interfaces"]["eth0"]
    (link,) = (one for one in pod_ns.ip("addr", "show") if one["ifname"] == "eth0")
    theirs = {f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"] if one["scope"] == "global"}
    assert shown["mac_address"] == link["address"] and {one["ipnet"] for one in shown["subnets"]} == theirs
    assert len(theirs) == 2 and set(podman.node.taken()) == {address.partition("/")[0] for address in theirs}
    assert {label["cni-calico.io/container"] for label in labels(podman)} == {"web"}
    for address in podman.node.taken():
        podman.node.host.run("ping", "-c1", "-W5", address)
    for _ in range(2):  # podman repeats a tear-down that was cut short
        done = podman.run(podman.driver, "teardown", pod_ns.path, document=connection)
        assert (done.returncode, done.stdout) == (0, "")
    assert podman.node.taken() == {} and [one["ifname"] for one in pod_ns.ip("link", "show")] == ["lo"]


def labels(podman: Podman) -> list[dict[str, str]]:
    """Of every endpoint."""
    return [endpoint["metadata"]["labels"] for endpoint in podman.node.endpoints()]


@pytest.mark.parametrize("name", ["bell\x07", "a;b=c", "x" * 4096, None])
def test_a_name_that_no_label_can_hold_keeps_no_container_from_starting(
    podman: Podman, pod_ns: Namespace, name: str | None
) -> None:
    connection = podman.connection(container_name=name)
    done = podman.run(podman.driver, "setup", pod_ns.path, document=connection)
    assert done.returncode == 0, done.stdout
    assert ["cni-calico.io/container" in each for each in labels(podman)] == [False]
    assert podman.run(podman.driver, "teardown", pod_ns.path, document=connection).returncode == 0


def test_a_set_up_that_fails_leaves_nothing(podman: Podman, pod_ns: Namespace) -> None:
    """The second port cannot be published: the container's network has been made by then."""
    ports = [{"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "carrier-pigeon", "range": 1}]
    connection = podman.connection(port_mappings=ports)
    done = podman.run(podman.driver, "setup", pod_ns.path, document=connection)
    assert done.returncode == 1 and "carrier-pigeon" in json.loads(done.stdout)["error"]
    assert podman.node.taken() == {} and [one["ifname"] for one in pod_ns.ip("link", "show")] == ["lo"]


def test_a_container_that_is_made_again_has_its_address(podman: Podman, make_pod_ns: MakeNamespace) -> None:
    """By its name, as ``podman run --replace`` makes it; until somebody releases the address."""

    def connection(number: int, name: str) -> dict[str, Any]:
        found = podman.connection(container_id=f"{number:064x}", container_name=name)
        return {**found, "network": podman.created(sticky_addresses="true")}

    def set_up(number: int, name: str) -> set[str]:
        done = podman.run(podman.driver, "setup", make_pod_ns().path, document=connection(number, name))
        assert done.returncode == 0, done.stdout
        return {one["ipnet"].partition("/")[0] for one in json.loads(done.stdout)["interfaces"]["eth0"]["subnets"]}

    def tear_down(number: int, name: str) -> None:
        assert podman.run(podman.driver, "teardown", "", document=connection(number, name)).returncode == 0

    first = set_up(1, "web")
    refused = podman.run(podman.driver, "setup", make_pod_ns().path, document=connection(2, "web"))
    assert refused.returncode == 1 and "container 000000000000 has it" in json.loads(refused.stdout)["error"]
    tear_down(1, "web")
    assert set_up(3, "db").isdisjoint(first), "nobody else gets it meanwhile"
    assert set_up(4, "web") == first
    tear_down(4, "web")
    assert set(podman.node.taken()) >= first, "nobody knows whether it will be made again"
    config = podman.node.root / "calicoctl.cfg"
    config.write_text(
        "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\n"
        f"spec:\n  datastoreType: local\n  datastorePath: {podman.node.datastore.path}\n"
    )
    for address in first:
        done = podman.run(
            podman.driver.resolve().parent / "calicoctl", "-c", config, "ipam", "release", f"--ip={address}"
        )
        assert done.returncode == 0, done.stderr
    tear_down(3, "db")
    assert len(podman.node.taken()) == 2 and first.isdisjoint(podman.node.taken())


@pytest.mark.slow
def test_with_netavark(podman: Podman, pod_ns: Namespace, tmp_path: Path) -> None:
    """A published port, an address of choice, and what netavark tells podman."""
    assert NETAVARK.exists(), "tests/setup/netavark.sh builds it"
    network = podman.created()
    wanted = "10.65.3.7"
    document = {
        "container_id": CONTAINER,
        "container_name": "web",
        "networks": {"pods": {"interface_name": "eth0", "static_ips": [wanted], "aliases": ["web"]}},
        "network_info": {"pods": network},
        "port_mappings": [{"container_port": 80, "host_ip": "", "host_port": 8080, "protocol": "tcp", "range": 1}],
    }
    command = (NETAVARK, "--config", tmp_path, "--plugin-directory", podman.driver.parent)
    done = podman.run(*command, "setup", pod_ns.path, document=document)
    assert done.returncode == 0, done.stdout + done.stderr
    (eth0,) = json.loads(done.stdout)["pods"]["interfaces"].values()
    assert f"{wanted}/32" in {one["ipnet"] for one in eth0["subnets"]}
    server = ["nsenter", f"--net={pod_ns.path}", sys.executable, "-m", "http.server", "80", "--directory", "/var/empty"]
    with subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as web:
        try:
            probe = (sys.executable, "-c", PROBE)
            until(
                lambda: "HTTP" in podman.node.host.run(*probe, check=False).stdout,
                "an answer through the published port",
            )
        finally:
            web.kill()
    done = podman.run(*command, "teardown", pod_ns.path, document=document)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8080" not in podman.node.host.run("iptables-save").stdout
    assert podman.node.taken() == {} and [one["ifname"] for one in pod_ns.ip("link", "show")] == ["lo"]
