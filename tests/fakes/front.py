"""The native front with something harmless beside it in Python's place, and a server that says what a test wants."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "build"))

import native

ARM_COMPILER, ARM = "aarch64-linux-gnu-gcc", "/usr/bin/qemu-aarch64"
# in place of calico.python: says how it was executed
IN_PLACE_OF_PYTHON = """#!/usr/bin/python3 -IS
import json, os, sys
try:
    descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]
except OSError:
    descriptors = []
try:
    stdin = sys.stdin and sys.stdin.buffer.read().decode("latin-1")
except OSError as e:
    stdin = str(e)
environ = {k.decode("latin-1"): v.decode("latin-1") for k, v in os.environb.items()}
print(json.dumps([sys.argv, stdin, environ, descriptors]))
sys.exit(42)
"""
# a server of another user: changes into a directory, listens, and prints how much it was sent
IMPOSTOR = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
listener = socket.socket(socket.AF_UNIX)
listener.bind("cni.sock")
os.chmod("cni.sock", 0o666)
listener.listen(1)
print("listening", flush=True)
connection, _ = listener.accept()
print(len(connection.recv(65536)), flush=True)
"""
PYTHON_RAN = 42


@dataclass(frozen=True)
class Python:
    """How the Python beside the front was executed."""

    path: str
    arguments: tuple[str, ...]
    stdin: bytes | None
    environ: dict[str, bytes]
    descriptors: tuple[int, ...]


@dataclass(frozen=True)
class Front:
    """One way to execute the front; its calls run in ``cwd``, where the server's socket is run/cni.sock."""

    directory: Path
    wrapper: tuple[str, ...]
    cwd: Path
    environ: dict[str, str] = field(default_factory=dict)

    def argv(self, executable: str = "calico") -> list[str]:
        return [*self.wrapper, str(self.directory / executable)]

    def env(self, **changes: str | bytes) -> dict[str, Any]:
        return {**self.environ, "CALICO_RUN_DIR": "run", **changes}

    def run(
        self,
        *arguments: str,
        executable: str = "calico",
        stdin: bytes = b"{}",
        environ: dict[Any, Any] | None = None,
        **options: Any,
    ) -> subprocess.CompletedProcess[bytes]:
        environ = self.env(CNI_COMMAND="ADD") if environ is None else {**self.environ, **environ}
        argv = [*self.argv(executable), *arguments]
        return subprocess.run(argv, input=stdin, env=environ, cwd=self.cwd, capture_output=True, timeout=60, **options)


def python_of(done: subprocess.CompletedProcess[bytes]) -> Python:
    """Fails when it was not executed."""
    assert done.returncode == PYTHON_RAN, done
    argv, stdin, environ, descriptors = json.loads(done.stdout)
    return Python(
        argv[0],
        tuple(argv[1:]),
        None if stdin is None else stdin.encode("latin-1"),
        {name: value.encode("latin-1") for name, value in environ.items()},
        tuple(descriptors),
    )


def put_python(directory: Path) -> None:
    for name in native.NAMES:
        script = directory / f"{name}.python"
        script.write_text(IN_PLACE_OF_PYTHON)
        script.chmod(0o755)


def write_header(directory: Path) -> None:
    native.write_header(directory)


def compile_variant(variant: str, header: Path, directory: Path) -> None:
    """Both executables, with something in Python's place: "native", "sanitized" or "arm64"."""
    directory.chmod(0o755)
    compiler = ARM_COMPILER if variant == "arm64" else "gcc"
    for name in native.NAMES:
        native.compile_front(name, directory / name, header, compiler=compiler, sanitized=variant == "sanitized")
    put_python(directory)


def make_front(directory: Path, variant: str, cwd: Path) -> Front:
    """One that is executed in ``cwd``; ``directory``: where the variant was compiled."""
    (cwd / "run").mkdir()
    wrapper = (ARM,) if variant == "arm64" else ()
    environ = {"ASAN_OPTIONS": "detect_leaks=0:exitcode=99"} if variant == "sanitized" else {}
    return Front(directory, wrapper, cwd, environ)


@dataclass
class Seen:
    """What a server received: a list entry for each connection."""

    requests: list[bytes] = field(default_factory=list)
    descriptors: list[list[int]] = field(default_factory=list)


Serve = Callable[[socket.socket, Seen], None]


@contextmanager
def serving(front: Front, serve: Serve, *, connections: int = 1) -> Iterator[Seen]:
    """A server on run/cni.sock, for so many connections."""
    seen = Seen()
    path = front.cwd / "run" / "cni.sock"

    def accept(listener: socket.socket) -> None:
        for _ in range(connections):
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                serve(connection, seen)

    with socket.socket(socket.AF_UNIX) as listener:
        bind(listener, path)
        listener.listen(8)
        thread = threading.Thread(target=accept, args=(listener,))
        thread.start()
        try:
            yield seen
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept
            thread.join()
            path.unlink()
            for numbers in seen.descriptors:
                for number in numbers:
                    os.close(number)


def bind(listener: socket.socket, path: Path) -> None:
    """Below pytest's directories a path may be longer than an address may be."""
    directory = os.open(path.parent, os.O_PATH)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)


def receive_request(connection: socket.socket, seen: Seen, *, at_once: int = 65536) -> None:
    """A whole frame, with its descriptors."""
    data, descriptors = b"", list[int]()
    while len(data) < 8 or len(data) < 8 + int.from_bytes(data[4:8], "big"):
        part, numbers, _, _ = socket.recv_fds(connection, at_once, 8)
        descriptors += numbers
        if not part:
            break
        data += part
    seen.requests.append(data)
    seen.descriptors.append(descriptors)


def answering(*pieces: bytes, at_once: int = 65536) -> Serve:
    """A server that reads a request and sends these."""

    def serve(connection: socket.socket, seen: Seen) -> None:
        receive_request(connection, seen, at_once=at_once)
        try:
            for piece in pieces:
                connection.sendall(piece)
        except OSError:
            pass

    return serve


def state(pid: int) -> str:
    """Of a process: S sleeps, T was stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def compile_judge(header: Path, out: Path) -> Path:
    """The program of judge.c, sanitized."""
    source = Path(__file__).parent / "judge.c"
    options = [*native.COMMON, *native.SANITIZED, "-Wno-unused-function", f"-I{header}", f"-I{native.SOURCE}"]
    subprocess.run(["gcc", *options, '-DEXECUTABLE="judge"', "-o", out, source], check=True)
    return out


def judge(program: Path, letter: str, records: Sequence[bytes]) -> list[str]:
    data = b"".join(letter.encode() + len(record).to_bytes(4, "big") + record for record in records)
    environ = {"ASAN_OPTIONS": "detect_leaks=1:exitcode=99"}
    done = subprocess.run([program], input=data, capture_output=True, env=environ, timeout=120)
    assert (done.returncode, done.stderr) == (0, b""), done.stderr.decode()
    return done.stdout.decode().splitlines()
