"""What a CNI call imports before it knows what is asked: every module costs 0.1 ms or more, on every call."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cni_calico.plugin.call import protocol

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "collections", "contextlib", "dataclasses", "enum", "functools", "grpc", "importlib", "ipaddress", "json",
    "kubernetes", "logging", "pathlib", "pyroute2", "re", "socket", "sqlite3", "ssl", "subprocess", "threading",
    "traceback", "typing", "urllib3", "warnings", "yaml",
}  # fmt: skip
# of the standard library; the interpreter itself loads the others that show up
ALLOWED = {"__future__"}

# -S: as in the frozen executable no site-packages are looked at, and what ``site`` imports is not there by accident
PROGRAM = """
import sys
import os
sys.path.insert(0, {root!r})
sys.argv[1:] = {arguments!r}
before = set(sys.modules)
from {module} import main
status = main()
os.write(2, "\\n".join(sorted(set(sys.modules) - before)).encode())
os._exit(status)
"""
ENTRY_POINTS = ("cni_calico.plugin.main", "cni_calico.plugin.ipam.main")


def imported(module: str, *arguments: str, **environment: str) -> tuple[set[str], bytes]:
    """The modules that an execution imports, and its output."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM.format(root=str(ROOT), module=module, arguments=list(arguments))],
        input=b'{"cniVersion":"1.0.0"}',
        capture_output=True,
        env={"PATH": os.environ["PATH"], **environment},
    )
    assert done.returncode == 0, done.stderr.decode()
    return set(done.stderr.decode().split()), done.stdout


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_version(module: str) -> None:
    modules, answer = imported(module, CNI_COMMAND="VERSION")
    assert answer.startswith(b'{"cniVersion":"1.0.0","supportedVersions":["0.1.0",')
    assert modules & HEAVY == set()
    assert {m for m in modules if not m.startswith("cni_calico")} <= ALLOWED
    assert len(modules) <= 8, sorted(modules)


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_version_flag(module: str) -> None:
    modules, answer = imported(module, "-v")
    assert answer.startswith(b"v")
    assert modules & HEAVY == set()


def answer_one_call(listener: socket.socket, answer: bytes) -> None:
    """What a resident server does with one request, and it goes."""
    connection, _ = listener.accept()
    with connection:
        _, length = protocol.parse_header(connection.recv(protocol.HEADER_BYTES, socket.MSG_WAITALL))
        connection.recv(length, socket.MSG_WAITALL)
        connection.sendall(protocol.frame(protocol.answer_fields(0, answer)))


@pytest.mark.parametrize("module", ENTRY_POINTS)
def test_a_call_that_a_server_answers(module: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "cni.sock"))
        listener.listen(1)
        thread = threading.Thread(target=answer_one_call, args=(listener, b'{"ips":[]}'))
        thread.start()
        environ = {"CNI_NETNS": "/proc/self/ns/net", "CNI_CONTAINERID": "c1", "CALICO_RUN_DIR": str(tmp_path)}
        modules, answer = imported(module, CNI_COMMAND="ADD", **environ)
        thread.join()
    assert answer == b'{"ips":[]}'
    package = {m for m in modules if m.startswith("cni_calico")}
    beyond = {"cni_calico.directories", "cni_calico.plugin.call.client", "cni_calico.plugin.call.protocol"}
    assert package == {*own_modules(module), *beyond}
    assert modules - package <= {*ALLOWED, "_socket"}


def own_modules(module: str) -> set[str]:
    """What VERSION needs, too."""
    products = {"cni_calico.plugin", module.rpartition(".")[0]}
    return {"cni_calico", *products, module, "cni_calico.plugin.call", "cni_calico.plugin.call.shim"}
