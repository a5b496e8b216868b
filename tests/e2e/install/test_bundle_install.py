"""build/install-bundle.sh: a plugin directory is upgraded under running calls, and old hosts can use it."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LAB_CACHE, ROOT

pytestmark = pytest.mark.bundle

INSTALL = ROOT / "build" / "install-bundle.sh"
OLD_ROOT = LAB_CACHE / "old-root.tar.gz"


def install(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([INSTALL, *arguments], capture_output=True, text=True)


def installed(*arguments: str | Path) -> None:
    done = install(*arguments)
    assert (done.returncode, done.stderr) == (0, "")


def version(executable: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([executable], input="{}", capture_output=True, text=True, env={"CNI_COMMAND": "VERSION"})


def python_version(executable: Path) -> subprocess.CompletedProcess[str]:
    """VERSION asked so that the native front leaves it to Python."""
    environ = {"CNI_COMMAND": "VERSION"}
    question = '{"cniVersion":"9.9.9"}'
    return subprocess.run([executable], input=question, capture_output=True, text=True, env=environ)


def contents(directory: Path) -> set[str]:
    return {p.name for p in directory.glob(".calico-*")}


@pytest.fixture(scope="session")
def source(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the bundle that stays the same while dist/bin may be built again."""
    directory = tmp_path_factory.mktemp("source")
    installed("--plain", bundle, directory)
    return directory


@pytest.fixture(scope="session")
def other_bundle(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return renamed(source, tmp_path_factory.mktemp("other"), "ffffffff")


def renamed(source: Path, directory: Path, build: str) -> Path:
    """The same bundle as if it were another build: the name of the contents directory, everywhere it stands."""
    (old,) = contents(source)
    new = old.rpartition("-")[0] + "-" + build
    shutil.copytree(source / old, directory / new, symlinks=True)
    for line in (source / old / "executables").read_text().splitlines():
        name = line.split()[1]
        (directory / name).write_bytes((source / name).read_bytes().replace(old.encode(), new.encode()))
        (directory / name).chmod(0o755)
    names = sorted(p.name for p in directory.iterdir() if p.is_file())
    sums = subprocess.run(["sha256sum", *names], cwd=directory, capture_output=True, text=True, check=True).stdout
    (directory / new / "executables").write_text(sums)
    return directory


def age(mark: Path, days: float) -> None:
    when = time.time() - days * 86400
    os.utime(mark, (when, when))


def test_installed_executables_use_the_bundled_c_library(source: Path, tmp_path: Path) -> None:
    installed(source, tmp_path)
    assert contents(tmp_path) == contents(source)
    (name,) = contents(source)
    for executable in ("calico.python", "calico-ipam.python"):
        assert version(tmp_path / executable).returncode == 0
        listed = subprocess.run(
            [tmp_path / executable], env={"LD_TRACE_LOADED_OBJECTS": "1"}, capture_output=True, text=True, check=True
        ).stdout
        paths = [line.split("=>")[-1].split()[0] for line in listed.splitlines() if "vdso" not in line]
        assert paths
        assert [p for p in paths if not p.startswith(f"{tmp_path}/{name}/")] == []


def test_plain_executables_use_the_hosts_c_library(source: Path) -> None:
    listed = subprocess.run(["ldd", source / "calico.python"], capture_output=True, text=True, check=True).stdout
    (libc,) = (line.split("=>")[1].split()[0] for line in listed.splitlines() if "libc.so" in line)
    assert not libc.startswith(str(source))


def test_nothing_else_is_left_or_touched(source: Path, tmp_path: Path) -> None:
    (tmp_path / "bridge").write_text("another plugin")
    for _ in range(2):
        installed(source, tmp_path)
        names = {line.split()[1] for p in tmp_path.glob(".calico-*/executables") for line in p.read_text().splitlines()}
        assert {p.name for p in tmp_path.iterdir()} == names | {"bridge", "kubectl-calico"} | contents(source)
    assert (tmp_path / "bridge").read_text() == "another plugin"


def test_kubectl_finds_calicoctl_as_its_plugin(source: Path, tmp_path: Path) -> None:
    """Under its own name, also in place of an older program; not where calicoctl is not installed."""
    installed(source, tmp_path, tmp_path, "calico")
    plugin = tmp_path / "kubectl-calico"
    assert not plugin.exists()
    plugin.write_text("an older one")
    for arguments in ((), (tmp_path, "calico", "calicoctl")):
        installed(source, tmp_path, *arguments)
        assert plugin.readlink() == Path("calicoctl")
        done = subprocess.run([plugin, "get", "--help"], capture_output=True, text=True)
        assert done.returncode == 0 and "kubectl calico get" in done.stdout and "calicoctl get" not in done.stdout


def files(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def contents_of(directory: Path) -> Path:
    (name,) = contents(directory)
    return directory / name


def test_what_only_other_programs_need_is_not_beside_the_plugins(source: Path, tmp_path: Path) -> None:
    installed(source, tmp_path, tmp_path, "calico", "calico-ipam")
    ours = {"calico", "calico-ipam", "calico.python", "calico-ipam.python"}
    assert {p.name for p in tmp_path.iterdir()} == ours | contents(source)
    everything, found = files(contents_of(source)), files(contents_of(tmp_path))
    left_out = everything.keys() - found.keys()
    assert found == {name: everything[name] for name in found}
    assert {p.name for p in (contents_of(tmp_path) / "cni_calico").iterdir() if p.is_dir()} == {
        *("cni", "cnidataplane", "datastore", "ipam", "kernel", "model", "plugin"),
    }
    for package in ("pyroute2", "rich", "prometheus_client", "shtab", "jsonpatch", "jsonpath", "share"):
        assert any(name.partition("/")[0].partition(".")[0] == package for name in left_out), package
        assert not any(name.partition("/")[0].partition(".")[0] == package for name in found), package
    assert sum(len(everything[name]) for name in left_out) > 5 << 20
    for executable in ("calico", "calico-ipam"):
        assert python_version(tmp_path / executable).returncode == 0


def test_the_rest_is_added_beside_the_plugins_without_replacing_them(source: Path, tmp_path: Path) -> None:
    """The directory is completed while calls may be using it, and stays complete."""
    installed(source, tmp_path, tmp_path, "calico", "calico-ipam")
    used = contents_of(tmp_path) / "cni_calico" / "plugin" / "main.pyc"
    before = used.stat()
    installed(source, tmp_path)
    assert files(contents_of(tmp_path)) == files(contents_of(source))
    installed(source, tmp_path, tmp_path, "calico")
    assert files(contents_of(tmp_path)) == files(contents_of(source))
    assert used.stat().st_ino == before.st_ino
    assert subprocess.run([tmp_path / "calicoctl", "version", "--client"], capture_output=True).returncode == 0


@pytest.mark.parametrize("names", [(), ("calico", "calico-ipam")])
def test_a_damaged_directory_is_replaced(source: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    installed(source, tmp_path, tmp_path, "calico", "calico-ipam")
    (contents_of(tmp_path) / "cni_calico" / "plugin" / "main.pyc").write_bytes(b"broken")
    installed(source, tmp_path, tmp_path, *names)
    found = files(contents_of(tmp_path))
    everything = files(contents_of(source))
    assert found == {name: everything[name] for name in found} and (bool(names) or found == everything)


def test_calls_never_fail_during_upgrades(source: Path, other_bundle: Path, tmp_path: Path) -> None:
    installed(source, tmp_path)
    failures: list[str] = []
    stop = threading.Event()

    def call() -> None:
        while not stop.is_set():
            for done in (version(tmp_path / "calico"), python_version(tmp_path / "calico")):
                if done.returncode:
                    failures.append(done.stdout + done.stderr)

    callers = [threading.Thread(target=call) for _ in range(2)]
    # a call that began before the upgrade, and loads its modules after it
    waiting = subprocess.Popen(
        [tmp_path / "calico"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={"CNI_COMMAND": "NOSUCH"}
    )
    for thread in callers:
        thread.start()
    try:
        for bundle in (other_bundle, source, other_bundle):
            installed(bundle, tmp_path)
    finally:
        stop.set()
        for thread in callers:
            thread.join()
        answer, _ = waiting.communicate(b'{"cniVersion":"1.0.0"}')
    assert failures == []
    assert (waiting.returncode, b'"code":4' in answer.replace(b" ", b"")) == (1, True)
    assert contents(tmp_path) == contents(source) | contents(other_bundle)


def test_contents_of_older_versions_go_after_a_day(source: Path, other_bundle: Path, tmp_path: Path) -> None:
    third = renamed(source, tmp_path / "third", "eeeeeeee")
    target = tmp_path / "bin"
    (oldest,), (old,), (new,) = contents(source), contents(other_bundle), contents(third)
    installed(source, target)
    installed(other_bundle, target)
    installed(third, target)
    assert contents(target) == {oldest, old, new}
    age(target / oldest / "superseded", 0.9)
    installed(third, target)
    assert contents(target) == {oldest, old, new}
    age(target / oldest / "superseded", 3)
    age(target / old / "superseded", 2)
    installed(third, target)
    assert contents(target) == {old, new}, "the last one stays, however old"
    installed(other_bundle, target)
    assert not (target / old / "superseded").exists(), "it is in use again"
    assert python_version(target / "calico").returncode == 0


def test_damaged_contents_are_replaced(source: Path, tmp_path: Path) -> None:
    installed(source, tmp_path)
    (name,) = contents(source)
    (tmp_path / name / "os.pyc").write_bytes(b"damaged")
    (tmp_path / name / "encodings" / "utf_8.pyc").unlink()
    installed(source, tmp_path)
    assert python_version(tmp_path / "calico").returncode == 0
    assert contents(tmp_path) == {name}


@pytest.mark.parametrize("what", ["executable", "module"])
def test_a_damaged_source_changes_nothing(source: Path, other_bundle: Path, tmp_path: Path, what: str) -> None:
    target, damaged = tmp_path / "bin", tmp_path / "damaged"
    shutil.copytree(other_bundle, damaged, symlinks=True)
    (name,) = contents(other_bundle)
    victim = damaged / "calico" if what == "executable" else damaged / name / "os.pyc"
    victim.write_bytes(victim.read_bytes()[:-1] + b"\1")
    installed(source, target)
    before = {p.name: p.stat().st_ino for p in target.iterdir()}
    done = install(damaged, target)
    assert done.returncode == 1
    assert done.stderr.startswith("install-bundle.sh: cannot install")
    assert {p.name: p.stat().st_ino for p in target.iterdir()} == before


def test_chosen_executables_only(source: Path, tmp_path: Path) -> None:
    installed(source, tmp_path, tmp_path, "calico-ipam")
    assert {p.name for p in tmp_path.iterdir()} == {"calico-ipam", "calico-ipam.python"} | contents(source)
    assert python_version(tmp_path / "calico-ipam").returncode == 0


def test_the_python_of_an_executable_is_in_place_before_it(source: Path, tmp_path: Path) -> None:
    """Else calls would fail between two renames of the upgrade from a release that had no native executables."""
    (name,) = contents(source)
    order = [line.split()[1] for line in (source / name / "executables").read_text().splitlines()]
    for executable in ("calico", "calico-ipam"):
        assert order.index(f"{executable}.python") < order.index(executable)


def test_a_path_that_is_too_long_is_refused(source: Path, tmp_path: Path) -> None:
    done = install(source, tmp_path / "bin", "/" + "x" * 600)
    assert done.returncode == 1
    assert "the path is too long" in done.stderr


@dataclass(frozen=True)
class OldHost:
    """A Debian 11 root with the bundle in it, as built and as installed; /proc is mounted for each call only."""

    root: Path

    def run(self, *command: str, stdin: str = "{}") -> subprocess.CompletedProcess[str]:
        script = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'
        argv = ["unshare", "-m", "sh", "-c", script, self.root, *command]
        environ = {"CNI_COMMAND": "VERSION", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return subprocess.run(argv, input=stdin, env=environ, capture_output=True, text=True, timeout=60)

    def test_datastore(self, **conf: Any) -> subprocess.CompletedProcess[str]:
        """The plugin's own test of its datastore."""
        document = {"cniVersion": "1.0.0", "name": "net", "type": "calico", **conf}
        return self.run("/opt/cni/bin/calico", "-t", stdin=json.dumps(document))


@pytest.fixture(scope="module")
def old_host(source: Path, tmp_path_factory: pytest.TempPathFactory) -> OldHost:
    root = tmp_path_factory.mktemp("old")
    subprocess.run(["tar", "-C", root, "-xzf", OLD_ROOT], check=True)
    (root / "etc/hosts").write_text("127.0.0.1 localhost datastore\n")
    installed("--plain", source, root / "plain")
    installed(source, root / "opt/cni/bin", "/opt/cni/bin")
    return OldHost(root)


@pytest.mark.netns
def test_runs_on_a_host_with_an_older_c_library(old_host: OldHost) -> None:
    assert "2.31" in old_host.run("ldd", "--version").stdout
    assert "version `GLIBC_2.3" in old_host.run("/plain/calico.python").stderr
    for name in ("/plain/calico", "/plain/calico-ipam"):
        assert '"1.1.0"' in old_host.run(name).stdout, "the native executables need no C library"
    for name in ("calico", "calico-ipam"):
        for question in ("{}", '{"cniVersion":"9.9.9"}'):
            done = old_host.run(f"/opt/cni/bin/{name}", stdin=question)
            assert (done.returncode, done.stderr) == (0, "")
            assert '"1.1.0"' in done.stdout


@pytest.mark.netns
def test_datastores_work_on_an_older_host(old_host: OldHost) -> None:
    """SQLite, gRPC, TLS and the resolution of names, each with the libraries of the bundle."""
    path = "/var/lib/datastore.db"
    file = old_host.root / path.lstrip("/")
    done = old_host.test_datastore(datastore_type="local", datastore_path=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert not file.exists(), "a question makes no datastore"
    pool = {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": {"name": "pool"}}
    (old_host.root / "pool.json").write_text(json.dumps({**pool, "spec": {"cidr": "10.70.0.0/16"}}))
    local = ("env", "DATASTORE_TYPE=local", f"DATASTORE_PATH={path}")
    done = old_host.run(*local, "/opt/cni/bin/calicoctl", "apply", "-f", "/pool.json")
    assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(file)) as store:
        assert store.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    done = old_host.test_datastore(datastore_type="local", datastore_path=path)
    assert (done.returncode, done.stderr) == (0, "")
    file.write_bytes(b"no datastore" * 100)
    done = old_host.test_datastore(datastore_type="local", datastore_path=path)
    assert done.returncode == 1 and path in done.stderr, "the file was read"
    done = old_host.test_datastore(datastore_type="etcdv3", etcd_endpoints="http://datastore:1")
    assert done.returncode == 1
    assert "refused" in done.stdout + done.stderr
    access = {"k8s_api_root": "https://datastore:1", "k8s_auth_token": "t"}
    done = old_host.test_datastore(datastore_type="kubernetes", policy=access)
    assert done.returncode == 1
    assert "refused" in done.stdout + done.stderr


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_modes_do_not_follow_the_umask(source: Path, tmp_path: Path, umask: int) -> None:
    """With umask 0 everybody could write into a directory of programs that root runs."""
    target = tmp_path / "opt" / "cni" / "bin"
    subprocess.run([INSTALL, "--plain", source, target], umask=umask, check=True, timeout=120)
    levels = [target, target.parent, target.parent.parent, *(path for path in target.rglob("*") if path.is_dir())]
    assert {stat.S_IMODE(level.stat().st_mode) for level in levels} == {0o755}
    files = [path for path in target.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files and not [path for path in files if path.stat().st_mode & 0o022 or not path.stat().st_mode & 0o044]
