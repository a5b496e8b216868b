"""Threads beside a call's own: bounded, used again, and never what keeps the process."""

import subprocess
import sys
import threading
import time

import pytest

from cni_calico.daemon.threads import SideThreads
from tests.deadlines import until


@pytest.fixture
def threads():
    made = SideThreads(3, "side")
    yield made
    made.close()


def test_an_outcome_or_an_error(threads):
    assert threads.submit(lambda: 7).result(10) == 7
    with pytest.raises(SystemExit):
        threads.submit(sys.exit).result(10)
    assert threads.submit(lambda: 8).result(10) == 8


def test_as_many_at_once_as_may_be_and_no_more(threads):
    gate, begun = threading.Event(), []

    def act():
        begun.append(threading.current_thread())
        assert gate.wait(20)

    outcomes = [threads.submit(act) for _ in range(7)]
    until(lambda: len(begun) == 3, "three are under way")
    gate.set()
    for outcome in outcomes:
        outcome.result(20)
    assert len(set(begun)) == 3
    for _ in range(20):
        threads.submit(lambda: None).result(20)
    assert threads._made == 3


def test_one_after_the_other_needs_one_thread(threads):
    for _ in range(5):
        threads.submit(lambda: None).result(10)
        until(lambda: threads._idle == 1, "it waits for the next")
    assert threads._made == 1


def test_they_end(threads):
    before = threading.active_count()
    threads.submit(lambda: None).result(10)
    threads.close()
    until(lambda: threading.active_count() <= before, "they end")


HANGS = """
import functools, os, sys, threading
from cni_calico.cni.answer import Answer
from cni_calico.server import run as server

def hang():
    print("hanging", flush=True)
    threading.Event().wait()

def serve(call, services):
    with services.meanwhile(hang):
        pass

def serve_well(call, services):
    print("hanging", flush=True)
    return Answer(0, "{}")

if sys.argv[1] == "an act":
    server.SERVES["calico"] = serve
else:
    server.SERVES["calico"] = serve_well
    server.Resident.close = lambda resident: threading.Event().wait()
server.CniServer.stop = functools.partialmethod(server.CniServer.stop, 0.5)
sys.exit(server.run_server(dict(os.environ)))
"""
CALLS = """
import sys
from cni_calico.plugin.call.client import call_server
environ = {"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c", "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere", "CNI_NETNS": ""}
call_server(sys.argv[1], "calico", environ, b"{}")
"""


@pytest.mark.parametrize("what", ["an act", "the end"])
def test_a_server_ends_in_time_though_something_hangs(tmp_path, what):
    environ = {"CALICO_RUN_DIR": str(tmp_path), "PYTHONPATH": ":".join(filter(None, sys.path))}
    server = subprocess.Popen([sys.executable, "-c", HANGS, what], env=environ, stdout=subprocess.PIPE, text=True)
    caller = None
    try:
        until(lambda: (tmp_path / "cni.sock").exists() or server.poll() is not None, "it listens", 60)
        caller = subprocess.Popen([sys.executable, "-c", CALLS, str(tmp_path / "cni.sock")], env=environ)
        assert server.stdout is not None and server.stdout.readline() == "hanging\n"
        begun = time.monotonic()
        server.terminate()
        assert server.wait(30) == 0
        assert time.monotonic() - begun < 3, "it was kept longer than it drains, even on a busy machine"
        caller.wait(30)  # its connection is closed
    finally:
        for process in (server, caller):
            if process is not None:
                process.kill()
                process.wait()
        if server.stdout is not None:
            server.stdout.close()
