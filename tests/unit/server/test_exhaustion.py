"""A server that was refused memory ends, because nothing in it can be trusted any more."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import DatastoreUnavailable
from cni_calico.log import SILENT
from cni_calico.plugin.call.client import call_server
from cni_calico.plugin.call.serve import Declined
from cni_calico.server import run as module
from cni_calico.server.exhaustion import Exhaustion
from cni_calico.server.run import CniServer
from tests.conftest import ROOT

WATCHES = """
import _thread, threading
from cni_calico.daemon.stopping import Stopping
from cni_calico.daemon.unattended import Unattended
from cni_calico.server.exhaustion import Exhaustion
watching, ended = Exhaustion(), Stopping()
watching.watch_threads()
threading.Timer(4, ended.set).start()
{happens}
watching.wait(ended)
print("noted" if watching.noted else "not noted")
"""


def raised(error: Exception, cause: BaseException | None = None) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "noted"),
    [
        (MemoryError(), True),
        (raised(Declined("the server is short of memory"), MemoryError()), True),
        (raised(DatastoreUnavailable("cannot open it"), MemoryError()), True),
        (ImportError("cygrpc.so: failed to map segment from shared object"), True),
        (raised(Declined("the server is short of threads"), RuntimeError("can't start new thread")), False),
        (DatastoreUnavailable("cannot reach it"), False),
        (None, False),
    ],
)
def test_what_counts(error: BaseException | None, noted: bool) -> None:
    exhaustion = Exhaustion()
    exhaustion.note(error)
    assert exhaustion.noted == noted
    exhaustion.note(None)
    assert exhaustion.noted == noted, "it stays"


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        ("_thread.start_new_thread(bytearray, (1 << 60,))", "noted"),  # before its first frame of Python
        ("threading.Thread(target=bytearray, args=(1 << 60,)).start()", "noted"),
        ("_thread.start_new_thread(int, ('x',))", "not noted"),
        ("threading.Thread(target=int, args=('x',)).start()", "not noted"),
        ("Unattended('x').submit(lambda: bytearray(1 << 60))", "noted"),  # its thread goes on
    ],
)
def test_threads_that_end_so(happens: str, told: str) -> None:
    program = WATCHES.format(happens=happens)
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == told, done.stderr
    if told == "not noted":
        assert "ValueError" in done.stderr, "other errors are shown as ever"


@pytest.mark.parametrize("failure", [NameError("name 'base_events' is not defined"), SystemExit(1), MemoryError()])
def test_calls_that_fail_afterwards_fail_for_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException
) -> None:
    """A module whose import was interrupted raises errors that look like defects."""

    def serve(call: Any, services: Any) -> Any:
        server.exhaustion.note(MemoryError())
        raise failure

    monkeypatch.setitem(module.SERVES, "calico", serve)
    server = CniServer(str(tmp_path / "cni.sock"), SILENT, workers=2)
    server.start()
    environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"}
    try:
        answer = call_server(server.path, "calico", environ, b"{}")
    finally:
        server.stop()
    assert answer is not None
    document = json.loads(answer[1])
    assert document["code"] == 11 and "short of memory" in document["msg"], document


def test_what_waits_for_the_end_is_woken() -> None:
    exhaustion, ended = Exhaustion(), Stopping()
    threading.Timer(0.2, exhaustion.note, (MemoryError(),)).start()
    exhaustion.wait(ended)
    assert ended.is_set() and exhaustion.noted
