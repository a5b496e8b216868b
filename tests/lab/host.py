"""What the lab does to this machine: programs, namespaces, cgroups, certificates; each with its undo.

Rule: everything has the lab's name in it ("cct-..."), every program dies with the test run that started it, and nothing
is ended that was not started here.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import LAB_CACHE

BIN = LAB_CACHE / "bin"
CONTAINERD = BIN / "containerd"
PLUGINS = LAB_CACHE / "cni" / "bin"
CGROUPS = Path("/sys/fs/cgroup")
_OF_THE_KUBELET = ("cpu", "cpuacct", "cpuset", "memory")  # without one of them, of v1, it does not start
# what a kubelet sets for the whole machine
SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")


def pause(seconds: float = 0.1) -> None:
    """Between two looks at a program that is at work."""
    select.select([], [], [], seconds)


def has_sctp() -> bool:
    """Whether this kernel has SCTP."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        return False
    return True


def run(*argv: str | Path, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=180, **options)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, argv))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def start(log: Path, *argv: str | Path, **options: Any) -> subprocess.Popen[bytes]:
    """A program whose output goes to ``log``, and that is killed when this process ends."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [str(a) for a in argv], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            preexec_fn=_die_with_parent, start_new_session=True, **options,
        )  # fmt: skip


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


# -- directories ------------------------------------------------------------------------------------------------------


@contextmanager
def places_on_this_machine(paths: Iterable[str]) -> Iterator[None]:
    """Empty directories to mount a node's own over; those that were not here go again."""
    made: list[Path] = []
    for path in map(Path, paths):
        new = [each for each in (path, *path.parents) if not each.exists()]
        path.mkdir(parents=True, exist_ok=True)
        made += reversed(new)
    try:
        yield
    finally:
        for each in reversed(made):
            each.rmdir()


# -- cgroups ----------------------------------------------------------------------------------------------------------


def ensure_cgroup(name: str) -> None:
    """In every hierarchy of v1, or in v2."""
    if (CGROUPS / "cgroup.controllers").exists():
        (CGROUPS / name).mkdir(parents=True, exist_ok=True)
        return
    for controller in _OF_THE_KUBELET:
        if not (CGROUPS / controller / "cgroup.procs").exists():
            command = f"mount -t cgroup -o {controller} cgroup {CGROUPS / controller}"
            raise RuntimeError(f"a kubelet needs the cgroup controller {controller}, which is not mounted: {command}")
    for hierarchy in {path.resolve() for path in CGROUPS.iterdir() if path.is_dir()}:
        directory = hierarchy
        for part in name.split("/"):
            parent, directory = directory, directory / part
            directory.mkdir(exist_ok=True)
            for file in ("cpuset.cpus", "cpuset.mems"):  # empty in a new cpuset, which then takes no process
                if (directory / file).exists() and not (directory / file).read_text().strip():
                    (directory / file).write_text((parent / file).read_text())


def remove_cgroup(name: str) -> None:
    tops = {CGROUPS, *(path.resolve() for path in CGROUPS.iterdir() if path.is_dir())}
    for top in tops:
        for directory, _, _ in os.walk(top / name, topdown=False):
            _remove_when_empty(Path(directory))


def _remove_when_empty(directory: Path) -> None:
    """Killed processes leave their cgroup a moment later."""
    for _ in range(50):
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            pause()


def read_sysctls() -> dict[str, str]:
    return {name: Path(f"/proc/sys/{name}").read_text() for name in SYSCTLS}


def restore_sysctls(values: Mapping[str, str]) -> None:
    for name, value in values.items():
        Path(f"/proc/sys/{name}").write_text(value)


# -- certificates -----------------------------------------------------------------------------------------------------


class Authority:
    """A certificate authority in a directory; keys and certificates beside it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700)
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "ca.key")
        usage = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
        self._openssl(
            "req", "-x509", "-new", "-key", "ca.key", "-subj", "/CN=lab", "-days", "30", "-out", "ca.crt", *usage
        )
        self._openssl("genrsa", "-out", "accounts.key", "2048")
        self._openssl("rsa", "-in", "accounts.key", "-pubout", "-out", "accounts.pub")

    def path(self, name: str) -> Path:
        return self.directory / name

    def issue(self, name: str, subject: str, names: str = "") -> None:
        """A key and certificate for client and server; ``names`` as in subjectAltName."""
        extensions = "extendedKeyUsage=serverAuth,clientAuth\n" + (f"subjectAltName={names}\n" if names else "")
        self.path(f"{name}.ext").write_text(extensions)
        self._openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
        self._openssl("req", "-new", "-key", f"{name}.key", "-subj", subject, "-out", f"{name}.csr")
        authority = ("-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "30")
        self._openssl(
            "x509", "-req", "-in", f"{name}.csr", *authority, "-extfile", f"{name}.ext", "-out", f"{name}.crt"
        )

    def kubeconfig(self, path: Path, server: str, name: str = "", *, token: str = "") -> Path:
        """For the holder of a certificate, or of a token."""
        user = {"token": token} if token else {
            "client-certificate-data": self._data(f"{name}.crt"), "client-key-data": self._data(f"{name}.key")
        }  # fmt: skip
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "c", "cluster": {"server": server, "certificate-authority-data": self._data("ca.crt")}}
            ],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document))
        path.chmod(0o600)
        return path

    def _data(self, name: str) -> str:
        return base64.b64encode(self.path(name).read_bytes()).decode()

    def _openssl(self, *arguments: str) -> None:
        run("openssl", *arguments, cwd=self.directory)


def arguments(**options: str | Path | int) -> Sequence[str]:
    """``--name=value`` of each; "_" becomes "-"."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
