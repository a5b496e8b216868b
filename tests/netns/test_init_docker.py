"""``calicoctl node init`` and ``uninstall`` where Docker is installed: its drivers' units, and their start.

Rule: systemd and Docker are stand-ins: the host is this one's namespaces, and what systemctl is told is in a file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.netns.namespaces import namespace
from tests.netns.nodes import ROOT
from tests.netns.private_host import PrivateHost, private_host

pytestmark = [pytest.mark.netns]

TOLD = "/var/lib/told.txt"
SYSTEMCTL = f"""#!/bin/sh
echo "$*" >> {TOLD}
[ "$1" != is-active ] || ! grep -qx "start $2" {TOLD} || echo active
"""
START = """
import sys
from cni_calico.ctl.node.init import _start_docker
_start_docker(sys.argv[1:])
"""
STOP = "from cni_calico.ctl.node.uninstall import _stop; _stop()"
UNITS = ("calico-docker.socket", "calico-docker.service")


@pytest.fixture(scope="module")
def docker_installed() -> Iterator[PrivateHost]:
    with ExitStack() as stack:
        ns = stack.enter_context(namespace("init-docker"))
        made = stack.enter_context(private_host(ns))
        made.write("/usr/local/sbin/systemctl", SYSTEMCTL, mode="0755")
        for name in ("calico", "calico-node", "calicoctl"):
            made.write(f"/opt/cni/bin/{name}", "", mode="0755")
        yield made


def python(host: PrivateHost, *arguments: str) -> str:
    return host.run(sys.executable, *arguments, env={"PYTHONPATH": str(ROOT)}).stdout


def told(host: PrivateHost) -> list[str]:
    lines = host.read(TOLD).splitlines()
    host.write(TOLD, "")
    return [line for line in lines if not line.startswith(("is-active", "cat"))]


def test_the_units_are_planned_where_docker_and_our_drivers_are(docker_installed: PrivateHost) -> None:
    host = docker_installed
    init = ("-m", "cni_calico.ctl.main", "node", "init", "--datastore", "local", "--dry-run")
    host.write("/usr/local/sbin/dockerd", "", mode="0755")
    assert "calico-docker" not in python(host, *init), "the drivers are not here"
    host.write("/opt/cni/bin/calico-docker", "", mode="0755")
    shown = python(host, *init)
    for name in UNITS:
        assert f"write /etc/systemd/system/{name}" in shown
    assert "ExecStart=/opt/cni/bin/calico-docker" in shown and f"systemctl enable {' '.join(UNITS)}" in shown


def test_the_sockets_come_before_the_service(docker_installed: PrivateHost) -> None:
    host = docker_installed
    both = " ".join(UNITS)
    written = [f"/etc/systemd/system/{name}" for name in UNITS]
    first = [f"enable {both}", f"stop {UNITS[1]}", f"start {UNITS[0]}", f"restart {UNITS[1]}"]
    host.write(TOLD, "")
    python(host, "-c", START, *written)
    assert told(host) == first
    host.write(TOLD, f"start {UNITS[0]}\nstart {UNITS[1]}\n")
    python(host, "-c", START)
    assert told(host)[2:] == [f"enable {both}"], "nothing has changed, and both run"
    host.write(TOLD, f"start {UNITS[0]}\nstart {UNITS[1]}\n")
    python(host, "-c", START, "/etc/calico/calico-node.env")
    assert told(host)[2:] == [f"enable {both}", f"restart {UNITS[1]}"]
    host.run("mkdir", "-p", "/run/systemd/system")
    python(host, "-c", STOP)
    assert told(host)[:2] == [f"disable --now {name}" for name in UNITS]
