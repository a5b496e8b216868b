"""Upstream's Dikastes, a client by grpc-go, at the socket of a volume: it follows us, and judges by what it was told.

Its version names policies otherwise than v3.32, and so do we; a profile is called the same in all.
"""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cni_calico.alp import main as alp
from cni_calico.policy.wanted import (
    PolicyId,
    SetChange,
    WantedChanges,
    WantedClass,
    WantedHttp,
    WantedPolicy,
    WantedRule,
)
from tests.conftest import LAB_CACHE
from tests.deadlines import until
from tests.unit.nodeagent.sync.test_serving import POLICY, Served, clients, wanted_with

pytestmark = pytest.mark.slow

PROGRAM = LAB_CACHE / "bin" / "dikastes"
PROFILE = PolicyId("Profile", "kns.shop")
FOLLOWS = WantedClass("c-1", (), (), (PROFILE,))


def asking(method: str) -> WantedPolicy:
    return WantedPolicy(PROFILE, "", (WantedRule("Allow", http=WantedHttp((method,))),), ())


def test_it_follows_what_changes_also_of_a_server_that_comes_back(
    sync_server: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, socket = sync_server.add(), tmp_path / "dikastes.sock"
    until(path.is_socket, "we listen")
    server = sync_server.server
    server.receive(WantedChanges(policies={PROFILE: asking("GET"), POLICY: None}, classes={"c-1": FOLLOWS}))

    def answer(method: str) -> str:
        alp.run(["client", "shop", "robot", "--method", method, "-d", str(socket)], {})
        return capsys.readouterr().out.strip()

    with subprocess.Popen([PROGRAM, "server", "-l", socket, "-d", path]) as dikastes:
        try:
            until(socket.is_socket, "it listens")
            until(lambda: answer("GET") == "OK", "it has everything", pause_s=0.2)
            assert answer("POST") == "PERMISSION_DENIED"
            server.receive(WantedChanges(policies={PROFILE: asking("POST")}))
            until(lambda: answer("POST") == "OK", "it has the change", pause_s=0.2)
            assert answer("GET") == "PERMISSION_DENIED"
            server.receive(WantedChanges(sets_changed={"s-other": SetChange(clients(1))}))  # unknown: it fails
            sync_server.thread.join(90)
            assert answer("POST") == "OK"  # as it was told
            server.become(replace(wanted_with(clients(1)), policies={PROFILE: asking("GET")}, classes={"c-1": FOLLOWS}))
            sync_server.thread = threading.Thread(target=sync_server._run)
            sync_server.thread.start()
            until(lambda: answer("GET") == "OK", "it has what changed meanwhile", pause_s=0.2)
        finally:
            dikastes.terminate()
