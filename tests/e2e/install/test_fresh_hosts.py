"""install.sh on fresh hosts: Debian 11 with the tarball, 12 and 13 with packages, from a server; there and back."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.deadlines import until
from tests.e2e.install.served import SERVER, install, served_host
from tests.e2e.install.test_installer import SCRIPT, make_key, sign
from tests.e2e.systemd.machine import Machine
from tests.pages import blocks

pytestmark = [pytest.mark.bundle, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(1800)]

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
def whole_release(built_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a signature, and another key."""
    out = tmp_path_factory.mktemp("release")
    shutil.copytree(built_release, out, dirs_exist_ok=True)
    shutil.copy(SCRIPT, out)
    make_key(out, "key")
    make_key(out, "other")
    sign(out)
    return out


@pytest.fixture(scope="module")
def apt_trees(whole_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Beside the release what apt.py makes of it: apt, and broken, where one digit of an index is another."""
    home = tmp_path_factory.mktemp("gpg")
    home.chmod(0o700)
    environ = {**os.environ, "GNUPGHOME": str(home)}
    words = ["--batch", "--quiet", "--passphrase", "", "--quick-generate-key", "releases@localhost", "ed25519", "sign"]
    try:
        subprocess.run(["gpg", *words, "never"], check=True, capture_output=True, env=environ)
        for name in ("apt", "broken"):
            tree, address = whole_release / name, ["--address", f"{SERVER}/{name}"]
            command = [ROOT / "build/release/apt.py", tree, *address, *whole_release.glob("*.deb")]
            subprocess.run(command, check=True, env=environ)
        for index in (whole_release / "broken/dists/stable").rglob("*"):
            if index.is_file() and "main" in index.parts:
                data = bytearray(index.read_bytes())
                data[-2] ^= 1
                index.write_bytes(data)
        yield
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], check=False, env=environ)


@pytest.fixture
def fresh_machine(request: pytest.FixtureRequest, tmp_path: Path, whole_release: Path) -> Iterator[Machine]:
    """A machine with the root of a suite, and a server outside with the release."""
    with served_host(tmp_path, request.param, whole_release) as made:
        yield made


def files_of(host: Machine) -> set[str]:
    """Every file with its mode, owner and target, but for what others write down."""
    said = host.run("find", "/", "-xdev", "-printf", r"%p %y%m %U:%G %l\n").stdout.splitlines()
    return {line for line in said if not BOOKKEEPING.search(line)}


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
    if not words:  # as after a power cut before the end
        host.run("sh", "-c", "echo sum begun >>/var/lib/cni-calico/installed && : >/usr/lib/cni-calico/calicoctl")
        again = install(host, *words)
        assert again.returncode == 0 and "\ninstalled version " in f"\n{again.stdout}" and files_of(host) == installed
        assert "cni-calico:" in host.run("calicoctl", "version", "--client").stdout
    gone = host.run("sh", "-c", f"curl -fsS {SERVER}/install.sh | sh -s -- --uninstall")
    assert gone.stdout.endswith("This host is as it was before.\n")
    assert files_of(host) ^ before == set()


@pytest.mark.usefixtures("apt_trees")
@pytest.mark.parametrize("fresh_machine", ["bookworm", "trixie"], indirect=True)
def test_apt_installs_from_our_tree(fresh_machine: Machine) -> None:
    """By the page's own commands. What is Debian's comes from apt's cache: no mirror can be reached."""
    [commands] = [block for block in blocks("build.md", "A release") if "apt install" in block]
    for tree in ("broken", "apt"):
        script = f"cd /tmp && curl -fsSO {SERVER}/{tree}/cni-calico-archive.gpg -O {SERVER}/{tree}/cni-calico.sources"
        fresh_machine.run("sh", "-euc", script)
        done = fresh_machine.run("sh", "-c", f"cd /tmp && yes | sh -exc '{commands}'", check=False)
        candidate = fresh_machine.run("apt-cache", "policy", "calico-node").stdout
        if tree == "broken":
            assert done.returncode != 0 and "Hash Sum mismatch" in done.stdout + done.stderr, done
            assert "Candidate" not in candidate
    assert done.returncode == 0, done
    assert f"500 {SERVER}/apt stable/main" in candidate
    asked = fresh_machine.run("sh", "-c", """echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION /opt/cni/bin/calico""")
    assert '"supportedVersions"' in asked.stdout
    assert "cni-calico:" in fresh_machine.run("calicoctl", "version", "--client").stdout


def give(host: Machine, release: Path, served: Path) -> None:
    """What it installs of the release, where the pages have it: in dist/release of the current directory."""
    names = [path.name for path in release.iterdir() if path.suffix in (".deb", ".sh") or path.name == "SHA256SUMS"]
    subprocess.run(["tar", "-C", release, "-cf", served / "given.tar", *names], check=True)
    host.run("sh", "-euc", f"mkdir -p /srv/dist/release; curl -fsS {SERVER}/given.tar | tar -C /srv/dist/release -x")


def by_the_page(host: Machine, commands: str, *, check: bool = True) -> subprocess.CompletedProcess[str]:
    return host.run("sh", "-exc", f"cd /srv\n{commands}", check=check)


@pytest.mark.parametrize("fresh_machine", ["bookworm"], indirect=True)
def test_podman_by_its_page(fresh_machine: Machine, built_release: Path, whole_release: Path) -> None:
    """What somebody does who knows nothing but docs/podman.md; then two containers ping, and everything goes again.
    Then what docs/hosts.md says.
    """
    host = fresh_machine
    give(host, built_release, whole_release)
    # podman makes no overlay on an overlay; this process may not raise its limits, as crun does, nor make cgroups
    host.run("sh", "-c", "mkdir -p /var/lib/containers && mount -t tmpfs none /var/lib/containers")
    limits = '[containers]\ncgroups = "disabled"\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
    host.write("/etc/containers/containers.conf.d/lab.conf", limits)
    before = files_of(host)
    install_it, choose_cni = blocks("podman.md", "Set up")
    refused = by_the_page(host, install_it, check=False)
    assert refused.returncode == 1 and "let podman use CNI" in refused.stderr, refused.stderr
    assert "networkBackend: cni" in by_the_page(host, choose_cni).stdout
    done = by_the_page(host, install_it)
    assert "This host is set up.\n" in done.stdout and " calico " in done.stdout, done
    assert '"portmap"' in host.run("cat", "/etc/cni/net.d/10-calico.conflist").stdout

    image = (
        "mkdir -p /tmp/i/bin /tmp/i/www && cp /bin/busybox /tmp/i/bin && echo welcome >/tmp/i/www/index.html &&"
        " for c in sleep ping httpd; do ln -s busybox /tmp/i/bin/$c; done && tar -C /tmp/i -c . |"
        ' podman import --change \'CMD ["httpd", "-f", "-p", "80", "-h", "/www"]\' - docker.io/library/nginx'
    )
    host.run("sh", "-c", image)
    [use] = blocks("podman.md", "Use")
    run_it, rest = use.split("podman inspect", 1)
    by_the_page(host, run_it)
    until(lambda: host.run("curl", "-fsS", "http://localhost:8080/", check=False).returncode == 0, "web answers", 60)
    said = by_the_page(host, f"podman inspect{rest}").stdout
    assert "\nwelcome\n" in said and "web" in said, said

    run = ("podman", "run", "-d", "--network", "calico", "--cap-add", "NET_RAW")
    for name in ("one", "two"):
        host.run(*run, "--name", name, "docker.io/library/nginx", "sleep", "1000")
    address = host.run(
        "podman", "inspect", "-f", "{{.NetworkSettings.Networks.calico.IPAddress}}", "two"
    ).stdout.strip()
    assert " 0% packet loss" in host.run("podman", "exec", "one", "ping", "-c", "2", address).stdout
    uninstall = "cd /srv && dist/release/install.sh --uninstall"
    refused = host.run("sh", "-c", uninstall, check=False)
    assert refused.returncode == 1 and "containers still have an interface" in refused.stderr
    assert "0% packet loss" in host.run("podman", "exec", "one", "ping", "-c", "1", address).stdout
    host.run("podman", "rm", "-f", "-t", "0", "one", "two")
    host.run("sh", "-c", uninstall)
    assert {line for line in files_of(host) ^ before if not PODMANS.search(line)} == set()

    # the other page's way to the same, with a signature of one's own
    _, signed, *_ = blocks("hosts.md", "From a release")
    done = by_the_page(host, signed)
    assert "nobody vouches" not in done.stderr and "This host is set up.\n" in done.stdout, done
    assert " calico " in host.run("podman", "network", "ls").stdout
    host.run("sh", "-c", uninstall)
