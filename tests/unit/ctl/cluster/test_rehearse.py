"""``cluster rehearse``: which program it runs, with which environment, and what it makes of the answer."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.cluster.rehearse import (
    PLACES,
    account_of,
    find_agent,
    find_program,
    parse_answer,
    read_environment,
    rehearse,
    render_answer,
)
from cni_calico.ctl.session import CommandFailed
from cni_calico.directories import SERVICE_ACCOUNT_DIR
from cni_calico.errors import InvalidConfig

EMPTY: dict[str, Any] = {
    **{"format": 1, "version": "v2", "node": "n1", "changes": [], "denied": [], "judged": 0},
    **{"settingsWithoutEffect": [], "notes": [], "uncertain": [], "trouble": []},
}
DENIED = {
    "from": "a",
    "to": "b\x1b[2J",
    "traffic": "tcp/80",
    "why": "egress: end of tier default",
    "seen": "3 in conntrack",
}


def bundle(directory: Path, script: str, place: str = "") -> Path:
    at = directory / place
    at.mkdir(parents=True, exist_ok=True)
    program = at / "calico-node"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return directory


def arguments(directory: Path, **more: Any) -> Namespace:
    settings = directory / "settings"
    settings.write_text("NODENAME=n1\n")
    given = {"bundle": str(directory), "environment": str(settings), "output": "table", "timeout": 20.0, "note": print}
    return Namespace(**{**given, **more})


def answering(directory: Path, **fields: Any) -> Path:
    (directory / "answer").write_text(json.dumps({**EMPTY, **fields}))
    return bundle(directory, f'[ "$1" = -rehearse ] && [ "$NODENAME" = n1 ] && cat {directory}/answer')


@pytest.mark.parametrize("place", PLACES)
def test_the_program_of_a_directory_or_of_an_image(tmp_path: Path, place: str) -> None:
    assert find_program(str(bundle(tmp_path, "true", place))) == str(tmp_path / place / "calico-node")


def test_a_directory_without_the_program(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="there is no calico-node in"):
        find_program(str(tmp_path))


def test_nothing_would_change(tmp_path: Path) -> None:
    assert rehearse(arguments(answering(tmp_path)), {}) == "v2 on node n1 would change nothing.\n"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"changes": [{"kind": "routes", "what": "add route x"}]}, 1),
        ({"denied": [DENIED], "judged": 7}, 1),
        ({"uncertain": ["Node n2 cannot be read"]}, 2),
        ({"trouble": ["tables: no"], "changes": [{"kind": "routes", "what": "add route x"}]}, 2),
    ],
)
def test_the_status_says_which(tmp_path: Path, fields: dict[str, Any], status: int) -> None:
    with pytest.raises(CommandFailed) as raised:
        rehearse(arguments(answering(tmp_path, **fields)), {})
    assert (raised.value.status, raised.value.message) == (status, "")
    assert raised.value.output


def test_notes_and_settings_are_no_difference(tmp_path: Path) -> None:
    text = rehearse(arguments(answering(tmp_path, notes=["a"], settingsWithoutEffect=["b"])), {})
    assert text.splitlines()[1:] == ["", "Settings without effect:", "  b", "", "Besides:", "  a"]


def test_everything_is_shown_and_nothing_controls_the_terminal() -> None:
    changes = [
        {"kind": "routes", "what": "add route x"},
        {"kind": "tables", "what": "t"},
        {"kind": "routes", "what": "y"},
    ]
    text = render_answer({**EMPTY, "changes": changes, "denied": [DENIED], "judged": 7, "trouble": ["z"]})
    assert text == (
        "v2 on node n1 would change:\n  routes\n    add route x\n    y\n  tables\n    t\n\n"
        "Connections that would not be allowed again, of 7 that were judged:\n"
        "  a -> b\\x1b[2J  tcp/80  DENIED egress: end of tier default  (3 in conntrack)\n\nTrouble:\n  z\n"
    )


def test_a_version_that_cannot_rehearse(tmp_path: Path) -> None:
    bundle(tmp_path, "echo 'calico-node: unknown flag -rehearse' >&2; exit 2")
    with pytest.raises(InvalidConfig, match="that version has no -rehearse"):
        rehearse(arguments(tmp_path), {})


def test_a_program_that_fails(tmp_path: Path) -> None:
    bundle(tmp_path, "echo 'calico-node: no datastore' >&2; exit 1")
    with pytest.raises(CommandFailed, match="no datastore") as raised:
        rehearse(arguments(tmp_path), {})
    assert raised.value.status == 2


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", json.dumps({**EMPTY, "format": 2}).encode(), b'{"format": 1, "x"'])
def test_an_answer_that_is_none(data: bytes) -> None:
    with pytest.raises(CommandFailed, match="cannot be understood") as raised:
        parse_answer(data, "p")
    assert raised.value.status == 2


def test_a_file_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "e"
    file.write_text("# comment\n\nexport A='x y'\nB=1=2\nC=\"\n")
    assert read_environment(str(file)) == {"A": "x y", "B": "1=2", "C": '"'}
    file.write_text("A=1\nnonsense\n")
    with pytest.raises(InvalidConfig, match="line 2 is not NAME=VALUE"):
        read_environment(str(file))


def process(proc: Path, pid: int, command: str, environ: dict[str, str], netns: str = "net:[1]") -> None:
    made = proc / str(pid)
    (made / "ns").mkdir(parents=True)
    (made / "ns" / "net").symlink_to(netns)
    (made / "cmdline").write_bytes(command.replace(" ", "\0").encode() + b"\0")
    (made / "environ").write_bytes("".join(f"{name}={value}\0" for name, value in environ.items()).encode())


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self" / "ns" / "net").symlink_to("net:[1]")
    return tmp_path


def test_the_agent_that_runs_here(proc: Path) -> None:
    process(proc, 7, "calico-node run", {"NODENAME": "supervisor"})
    process(
        proc, 9, "calico-node -felix", {"NODENAME": "n1", "LD_PRELOAD": "/evil.so", "PATH": "/evil", "FELIX_X": "1"}
    )
    process(proc, 3, "calico-node -felix", {"NODENAME": "a pod's"}, netns="net:[2]")
    process(proc, 2, "other -felix", {"NODENAME": "other"})
    process(proc, 1, "calico-node -rehearse -felix", {"NODENAME": "itself"})
    found = find_agent(proc)
    assert (found.pid, found.environ) == (9, {"NODENAME": "n1", "FELIX_X": "1"})


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file away")
def test_a_user_s_process_is_no_agent(proc: Path) -> None:
    process(proc, 9, "calico-node -felix", {"NODENAME": "n1"})
    os.chown(proc / "9", 1000, 1000)
    assert find_agent(proc).environ is None


def test_the_account_of_an_agent_in_a_pod(proc: Path) -> None:
    process(proc, 9, "calico-node -felix", {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    agent = find_agent(proc)
    assert agent.environ is not None
    assert account_of(agent, agent.environ, proc) == {}
    account = proc / "9" / "root" / SERVICE_ACCOUNT_DIR.lstrip("/")
    account.mkdir(parents=True)
    (account / "token").write_text("secret\n")
    assert account_of(agent, agent.environ, proc) == {
        "K8S_API_ENDPOINT": "https://[fd00::1]:6443",
        "K8S_API_TOKEN": "secret",
        "K8S_CA_FILE": str(account / "ca.crt"),
    }
    assert account_of(agent, {**agent.environ, "KUBECONFIG": "/k"}, proc) == {}
