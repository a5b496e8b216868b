"""The native front as a runtime executes it: what it answers, what it passes on, and when it becomes Python."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from cni_calico.cni.answer import answer_error
from cni_calico.cni.versions import CURRENT
from cni_calico.errors import PythonNotExecutable
from cni_calico.plugin.call import protocol, shim
from tests.deadlines import until
from tests.fakes.front import (
    Front,
    Seen,
    Serve,
    answering,
    bind,
    put_python,
    python_of,
    receive_request,
    serving,
    state,
)

ANSWER = protocol.frame(protocol.answer_fields(0, b'{"ips":[]}\n'))
BROKEN = answer_error(PythonNotExecutable("cannot execute the Python part of this plugin"), CURRENT).stdout.encode()
QUICK = {protocol.PATIENCE_VARIABLE: "0.3"}


# -- what needs no server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executable", ["calico", "calico-ipam"])
@pytest.mark.parametrize("question", [b'{"cniVersion":"0.4.0"}', b'{"cniVersion": "1.0.0"}', b"{}", b""])
def test_version_is_answered_as_python_answers_it(any_front: Front, executable: str, question: bytes) -> None:
    done = any_front.run(executable=executable, stdin=question, environ={"CNI_COMMAND": "VERSION"})
    assert (done.returncode, done.stdout, done.stderr) == (0, shim.version_answer(question), b"")


@pytest.mark.parametrize("question", [b'{"cniVersion":"9.0"}', b'{"cniVersion":"1.0.0","cniVersion":"1.0.0"}'])
def test_an_unclear_version_is_for_python(any_front: Front, question: bytes) -> None:
    ran = python_of(any_front.run(stdin=question, environ={"CNI_COMMAND": "VERSION"}))
    assert (ran.arguments, ran.stdin) == ((), question)


@pytest.mark.parametrize("arguments", [["-v"], ["-t", "x"], [""], ["-one-shot"], ["VERSION"]])
def test_arguments_are_for_python(any_front: Front, arguments: list[str]) -> None:
    ran = python_of(any_front.run(*arguments, environ={"CNI_COMMAND": "VERSION"}))
    assert (list(ran.arguments), ran.stdin) == (arguments, b"{}")


@pytest.mark.parametrize("executable", ["calico", "calico-ipam"])
def test_without_a_server_python_gets_everything_as_it_was(any_front: Front, executable: str) -> None:
    environ = {b"CNI_COMMAND": b"ADD", b"ANY": bytes(range(1, 256)), b"CALICO_RUN_DIR": b"/none/such", b"E": b""}
    ran = python_of(any_front.run(executable=executable, stdin=b"\0\xff" * 100_000, environ=environ))
    assert ran.path == str(any_front.directory / f"{executable}.python")
    assert (ran.arguments, ran.stdin) == ((shim.SERVE_HERE,), b"\0\xff" * 100_000)
    assert ran.environ["ANY"] == bytes(range(1, 256)) and ran.environ["E"] == b""


@pytest.mark.parametrize("environ", [{}, {"CNI_COMMAND": ""}, {"CNI_COMMANDS": "ADD"}])
def test_a_call_without_a_verb_is_for_python(any_front: Front, environ: dict[str, str]) -> None:
    with serving(any_front, answering(ANSWER)) as seen:
        ran = python_of(any_front.run(environ={"CALICO_RUN_DIR": "run", **environ}))
    assert ran.arguments == (shim.SERVE_HERE,) and seen.requests == []


def test_an_installer_learns_that_it_starts(any_front: Front) -> None:
    done = any_front.run(environ={"CALICO_START_CHECK": "1", "CNI_COMMAND": "ADD"})
    assert (done.returncode, done.stdout) == (0, b"")


# -- where Python is --------------------------------------------------------------------------------------------------


def test_links_are_followed_to_the_directory_of_the_file(front: Front, tmp_path: Path) -> None:
    installed, links = tmp_path / "installed", tmp_path / "links"
    installed.mkdir()
    links.mkdir()
    os.link(front.directory / "calico", installed / "renamed")
    put_python(installed)
    (installed / "relative").symlink_to("renamed")
    (links / "absolute").symlink_to(installed / "relative")
    (links / "last").symlink_to("../links/absolute")
    (tmp_path / "directory").symlink_to(links)
    for path in ("installed/renamed", "installed/relative", "links/absolute", "links/last", "./directory/last"):
        done = subprocess.run([path, "-v"], cwd=tmp_path, capture_output=True, env=front.environ)
        assert (tmp_path / python_of(done).path).samefile(installed / "calico.python"), path
        assert python_of(done).arguments == ("-v",)
    program = "import os; os.execve('last', ['any name', '-v'], os.environ)"
    argv = ["/usr/bin/python3", "-c", program]
    done = subprocess.run(argv, cwd=links, capture_output=True, env=front.environ)
    assert (links / python_of(done).path).samefile(installed / "calico.python")


@pytest.mark.parametrize("missing", ["nothing there", "not executable", "a directory"])
def test_when_python_cannot_be_executed_there_is_one_error(front: Front, tmp_path: Path, missing: str) -> None:
    os.link(front.directory / "calico", tmp_path / "calico")
    if missing == "not executable":
        (tmp_path / "calico.python").write_text("#!/bin/sh\n")
    elif missing == "a directory":
        (tmp_path / "calico.python").mkdir()
    environ = {**front.environ, "CNI_COMMAND": "ADD"}
    done = subprocess.run([tmp_path / "calico"], input=b"{}", capture_output=True, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (1, BROKEN, b"")
    assert json.loads(done.stdout)["code"] == 136


def test_a_path_that_is_too_long_is_the_same_error(front: Front, tmp_path: Path) -> None:
    """The longest path the kernel executes: with Python's name it is one that it refuses."""
    deep = tmp_path
    while len(str(deep)) < 4096 - 7 - 100:
        deep /= "d" * 99
    deep /= "d" * (4096 - 1 - 7 - len(str(deep)) - 1)
    os.makedirs(deep)
    path = deep / "calico"
    os.link(front.directory / "calico", path)
    assert len(str(path)) == 4095
    done = subprocess.run([path, "-v"], capture_output=True, env=front.environ)
    assert (done.returncode, done.stdout) == (1, BROKEN)


# -- a server ---------------------------------------------------------------------------------------------------------


def test_a_call_is_passed_on_with_what_only_its_process_can_reach(any_front: Front) -> None:
    with open("/proc/self/ns/net") as netns, serving(any_front, answering(ANSWER)) as seen:
        environ = any_front.env(CNI_COMMAND="ADD", CNI_NETNS=f"/proc/{os.getpid()}/fd/{netns.fileno()}")
        done = any_front.run(environ=environ)
        assert (done.returncode, done.stdout, done.stderr) == (0, b'{"ips":[]}\n', b"")
        assert [identity(fd) for fd in seen.descriptors[0]] == [
            identity(netns.fileno()), identity("/"), identity("/proc/self/ns/mnt")
        ]  # fmt: skip


def identity(what: int | str) -> tuple[int, int]:
    found = os.stat(what)
    return found.st_dev, found.st_ino


def test_a_leftover_socket_and_a_file_in_its_place(any_front: Front) -> None:
    path = any_front.cwd / "run" / "cni.sock"
    with socket.socket(socket.AF_UNIX) as left:
        bind(left, path)
    large = os.urandom(300_000)
    ran = python_of(any_front.run(stdin=large))
    assert (ran.arguments, ran.stdin) == ((shim.SERVE_HERE,), large)
    path.unlink()
    path.touch()
    assert python_of(any_front.run(stdin=b"")).stdin == b""


def test_a_run_directory_whose_name_does_not_fit_has_no_server(front: Front) -> None:
    (front.cwd / ("d" * 107)).mkdir()
    environ = front.env(CNI_COMMAND="ADD", CALICO_RUN_DIR="d" * 107)
    assert python_of(front.run(environ=environ)).arguments == (shim.SERVE_HERE,)


def closing_unread(connection: socket.socket, seen: Seen) -> None:
    connection.recv(1)


@pytest.mark.parametrize(
    "serve", [receive_request, closing_unread, answering(ANSWER[:-1]), answering(ANSWER[:3], ANSWER[3:9])]
)
@pytest.mark.parametrize("size", [2, 2_000_000])
def test_a_server_that_goes_in_the_middle(any_front: Front, serve: Serve, size: int) -> None:
    with serving(any_front, serve):
        ran = python_of(any_front.run(stdin=b"x" * size))
    assert (ran.arguments, ran.stdin) == ((shim.SERVE_HERE,), b"x" * size)
    assert ran.descriptors == (0, 1, 2)


def test_a_server_too_busy_to_read_is_heard(any_front: Front) -> None:
    def busy(connection: socket.socket, seen: Seen) -> None:
        connection.sendall(protocol.frame(protocol.answer_fields(1, b'{"code":11}\n')))

    with serving(any_front, busy):
        done = any_front.run(stdin=b"x" * 1_000_000)
    assert (done.returncode, done.stdout) == (1, b'{"code":11}\n')


def test_large_requests_and_answers_in_small_pieces(any_front: Front) -> None:
    large = os.urandom(3_000_000)
    answer = protocol.frame(protocol.answer_fields(3, large))
    pieces = [answer[i : i + 700_001] for i in range(9, len(answer), 700_001)]
    assert len(pieces) == 5
    with serving(any_front, answering(b"", answer[:1], answer[1:9], *pieces, at_once=4099)) as seen:
        done = any_front.run(stdin=large)
    assert (done.returncode, done.stdout) == (3, large)
    fields = protocol.parse_fields(seen.requests[0][8:])
    assert protocol.parse_request(fields)[2] == large and len(seen.descriptors[0]) == 2


def test_a_body_over_the_limit_is_not_sent(any_front: Front) -> None:
    with serving(any_front, closing_unread) as seen:
        ran = python_of(any_front.run(stdin=b"x" * protocol.BODY_MAX))
    assert ran.stdin == b"x" * protocol.BODY_MAX and seen.requests == []


@pytest.mark.parametrize("serve", ["silent", "half", "reads nothing", "drips"])
def test_a_server_that_is_stuck(any_front: Front, serve: str) -> None:
    """A byte now and then is no answer either: the patience is for the whole of it.

    What drips is an answer that a front would take, if it waited for it: each byte comes within the patience.
    """
    over = threading.Event()
    dripping = protocol.frame(protocol.answer_fields(0, b'{"ips":[]}' + b" " * 400))

    def stuck(connection: socket.socket, seen: Seen) -> None:
        if serve != "reads nothing":
            receive_request(connection, seen)
        if serve == "half":
            connection.sendall(ANSWER[:-1])
        if serve == "drips":
            for byte in dripping:
                if over.wait(0.05):
                    return
                try:
                    connection.sendall(bytes((byte,)))
                except OSError:
                    break  # the front has given up
        over.wait(30)

    with serving(any_front, stuck):
        ran = python_of(any_front.run(stdin=b"x" * 1_000_000, environ=any_front.env(CNI_COMMAND="ADD", **QUICK)))
        over.set()
    assert (ran.arguments, ran.stdin) == ((shim.SERVE_HERE_STUCK,), b"x" * 1_000_000)
    assert ran.descriptors == (0, 1, 2)


def test_a_backlog_that_is_full_is_no_server(front: Front) -> None:
    """It is waited for, but not for ever."""
    with socket.socket(socket.AF_UNIX) as listener:
        bind(listener, front.cwd / "run" / "cni.sock")
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as waiting:
            directory = os.open(front.cwd / "run", os.O_PATH)
            waiting.connect(f"/proc/self/fd/{directory}/cni.sock")
            os.close(directory)
            assert python_of(front.run()).arguments == (shim.SERVE_HERE,)


def test_it_waits_on_after_it_was_stopped(front: Front) -> None:
    stopped, go = threading.Event(), threading.Event()

    def slow(connection: socket.socket, seen: Seen) -> None:
        receive_request(connection, seen)
        stopped.set()
        go.wait(30)
        connection.sendall(ANSWER)

    with serving(front, slow):
        argv, environ = front.argv(), front.env(CNI_COMMAND="ADD")
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=front.cwd
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.close()
            stopped.wait(30)
            for _ in range(3):
                process.send_signal(signal.SIGSTOP)
                until(lambda: state(process.pid) == "T", "it is stopped")
                process.send_signal(signal.SIGCONT)
                until(lambda: state(process.pid) != "T", "it goes on")
            go.set()
            assert (process.stdout.read(), process.wait()) == (b'{"ips":[]}\n', 0)


def test_a_caller_that_is_killed_leaves_nothing(front: Front) -> None:
    """The server sees its end of the connection closed, which is all that there ever was."""
    gone = threading.Event()

    def serve(connection: socket.socket, seen: Seen) -> None:
        receive_request(connection, seen)
        process.kill()
        if connection.recv(1) == b"":
            gone.set()

    before = sorted(str(path) for path in front.cwd.rglob("*"))
    with serving(front, serve):
        process = subprocess.Popen(
            front.argv(), stdin=subprocess.DEVNULL, env=front.env(CNI_COMMAND="ADD"), cwd=front.cwd
        )
        assert process.wait() == -signal.SIGKILL
        assert gone.wait(30)
    assert sorted(str(path) for path in front.cwd.rglob("*")) == before
