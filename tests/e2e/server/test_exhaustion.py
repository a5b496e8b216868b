"""A server that was refused memory, wherever: it ends, and no call is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.e2e.host import Node
from tests.e2e.served import call
from tests.netns.namespaces import Namespace

SERVES = """
import os, sys, threading, _thread
from cni_calico.datastore.cache import Cache
from cni_calico.server import backends, run
def refused(*_, **__):
    raise MemoryError
def stuck(*_, **__):  # what Thread.start does when its thread dies before its first step: it waits for ever
    _thread.start_new_thread(bytearray, (1 << 60,))
    threading.Event().wait()
{where} = {what}
sys.exit(run.run_server(os.environ))
"""


@pytest.mark.netns
@pytest.mark.parametrize(
    ("where", "what"),
    [("backends.open_datastore", "refused"), ("backends.open_datastore", "stuck"), ("Cache._list", "refused")],
)
def test_it_ends_and_the_caller_carries_the_call_out(
    plain_node: Node, pod_ns: Namespace, where: str, what: str
) -> None:
    node = plain_node
    program = SERVES.format(where=where, what=what)
    argv = ["nsenter", f"--net={node.host.path}", sys.executable, "-c", program]
    environ = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CALICO_RUN_DIR": str(node.root / "run")}
    with subprocess.Popen(argv, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as server:
        try:
            node.await_server(server)
            assert call(node, "ADD", "c1", pod_ns.path).ok
            assert server.wait(60) == 1
            assert server.stderr is not None and "was refused memory" in server.stderr.read()
        finally:
            server.kill()
    assert call(node, "DEL", "c1", pod_ns.path).ok
    assert not node.leftovers()
