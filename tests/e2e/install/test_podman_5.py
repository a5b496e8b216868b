"""docs/podman.md on Debian 13: podman 5 with netavark, a network of ours, and containers that keep who they are."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.model.identity import OWN
from tests.conftest import LAB_CACHE, ROOT
from tests.deadlines import until
from tests.e2e.install.front_policy import FRONT_POLICY
from tests.e2e.systemd.machine import Machine, machine

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(1800)]

IMAGE = """
mkdir -p /run/image/bin
cp /bin/busybox /run/image/bin/
for c in sh sleep wget httpd; do ln -s busybox /run/image/bin/$c; done
tar -C /run/image -c . | podman import - box
"""
# this process may not raise its limits, as crun does for a container's and for control groups
RUN = (
    *("podman", "run", "-d", "--network", "calico", "--cgroups", "disabled"),
    *("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"),
)
SERVE = "echo hello >/index.html; httpd -f -p 81 -h / & httpd -f -p 80 -h /"


@pytest.fixture
def trixie(tmp_path: Path, bundle: Path) -> Iterator[Machine]:
    subprocess.run([ROOT / "tests/setup/fresh-roots.sh", "trixie-podman"], check=True)
    with machine(tmp_path, bundle, LAB_CACHE / "fresh-trixie-podman") as made:
        made.start()
        made.until_up()
        # podman makes no overlay on an overlay
        made.run("sh", "-c", "mkdir -p /var/lib/containers && mount -t tmpfs none /var/lib/containers")
        made.run("sh", "-c", IMAGE)
        yield made


def fetch(host: Machine, address: str, port: int) -> str:
    """From the other container; "" where nothing answers."""
    words = ("podman", "exec", "client", "wget", "-T", "1", "-q", "-O", "-", f"http://{address}:{port}/")
    return host.run("timeout", "10", *words, check=False).stdout.strip()


def test_a_policy_follows_the_containers_label(trixie: Machine) -> None:
    assert trixie.run("podman", "--version").stdout.startswith("podman version 5.")
    done = trixie.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16")
    assert "This host is set up." in done.stdout
    networks = json.loads(trixie.run("podman", "network", "inspect", "calico").stdout)
    assert networks[0]["driver"] == "calico"
    trixie.write("/run/policy.json", json.dumps(FRONT_POLICY))
    trixie.calicoctl("apply", "-f", "/run/policy.json")
    trixie.run(*RUN, "--name", "client", "box", "sleep", "1000")
    trixie.run(*RUN, "--name", "web", "--label", "role=front", "box", "sh", "-c", SERVE)

    def address() -> str:
        found = json.loads(trixie.run("podman", "inspect", "web").stdout)
        return str(found[0]["NetworkSettings"]["Networks"]["calico"]["IPAddress"])

    def labels() -> dict[str, str]:
        documents = json.loads(trixie.calicoctl("get", "workloadendpoints", "-o", "json").stdout)["items"]
        [found] = [d["metadata"]["labels"] for d in documents if d["metadata"]["labels"].get(f"{OWN}role") == "front"]
        return dict(found)

    def judged() -> tuple[str, str]:
        until(lambda: fetch(trixie, address(), 81) == "hello", "the other port answers", 90, pause_s=0.3)
        return fetch(trixie, address(), 80), fetch(trixie, address(), 81)

    assert judged() == ("", "hello") and labels()["cni-calico.io/container"] == "web"
    assert trixie.calicoctl("get", "workloadendpoints").stdout.count("web") == 1
    trixie.run("podman", "restart", "-t", "0", "web")
    assert judged() == ("", "hello")
    trixie.run("podman", "rename", "web", "site")
    until(lambda: labels()["cni-calico.io/container"] == "site", "the new name", 90, pause_s=0.3)
    trixie.run("podman", "rm", "-f", "-t", "0", "site")
    trixie.run(*RUN, "--name", "web", "box", "sh", "-c", SERVE)  # without the label
    until(lambda: fetch(trixie, address(), 80) == "hello", "no policy selects it", 90, pause_s=0.3)
    trixie.run("podman", "rm", "-f", "-t", "0", "web", "client")
    assert "0 problems" in trixie.calicoctl("ipam", "check").stdout


def addresses(host: Machine, name: str, network: str) -> set[str]:
    """Those of a container, of both families."""
    [found] = json.loads(host.run("podman", "inspect", name).stdout)
    joined = found["NetworkSettings"]["Networks"][network]
    return {joined["IPAddress"], joined["GlobalIPv6Address"]} - {""}


def test_a_named_container_keeps_its_address(trixie: Machine) -> None:
    """docs/kubevirt.md: removed and made again by its name, until somebody releases the address."""
    trixie.calicoctl("node", "init", "--datastore", "local", "--cidr", "10.65.0.0/16", "--cidr", "fd65::/48")
    options = ("--driver", "calico", "--ipv6", "-o", "sticky_addresses=true")
    trixie.run("podman", "network", "create", *options, "pods")
    run = (*RUN[:4], "pods", *RUN[5:])

    def made(name: str, *more: str) -> set[str]:
        trixie.run(*run, *more, "--name", name, "box", "sleep", "1000")
        return addresses(trixie, name, "pods")

    first = made("web")
    assert len(first) == 2
    trixie.run("podman", "rm", "-f", "-t", "0", "web")
    assert made("db").isdisjoint(first), "nobody else gets it meanwhile"
    assert made("web") == first
    assert made("web", "--replace") == first
    trixie.run("podman", "restart", "-t", "0", "web")
    assert addresses(trixie, "web", "pods") == first
    trixie.run("podman", "rm", "-f", "-t", "0", "web", "db")
    assert "0 problems" in trixie.calicoctl("ipam", "check").stdout
    for address in first:
        trixie.calicoctl("ipam", "release", f"--ip={address}")
    assert made("web").isdisjoint(first), "it was released"
    trixie.run("podman", "rm", "-f", "-t", "0", "web")
    assert "0 problems" in trixie.calicoctl("ipam", "check").stdout
