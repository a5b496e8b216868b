"""The build root and the image's lower layer: from all of Debian's suites, nothing newer, and whole though small."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.deadlines import until

sys.path.insert(0, str(ROOT / "build" / "release"))
sys.path.insert(0, str(ROOT / "build" / "image"))
sys.path.insert(0, str(ROOT / "build"))

import lower
from components import read_layer
from elf import is_elf
from native import compile_front, write_header

SCRIPT = ROOT / "build" / "release" / "root.sh"
SUITES = ("bookworm", "bookworm-updates", "bookworm-security")


def call(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *words], capture_output=True, text=True, env={**os.environ, **environment})


def test_packages_come_from_all_suites() -> None:
    rows = [line.split() for line in call("--sources").stdout.splitlines()]
    assert [row[3] for row in rows] == list(SUITES)
    assert all(row[0] == "deb" and row[4:] == ["main"] for row in rows)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "known are amd64, arm64"),
        (["riscv64"], 2, "cannot make a build root for riscv64"),
        (["amd64", "--renew"], 2, "unknown argument --renew"),
        (["amd64", "--news"], 1, "there is no build root for amd64 yet"),
    ],
)
@pytest.mark.netns
def test_what_is_wrong_is_said_and_nothing_is_made(tmp_path: Path, words: list[str], status: int, said: str) -> None:
    done = call(*words, XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == status and said in done.stderr
    assert call("amd64", "--check", XDG_CACHE_HOME=str(tmp_path)).returncode == 1
    assert [path.name for path in tmp_path.rglob("*") if path.name[-5:] != ".lock"] in ([], ["cni-calico"])


@pytest.mark.netns
def test_it_needs_root(tmp_path: Path) -> None:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = ["unshare", "--user", SCRIPT, "amd64"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "needs root" in done.stderr


# what a kernel before 6.7, and a machine that does not have a package and cannot get it, would answer
MOUNT = """#!/bin/sh
case "$*" in *binfmt_misc*) echo "mount: permission denied." >&2; exit 32 ;; esac
exec /usr/bin/mount "$@"
"""
DPKG = """#!/bin/sh
case "$*" in *qemu-user-static*) exit 1 ;; esac
exec /usr/bin/dpkg-query "$@"
"""
APT = """#!/bin/sh
case "$*" in *qemu-user-static* | *update*) echo "E: Unable to locate package qemu-user-static" >&2; exit 100 ;; esac
exec /usr/bin/apt-get "$@"
"""
HIDDEN = "touch none; mount --bind none /usr/bin/qemu-aarch64-static"


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (
            ("--user", "--map-root-user", "echo 0 >/proc/sys/user/max_user_namespaces"),
            "user namespaces are switched off (sysctl user.max_user_namespaces, ",
        ),
        (("--mount", "mount -t tmpfs none /proc/sys/fs"), "the kernel has no binfmt_misc (CONFIG_BINFMT_MISC)"),
        (("--mount", "PATH=$PWD/mount:$PATH"), "has no binfmt_misc for each namespace, Linux has since 6.7"),
        (("--mount", HIDDEN), "the emulator /usr/bin/qemu-aarch64-static is missing, although "),
        (
            ("--mount", f"{HIDDEN}; PATH=$PWD/dpkg-query:$PWD/apt-get:$PATH"),
            "Debian's qemu-user-static, which has the emulator, could not be installed",
        ),
    ],
)
@pytest.mark.netns
@pytest.mark.arm64
def test_why_another_processor_cannot_be_emulated_is_said(tmp_path: Path, state: tuple[str, ...], said: str) -> None:
    """And which machine needs no emulator; nothing is made, and what a killed run left is gone."""
    for name, text in {"mount": MOUNT, "dpkg-query": DPKG, "apt-get": APT}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(text)
        (tmp_path / name / name).chmod(0o755)
    left = tmp_path / "cache/cni-calico/root-arm64.Ab12Cd/made/tree"
    left.mkdir(parents=True)
    *namespaces, prepare = state
    shell = [*namespaces, "sh", "-euc", f'{prepare}; exec "$0" arm64', SCRIPT]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run(["unshare", *shell], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1 and said in done.stderr, done.stderr
    assert "cannot run programs of arm64 here: " in done.stderr
    assert "; on a machine of that processor nothing is emulated\n" in done.stderr
    assert [path.name for path in (tmp_path / "cache/cni-calico").iterdir()] == ["root-arm64.lock"]


@pytest.mark.netns
@pytest.mark.arm64
def test_programs_of_another_processor_run_only_in_it(tmp_path: Path) -> None:
    """The native front for arm64 is one that needs no root; users have their own numbers there."""
    program = tmp_path / "calico"
    write_header(tmp_path)
    compile_front("calico", program, tmp_path, compiler="aarch64-linux-gnu-gcc")
    environment = {**os.environ, "CNI_COMMAND": "VERSION"}
    foreign = ROOT / "build/release/foreign.sh"
    shell = f'echo \'{{"cniVersion": "1.0.0"}}\' | {program}; stat -c %u:%g /etc/shadow'
    done = subprocess.run([foreign, "arm64", "sh", "-c", shell], capture_output=True, text=True, env=environment)
    answer, owner = done.stdout.splitlines()
    assert "1.0.0" in json.loads(answer)["supportedVersions"], done.stderr
    assert owner == f"{Path('/etc/shadow').stat().st_uid}:{Path('/etc/shadow').stat().st_gid}"
    with pytest.raises(OSError, match="Exec format error"):
        subprocess.run([program])
    assert subprocess.run([foreign, "arm64", "sh", "-c", "exit 7"]).returncode == 7
    # nothing is emulated for this machine's own
    own = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True).stdout.strip()
    same = subprocess.run([foreign, own, "readlink", "/proc/self/ns/user"], capture_output=True, text=True)
    assert same.stdout.strip() == os.readlink("/proc/self/ns/user")


@pytest.mark.slow
@pytest.mark.netns
def test_one_that_was_killed_half_way_is_no_root(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    process = subprocess.Popen(
        ["nice", SCRIPT, "amd64"], env=environment, stdout=subprocess.DEVNULL, start_new_session=True
    )
    until(lambda: list(tmp_path.glob("cni-calico/root-amd64.*/made/tree/*")), "the root has begun", timeout_s=300)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert call("amd64", "--check", XDG_CACHE_HOME=str(tmp_path)).returncode == 1


@pytest.fixture(scope="module")
def build_root() -> Path:
    subprocess.run(["nice", SCRIPT, "amd64"], check=True)
    return Path(call("amd64", "--print").stdout.strip())


def newer(root: Path, status: bytes, directory: Path) -> list[str]:
    """What apt would install instead of the packages of ``status``, from the lists of the day when Debian was asked."""
    (directory / "status").write_bytes(status)
    (directory / "sources").write_text(call("--sources").stdout)
    (directory / "cache").mkdir(exist_ok=True)
    options = {
        "Dir::State::status": directory / "status",
        "Dir::State::lists": root / "lists",
        "Dir::Etc::sourcelist": directory / "sources",
        "Dir::Etc::sourceparts": "-",
        "Dir::Etc::preferencesparts": "-",
        "Dir::Cache": directory / "cache",
        "Dir::Log": directory,
        "APT::Get::Show-User-Simulation-Note": "false",
    }
    words = [f"-o={name}={value}" for name, value in options.items()]
    done = subprocess.run(["apt-get", "-s", *words, "dist-upgrade"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("Inst ")]


@pytest.mark.slow
@pytest.mark.netns
def test_debian_had_nothing_newer(build_root: Path, tmp_path: Path) -> None:
    indexes = sorted(path.name for path in (build_root / "lists").glob("*_Packages*"))
    for suite in SUITES:
        assert any(f"_dists_{suite}_main_binary-" in name for name in indexes), indexes
    status = (build_root / "tree/var/lib/dpkg/status").read_bytes()
    assert newer(build_root, status, tmp_path) == []
    # apt would name an older one
    before, package, rest = status.partition(b"\nPackage: kmod\n")
    fields, _, others = rest.partition(b"\n\n")
    old = before + package + re.sub(rb"(?m)^Version: .*$", b"Version: 1", fields) + b"\n\n" + others
    assert [line.split()[1] for line in newer(build_root, old, tmp_path)] == ["kmod"]


@pytest.mark.slow
@pytest.mark.netns
def test_what_debian_has_newer_is_listed_and_an_old_root_is_named(build_root: Path, tmp_path: Path) -> None:
    """In the place of the real build root one whose status says that kmod is old."""
    status = (build_root / "tree/var/lib/dpkg/status").read_text()
    before, _, rest = status.partition("\nPackage: kmod\n")
    other = tmp_path / "cni-calico" / build_root.name
    (other / "tree/var/lib/dpkg").mkdir(parents=True)
    (other / "tree/var/lib/dpkg/status").write_text(
        f"{before}\nPackage: kmod\n" + re.sub(r"(?m)^Version: .*$", "Version: 1", rest, count=1)
    )
    (other / "asked").touch()
    (other.parent / build_root.name.rpartition("-")[0]).symlink_to(build_root.name)
    done = call("amd64", "--news", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1 and "kmod [1] (" in done.stdout, done.stdout + done.stderr
    (other / "tree/var/lib/dpkg/status").write_text(status)
    os.utime(other / "asked", (0, 0))
    done = call("amd64", "--news", XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 1 and "kmod" not in done.stdout
    assert "more than 7 days ago: build/release/root.sh amd64 --update" in done.stderr


# -- the lower layer --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def layer(build_root: Path) -> Path:
    script = ROOT / "build" / "image" / "lower.sh"
    subprocess.run(["nice", script, "amd64"], check=True)
    return Path(subprocess.run([script, "amd64", "--print"], capture_output=True, text=True, check=True).stdout.strip())


@pytest.fixture(scope="module")
def unpacked(layer: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("layer")
    subprocess.run(["tar", "-C", directory, "-xzf", layer], check=True)
    yield directory


def inside(root: Path, script: str) -> str:
    """In the layer, in namespaces of its own, with /proc and /dev."""
    mounts = 'mount --bind /dev "$0/dev" && mount -t proc proc "$0/proc"'
    command = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "sh", "-c"]
    done = subprocess.run(
        [*command, f'{mounts} && exec chroot "$0" /bin/sh -euc "$1"', root, script],
        capture_output=True, text=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.netns
def test_what_calico_node_starts_runs_in_it(unpacked: Path) -> None:
    said = inside(
        unpacked,
        """
bird --version 2>&1
birdc -h 2>&1 | head -n 1
nft --version
iptables-nft -V; ip6tables-legacy -V; iptables -V
ip link set lo up; ip -br addr; ss -V; bridge -V; tc -V 2>&1
modprobe --version | head -n 1
printf 'create one hash:ip\\nadd one 192.0.2.1\\n' | ipset restore -exist
iptables-legacy -A FORWARD -m set --match-set one src -m multiport -p tcp --dports 80,90:99 -j DROP
iptables-legacy-save
nft add table ip x; nft list ruleset
bash -c 'echo $((6 * 7))'
for program in cat cp dd find grep head ln ls mkdir mktemp mv rm sha256sum sync touch flock tr sed awk tar; do
  command -v $program >/dev/null || echo missing $program
done
getent passwd root; . /etc/os-release; echo "$PRETTY_NAME"
""",
    )
    assert "missing" not in said, said
    wanted = ("BIRD version 2", "nftables v", "nf_tables", "legacy", "127.0.0.1/8", "kmod version", "--match-set one")
    for text in (*wanted, "table ip x", "42", "root:x:0:0", "Debian GNU/Linux 12 (bookworm)"):
        assert text in said, (text, said)


@pytest.mark.slow
@pytest.mark.netns
def test_every_program_in_it_finds_its_libraries(unpacked: Path) -> None:
    programs = [
        f"/{path.relative_to(unpacked)}"
        for directory in ("usr/bin", "usr/sbin", "usr/lib/x86_64-linux-gnu")
        for path in (unpacked / directory).rglob("*")
        if path.is_file() and not path.is_symlink() and is_elf(path)
    ]
    assert len(programs) > 100
    linker = "/lib64/ld-linux-x86-64.so.2"
    said = inside(unpacked, "".join(f"{linker} --list {path} || echo {path}: static\n" for path in programs))
    assert "not found" not in said


@pytest.mark.slow
@pytest.mark.netns
def test_status_licences_and_files_name_the_same_packages(build_root: Path, layer: Path, unpacked: Path) -> None:
    listed = set(re.findall(r"(?m)^Package: (\S+)$", (unpacked / "var/lib/dpkg/status").read_text()))
    assert {path.name for path in (unpacked / "usr/share/doc").iterdir()} == listed
    assert {component.name for component in read_layer(layer)} == listed
    assert {"bird2", "nftables", "libc6", "base-files", "libnftables1"} <= listed
    assert not {"gcc", "python3", "perl-base", "apt", "dpkg"} & listed
    owners = lower.Root(build_root / "tree").owners
    with tarfile.open(layer) as tar:
        files = {member.name for member in tar if member.isfile()}
    written = {*lower.WRITTEN, lower.STATUS}
    assert {owners[name] for name in files - written if not name.startswith("usr/share/doc")} == listed


@pytest.mark.slow
@pytest.mark.netns
def test_it_is_small(layer: Path) -> None:
    assert layer.stat().st_size < 17_000_000
