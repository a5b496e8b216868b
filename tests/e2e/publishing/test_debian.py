""".ci/debian on a machine that is no Debian 12: the command has that root as its own, and the kernel's namespaces."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.netns

# this machine's root, changed nowhere, is what debootstrap would have made
_ENTER = r"""
set -eu
mkdir "$DIR/upper" "$DIR/work" "$DIR/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/upper,workdir=$DIR/work" "$DIR/root"
touch "$DIR/root.made"
cd "$DIR/here"
exec "$DEBIAN" "$@"
"""


def run(directory: Path, *command: str, environment: Mapping[str, str] = {}) -> subprocess.CompletedProcess[str]:
    (directory / "here").mkdir()
    (directory / "os-release").write_text("ID=ubuntu\nVERSION_ID=24.04\n")
    inherited = {name: value for name, value in os.environ.items() if name not in ("LAB_CACHE", "XDG_CACHE_HOME")}
    given = {
        **inherited,
        **environment,
        "DIR": str(directory),
        "DEBIAN": str(ROOT / ".ci/debian"),
        "DEBIAN_ROOT": str(directory / "root"),
        "OS_RELEASE": str(directory / "os-release"),
    }
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", _ENTER, "sh", *command],
        env=given,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_namespaces_of_users_can_be_made_there(tmp_path: Path) -> None:
    """build/release/foreign.sh emulates another processor in one."""
    done = run(tmp_path, "unshare", "--user", "--map-root-user", "id", "-u")
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_it_has_that_root_and_our_directory(tmp_path: Path) -> None:
    done = run(
        tmp_path, "bash", "-c", 'pwd; echo made >"$0"; echo changed >/new; findmnt -no FSTYPE -M /; exit 7', "file"
    )
    assert (done.returncode, done.stdout) == (7, f"{tmp_path}/here\noverlay\n"), done.stderr
    assert (tmp_path / "here/file").read_text() == "made\n"
    assert (tmp_path / "upper/new").read_text() == "changed\n" and not Path("/new").exists()


def test_the_programs_are_those_of_its_root_user(tmp_path: Path) -> None:
    done = run(tmp_path, "bash", "-c", "echo $HOME $PATH", environment={"HOME": "/home/somebody"})
    home, path = done.stdout.split()
    assert home == "/root" and path.startswith(f"{home}/.cache/cni-lab/bin:/usr/local/sbin:"), done.stderr
