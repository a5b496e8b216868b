"""install.sh on fresh hosts: Debian 11 with the tarball, 12 and 13 with packages, from a server; there and back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.install.test_installer import SCRIPT, make_key, sign
from tests.e2e.systemd.machine import Machine, machine

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(1800)]

SERVER = "http://192.0.2.1:8000"
# what dpkg, apt, systemd and the journal write down about every package and start
BOOKKEEPING = re.compile(
    r"^/(dev|proc|sys|run|tmp)(/| )|^/var/(lib/(dpkg|apt|systemd|ucf)|cache/(apt|debconf|ldconfig))(/| )"
    r"|^/var/log/(apt|journal|(alternatives|dpkg)\.log|[bw]tmp|lastlog)(/| )"
    r"|^/etc/(ld\.so\.cache|machine-id|resolv\.conf|\.updated)|^/var/\.updated"
    r"|^/etc/systemd/system/[^/]*\.wants d"  # empty; systemctl removes it
    r"|^/etc/alternatives(/| )|/__pycache__(/| )"
)

# what podman leaves of its own: its lock beside network configurations, with the directories, and caches
PODMANS = re.compile(
    r"^/etc/cni d|^/etc/cni/net\.d d|^/etc/cni/net\.d/cni\.lock"
    r"|^/etc/containers(/| )|^/var/(cache/containers|lib/(cni|containers))(/| )"
)


@pytest.fixture(scope="module")
def whole_release(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("release")
    if made := os.environ.get("RELEASE"):  # for a try: one that is there already
        shutil.copytree(made, out, dirs_exist_ok=True)
    else:
        subprocess.run(["nice", ROOT / "build/release.sh", "--dirty", out], check=True)
    shutil.copy(SCRIPT, out)
    make_key(out, "key")
    make_key(out, "other")
    sign(out)
    return out


@pytest.fixture
def fresh_machine(request: pytest.FixtureRequest, tmp_path: Path, whole_release: Path) -> Iterator[Machine]:
    """A machine with the root of a suite, and a server outside with the release."""
    subprocess.run([ROOT / "tests/setup/fresh-roots.sh", request.param], check=True)
    with machine(tmp_path, None, LAB_CACHE / f"fresh-{request.param}") as made:
        made.start()
        made.until_up()
        inside = ["nsenter", f"--net={made.outside.path}"]
        slow = [*inside, "tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", "80mbit"]
        subprocess.run([*slow, "burst", "64k", "latency", "400ms"], check=True)
        argv = [
            *inside,
            sys.executable,
            "-m",
            "http.server",
            "8000",
            "--bind",
            "192.0.2.1",
            "--directory",
            str(whole_release),
        ]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                get = f"curl -fsS --retry 30 --retry-connrefused --retry-delay 1 {SERVER}/key.pub -o /tmp/key.pub"
                made.run("sh", "-c", f"{get} && curl -fsS {SERVER}/other.pub -o /tmp/other.pub")
                yield made
            finally:
                server.terminate()


def files_of(host: Machine) -> set[str]:
    """Every file with its mode, owner and target, but for what others write down."""
    said = host.run("find", "/", "-xdev", "-printf", r"%p %y%m %U:%G %l\n").stdout.splitlines()
    return {line for line in said if not BOOKKEEPING.search(line)}


def install(host: Machine, *words: str, key: str = "key") -> subprocess.CompletedProcess[str]:
    """As the page says it: one command."""
    script = f'curl -fsS {SERVER}/install.sh | sh -s -- --from {SERVER} --key /tmp/{key}.pub "$@"'
    return host.run("sh", "-c", script, "sh", *words, check=False)


@pytest.mark.parametrize(
    ("fresh_machine", "words"),
    [("bullseye", ("--tarball",)), ("bookworm", ()), ("trixie", ())],
    indirect=["fresh_machine"],
    ids=["bullseye", "bookworm", "trixie"],
)
def test_there_and_back(fresh_machine: Machine, words: tuple[str, ...]) -> None:
    host, before = fresh_machine, files_of(fresh_machine)
    refused = install(host, *words, key="other")
    assert refused.returncode == 1 and "is of none of the known keys" in refused.stderr
    assert files_of(host) == before

    done = install(host, *words)
    assert done.returncode == 0, done
    asked = host.run("sh", "-c", """echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION /opt/cni/bin/calico""")
    assert '"supportedVersions"' in asked.stdout
    assert ("/opt/cni-calico" if words else "cni-calico-bundle") in done.stdout
    installed = files_of(host)
    assert installed > before

    again = install(host, *words)
    assert again.returncode == 0 and " is installed\n" in again.stdout and files_of(host) == installed
    gone = host.run("sh", "-c", f"curl -fsS {SERVER}/install.sh | sh -s -- --uninstall")
    assert gone.stdout.endswith("This host is as it was before.\n")
    assert files_of(host) ^ before == set()


@pytest.mark.parametrize("fresh_machine", ["bookworm"], indirect=True)
def test_two_containers_of_podman_ping(fresh_machine: Machine) -> None:
    host, before = fresh_machine, files_of(fresh_machine)
    # podman makes no overlay on an overlay
    host.run("sh", "-c", "mkdir -p /var/lib/containers && mount -t tmpfs none /var/lib/containers")
    host.write("/etc/containers/containers.conf.d/calico.conf", '[network]\nnetwork_backend = "cni"\n')
    done = install(host, "--network", "podman")
    assert done.returncode == 0 and "This host is set up.\n" in done.stdout, done
    assert '"portmap"' in host.run("cat", "/etc/cni/net.d/10-calico.conflist").stdout
    image = (
        "mkdir -p /tmp/i/bin && cp /bin/busybox /tmp/i/bin && for c in sleep ping; do ln -s busybox /tmp/i/bin/$c; done"
    )
    host.run("sh", "-c", f"{image} && tar -C /tmp/i -c . | podman import - box")
    # this process may not raise its limits, as crun does for a container's and for control groups
    run = ("podman", "run", "-d", "--network", "calico", "--cgroups", "disabled", "--cap-add", "NET_RAW")
    run += ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")
    for name in ("one", "two"):
        host.run(*run, "--name", name, "box", "sleep", "1000")
    address = host.run(
        "podman", "inspect", "-f", "{{.NetworkSettings.Networks.calico.IPAddress}}", "two"
    ).stdout.strip()
    assert " 0% packet loss" in host.run("podman", "exec", "one", "ping", "-c", "2", address).stdout
    uninstall = f"curl -fsS {SERVER}/install.sh | sh -s -- --uninstall"
    refused = host.run("sh", "-c", uninstall, check=False)
    assert refused.returncode == 1 and "containers still have an interface" in refused.stderr
    assert "0% packet loss" in host.run("podman", "exec", "one", "ping", "-c", "1", address).stdout
    host.run("podman", "rm", "-f", "-t", "0", "one", "two")
    host.run("sh", "-c", uninstall)
    assert {line for line in files_of(host) ^ before if not PODMANS.search(line)} == set()
