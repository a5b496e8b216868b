"""The native front with closed descriptors, full disks, old kernels, no /proc, and servers of other users."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cni_calico.cni.answer import answer_error
from cni_calico.cni.versions import CURRENT
from cni_calico.errors import PythonNotExecutable
from cni_calico.plugin.call import protocol, shim
from tests.deadlines import until
from tests.fakes.front import (
    IMPOSTOR,
    PYTHON_RAN,
    Front,
    Seen,
    answering,
    bind,
    make_front,
    python_of,
    receive_request,
    serving,
    state,
)

ANSWER = protocol.frame(protocol.answer_fields(0, b'{"ips":[]}\n'))
BROKEN = answer_error(PythonNotExecutable("cannot execute the Python part of this plugin"), CURRENT).stdout.encode()
QUICK = {protocol.PATIENCE_VARIABLE: "0.3"}


# -- standard input and output ----------------------------------------------------------------------------------------


def shell(front: Front, redirections: str, **environ: str) -> subprocess.CompletedProcess[bytes]:
    script = f'exec "$@" {redirections}'
    argv = ["sh", "-c", script, "sh", *front.argv()]
    return subprocess.run(argv, input=b"{}", capture_output=True, env=front.env(**environ), cwd=front.cwd, timeout=60)


def test_a_closed_stdin(any_front: Front) -> None:
    """Python gets it closed, even if there is a server: its socket does not take the number."""
    with serving(any_front, answering(ANSWER)) as seen:
        for verb in ("ADD", "VERSION"):
            ran = python_of(shell(any_front, "<&-", CNI_COMMAND=verb))
            assert ran.stdin is None or b"Bad file" in ran.stdin
    assert seen.requests == []


@pytest.mark.parametrize("closed", [">&-", "</dev/null >&- 2>&-"])
@pytest.mark.parametrize("verb", ["ADD", "VERSION"])
def test_a_closed_stdout_is_a_failure(any_front: Front, closed: str, verb: str) -> None:
    """The answer does not go into our own socket instead."""
    rest = list[bytes]()

    def serve(connection: socket.socket, seen: Seen) -> None:
        receive_request(connection, seen)
        connection.sendall(ANSWER)
        rest.append(connection.recv(100))

    with serving(any_front, serve):
        done = shell(any_front, closed, CNI_COMMAND=verb)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"".join(rest) == b""


def test_a_reader_of_stdout_that_has_gone_is_a_failure_without_a_signal(any_front: Front) -> None:
    read, write = os.pipe()
    os.close(read)
    argv, environ = any_front.argv(), any_front.env(CNI_COMMAND="VERSION")
    with os.fdopen(write) as out:
        done = subprocess.run(argv, input=b"{}", stdout=out, env=environ, cwd=any_front.cwd)
    assert done.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="kernel: no /dev/full")
def test_a_full_disk_is_a_failure(any_front: Front) -> None:
    assert shell(any_front, ">/dev/full", CNI_COMMAND="VERSION").returncode == 1


def test_pipes_that_do_not_block_are_waited_for(any_front: Front) -> None:
    """A slow writer of stdin, a slow reader of an answer that is larger than the pipe."""
    answer = b"y" * 1_000_000
    with serving(any_front, answering(protocol.frame(protocol.answer_fields(0, answer)))) as seen:
        (input_end, writer), (reader, output_end) = os.pipe(), os.pipe()
        for end in (input_end, output_end):
            os.set_blocking(end, False)
        environ = any_front.env(CNI_COMMAND="ADD")
        process = subprocess.Popen(any_front.argv(), stdin=input_end, stdout=output_end, env=environ, cwd=any_front.cwd)
        os.close(input_end)
        os.close(output_end)
        until(lambda: state(process.pid) == "S", "it waits for its input")
        os.write(writer, b"{")
        until(lambda: state(process.pid) == "S", "it waits for more")
        os.write(writer, b"}")
        os.close(writer)
        with os.fdopen(reader, "rb") as output:
            assert output.read() == answer
        assert process.wait() == 0
    assert protocol.parse_request(protocol.parse_fields(seen.requests[0][8:]))[2] == b"{}"


# -- kernels and hosts ------------------------------------------------------------------------------------------------


def without_memory_files() -> None:
    """From here on memfd_create is no system call: a kernel before 3.17."""
    number, errno = {"x86_64": 319, "aarch64": 279}[os.uname().machine], 38
    program = struct.pack("=HBBI", 0x20, 0, 0, 0)  # the number of the system call
    program += struct.pack("=HBBI", 0x15, 0, 1, number)
    program += struct.pack("=HBBI", 0x06, 0, 0, 0x50000 | errno)
    program += struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    code = ctypes.create_string_buffer(program)
    filters = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, filters, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")


@pytest.mark.parametrize("size", [2, 65_536, 900_000])
def test_on_old_kernels_a_pipe_gives_the_input_back(front: Front, size: int) -> None:
    path = front.cwd / "run" / "cni.sock"
    with socket.socket(socket.AF_UNIX) as left:
        bind(left, path)
    ran = python_of(front.run(stdin=b"z" * size, preexec_fn=without_memory_files))
    assert (ran.stdin, ran.descriptors) == (b"z" * size, (0, 1, 2))


def test_it_is_small_static_and_independent_of_its_place(front: Front) -> None:
    if front.environ:
        return  # the sanitizers are neither
    path = front.directory / "calico"
    assert path.stat().st_size < 20_000
    kinds = subprocess.run(["readelf", "-hlr", path], capture_output=True, text=True, check=True).stdout
    assert "DYN (" in kinds and "INTERP" not in kinds and "There are no relocations" in kinds
    assert not any(line.split()[-2] == "RWE" for line in kinds.splitlines() if "GNU_STACK" in line or "LOAD" in line)


needs_root = pytest.mark.netns


@needs_root
def test_without_proc_python_serves(compiled: Callable[[str], Path], tmp_path: Path) -> None:
    """The server must see a caller's mounts, which is a file there; VERSION needs nothing."""
    front = make_front(compiled("native"), "native", tmp_path)
    script = 'mount -t tmpfs none /proc && exec "$@"'
    argv = ["unshare", "-m", "sh", "-c", script, "sh", *front.argv()]
    with serving(front, receive_request) as seen:
        done = subprocess.run(
            argv, input=b"{}", capture_output=True, env={**os.environ, **front.env(CNI_COMMAND="ADD")}, cwd=front.cwd
        )
        assert python_of(done).arguments == (shim.SERVE_HERE,) and python_of(done).stdin == b"{}"
        environ = {**os.environ, **front.env(CNI_COMMAND="VERSION")}
        assert subprocess.run(argv, input=b"{}", capture_output=True, env=environ).returncode == 0
    assert seen.requests in ([], [b""])


@needs_root
def test_in_a_directory_that_has_nothing_else(compiled: Callable[[str], Path], tmp_path: Path) -> None:
    """No C library, no /proc, no /dev."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "calico").write_bytes((compiled("native") / "calico").read_bytes())
    (root / "calico").chmod(stat.S_IRWXU)
    for verb, expected in (("VERSION", (0, shim.version_answer(b"{}"))), ("ADD", (1, BROKEN))):
        argv = ["/usr/sbin/chroot", str(root), "/calico"]
        done = subprocess.run(argv, input=b"{}", capture_output=True, env={"CNI_COMMAND": verb})
        assert (done.returncode, done.stdout) == expected


@needs_root
def test_nothing_is_sent_to_a_server_of_another_user(
    any_front: Front, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A server of another user must not see what a call carries: secrets, and descriptors of this host."""
    run = any_front.cwd / "run"
    run.chmod(0o777)
    argv = ["/usr/bin/python3", "-c", IMPOSTOR, str(run)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as impostor:
        assert impostor.stdout is not None and impostor.stdout.readline() == "listening\n"
        ran = python_of(any_front.run(stdin=b"secret"))
        assert (ran.arguments, ran.stdin) == ((shim.SERVE_HERE,), b"secret")
        assert impostor.stdout.readline() == "0\n"


@needs_root
def test_a_user_is_served_by_its_own_server(compiled: Callable[[str], Path], tmp_path: Path) -> None:
    """Without root: rootless runtimes in a user's own directory."""
    front = Front(compiled("native"), (), tmp_path)
    program = IMPOSTOR.replace("print(len(", "connection.sendall(bytes.fromhex(sys.argv[2])); print(len(")
    import tempfile

    with tempfile.TemporaryDirectory(prefix="cct-") as directory:
        Path(directory).chmod(0o777)
        (Path(directory) / "calico").write_bytes((front.directory / "calico").read_bytes())
        (Path(directory) / "calico").chmod(0o755)
        argv = ["/usr/bin/python3", "-c", program, directory, ANSWER.hex()]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None and server.stdout.readline() == "listening\n"
            argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"{directory}/calico"]
            environ = {"CNI_COMMAND": "ADD", "CALICO_RUN_DIR": directory}
            done = subprocess.run(argv, input=b"{}", capture_output=True, env={**os.environ, **environ})
            assert (done.returncode, done.stdout) == (0, b'{"ips":[]}\n')
    assert done.returncode != PYTHON_RAN
