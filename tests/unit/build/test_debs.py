"""The modes of settings in Debian packages: of the file in the package, and of one that an older version installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cni_calico.directories import REFERENCE_PLUGIN_DIRS
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build" / "release"))

import debs
from edition import Edition

WITH_SETTINGS = ("calico-node", "calico-docker", "calico-kube-controllers")
GROUP = 12345


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """As much of a release's tree as packages of settings are made of."""
    tree = tmp_path / "release"
    shutil.copytree(ROOT / "install", tree / "install")
    shutil.copy(ROOT / "CHANGELOG.md", tree)
    return tree


@pytest.mark.parametrize("name", WITH_SETTINGS)
def test_settings_are_their_owners_alone(release: Path, tmp_path: Path, name: str) -> None:
    (package,) = [one for one in debs.PACKAGES if one.name == name]
    before = os.umask(0)
    try:
        file = debs._build(package, release, tmp_path, tmp_path / "root", Edition("1.0", "00000000", "amd64", 0))
    finally:
        os.umask(before)
    listed = subprocess.run(["dpkg-deb", "-c", file], capture_output=True, text=True, check=True).stdout.splitlines()
    modes = {line.split()[5]: line.split()[0] for line in listed}
    assert modes[f"./etc/calico/{name}.env"] == "-rw-------"
    assert modes["./etc/calico/"] == "drwxr-xr-x"
    assert modes[f"./lib/systemd/system/{name}.service"] == "-rw-r--r--"


def test_old_hosts_can_install_the_agent(release: Path, tmp_path: Path) -> None:
    """dpkg of Debian 11 reads no zstd, and Ubuntu 22.04 has an older BIRD, which only BGP needs."""
    (package,) = [one for one in debs.PACKAGES if one.name == "calico-node"]
    file = debs._build(package, release, tmp_path, tmp_path / "root", Edition("1.0", "00000000", "amd64", 0))
    members = subprocess.run(["ar", "t", file], capture_output=True, text=True, check=True).stdout.split()
    assert members == ["debian-binary", "control.tar.xz", "data.tar.xz"]
    asked = subprocess.run(
        ["dpkg-deb", "-f", file, "Depends", "Recommends"], capture_output=True, text=True, check=True
    )
    fields = dict(line.split(": ", 1) for line in asked.stdout.splitlines())
    assert fields["Recommends"] == "bird2 (>= 2.0.12)" and "bird" not in fields["Depends"]
    assert "nftables" in fields["Depends"].split(", ")


def test_the_plugins_package_has_those_of_the_cni_project(release: Path, tmp_path: Path) -> None:
    """Where no other package has its own."""
    (release / "plugins").mkdir()
    (release / "plugins/portmap").write_text("x")
    (release / "plugins/portmap").chmod(0o755)
    (package,) = [one for one in debs.PACKAGES if one.name == "calico-cni"]
    file = debs._build(package, release, tmp_path, tmp_path / "root", Edition("1.0", "00000000", "amd64", 0))
    listed = subprocess.run(["dpkg-deb", "-c", file], capture_output=True, text=True, check=True).stdout
    assert re.search(r"(?m)^-rwxr-xr-x .* ./usr/libexec/cni-calico/portmap$", listed)
    assert f"/{debs.REFERENCE_DIRECTORY}" in REFERENCE_PLUGIN_DIRS, "calicoctl node init finds it"


def test_docker_s_package_has_sockets_that_go_with_it(release: Path, tmp_path: Path) -> None:
    (package,) = [one for one in debs.PACKAGES if one.name == "calico-docker"]
    root = tmp_path / "root"
    debs._build(package, release, tmp_path, root, Edition("1.0", "00000000", "amd64", 0))
    units = root / "lib" / "systemd" / "system"
    assert (units / "calico-docker.socket").exists()
    assert "ExecStart=/usr/lib/cni-calico/calico-docker" in (units / "calico-docker.service").read_text()
    assert "disable --now calico-docker.socket calico-docker.service" in (root / "DEBIAN" / "prerm").read_text()
    assert "calico-node (= 1.0)" in (root / "DEBIAN" / "control").read_text()


def test_the_agents_package_has_the_boot_table_and_takes_it_away(release: Path, tmp_path: Path) -> None:
    (package,) = [one for one in debs.PACKAGES if one.name == "calico-node"]
    debs._build(package, release, tmp_path, tmp_path / "root", Edition("1.0", "00000000", "amd64", 0))
    unit = (tmp_path / "root/lib/systemd/system/calico-boot-table.service").read_text()
    assert "ExecStart=/usr/lib/cni-calico/calico-node -boot-table" in unit
    prerm = (tmp_path / "root/DEBIAN/prerm").read_text()
    assert 'if [ "$1" = remove ]; then /usr/lib/cni-calico/calicoctl node boot-table off || :; fi' in prerm


@pytest.mark.parametrize(
    ("mode", "group", "wanted"),
    [
        (0o644, 0, 0o600),  # as it came before
        (0o664, GROUP, 0o660),
        (0o640, GROUP, 0o640),
        (0o640, 0, 0o640),
        (0o400, 0, 0o400),
    ],
)
def test_an_upgrade_closes_what_was_open_and_nothing_else(tmp_path: Path, mode: int, group: int, wanted: int) -> None:
    settings = tmp_path / "calico-node.env"
    settings.write_text("ETCD_PASSWORD=x\n")
    os.chown(settings, 0, group)
    settings.chmod(mode)
    run_postinst(settings)
    assert (settings.stat().st_mode & 0o777, settings.stat().st_gid) == (wanted, group)
    assert settings.read_text() == "ETCD_PASSWORD=x\n"


def test_a_link_or_no_file_at_all_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    target.touch(0o644)
    target.chmod(0o644)
    run_postinst(tmp_path / "missing")
    (tmp_path / "link").symlink_to(target)
    run_postinst(tmp_path / "link")
    assert target.stat().st_mode & 0o777 == 0o644


def run_postinst(settings: Path) -> None:
    """The packages' scripts, about another file; without systemd they do nothing else."""
    for name in WITH_SETTINGS:
        (package,) = [one for one in debs.PACKAGES if one.name == name]
        script = debs._scripts(package)["postinst"]
        assert f"file=/etc/calico/{name}.env\n" in script
        script = script.replace(f"/etc/calico/{name}.env", str(settings)).replace("/run/systemd/system", "/nonexistent")
        subprocess.run(["sh", "-c", script, "postinst", "configure", "0.1.0"], check=True)
