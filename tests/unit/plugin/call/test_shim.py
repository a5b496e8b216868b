"""The start of an execution in Python. What it imports: tests/test_import_budget.py; with a server:
tests/e2e/server/test_behaviour.py; beside the native front: tests/unit/build/test_frames.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cni_calico.cni.answer import Answer
from cni_calico.cni.environment import Call
from cni_calico.cni.versions import SUPPORTED
from cni_calico.plugin.call import shim
from cni_calico.plugin.call.services import Services

ADD = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/n", "CNI_IFNAME": "eth0", "CNI_PATH": "/p"}


@pytest.mark.parametrize(
    ("stdin", "version"),
    [
        (b'{"cniVersion": "0.3.1", "name": "n"}', "0.3.1"),
        (b'{"name":"n","cniVersion":"1.0.0"}', "1.0.0"),
        (b'{"cniVersion": "9.9.9"}', shim.CURRENT),
        (b'{"cniVersion": "\xff"}', shim.CURRENT),
        (b"{}", shim.CURRENT),
        (b"", shim.CURRENT),
    ],
)
def test_version_names_the_callers_version_if_it_is_known(stdin: bytes, version: str) -> None:
    answer = json.loads(shim.version_answer(stdin))
    assert answer == {"cniVersion": version, "supportedVersions": list(SUPPORTED)}


def test_the_socket_is_in_the_run_directory() -> None:
    assert shim.socket_path({}) == "/var/run/calico/cni.sock"
    assert shim.socket_path({"CALICO_RUN_DIR": "/elsewhere"}) == "/elsewhere/cni.sock"


@pytest.mark.parametrize("server_is_stuck", [False, True])
def test_a_call_without_a_server_runs_here(tmp_path: Path, server_is_stuck: bool) -> None:
    seen: list[tuple[Call, bool, float]] = []

    def serve(call: Call, services: Services) -> Answer:
        seen.append((call, services.server_is_stuck, services.timeout_s))
        return Answer(7, "answered")

    environ, stdin = {**ADD, "CALICO_RUN_DIR": str(tmp_path)}, b'{"cniVersion":"1.0.0","name":"n"}'
    if server_is_stuck:
        assert shim.serve_here(lambda: serve, environ, stdin, server_is_stuck=True) == (7, b"answered")
    else:
        assert shim.serve_call("calico", lambda: serve, environ, stdin) == (7, b"answered")
    [(call, was_stuck, timeout_s)] = seen
    assert (call.command, call.container_id, was_stuck) == ("ADD", "c1", server_is_stuck)
    assert (timeout_s == shim.STUCK_TIMEOUT_S) is server_is_stuck


def test_what_cannot_be_parsed_loads_no_command() -> None:
    code, printed = shim.serve_call("calico", lambda: pytest.fail("loaded"), {"CNI_COMMAND": "NONE"}, b"{}")
    assert code == 1 and json.loads(printed)["code"] == 4
