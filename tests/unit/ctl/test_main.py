"""Which function carries out which command."""

from __future__ import annotations

import inspect
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from cni_calico.ctl.command_line.help_texts import COMMANDS
from cni_calico.ctl.main import find_command, find_standalone
from tests.conftest import ROOT

GROUPS = {name for name in COMMANDS if any(other.startswith(f"{name} ") for other in COMMANDS)}
# upstream's words for ``datastore lock`` and the others are replaced where the command line is parsed
NAMES = [name for name in COMMANDS if name not in GROUPS and not name.startswith("datastore migrate ")]
WRITING = ["create", "replace", "apply", "delete", "patch", "label"]


def parameters_of(function: object) -> list[str]:
    assert callable(function)
    return [str(parameter.annotation) for parameter in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_has_one_function(name: str) -> None:
    standalone = find_standalone(name)
    if standalone is None:
        assert parameters_of(find_command(name)) == ["Session", "Namespace"]
    else:
        assert parameters_of(standalone) == ["Namespace", "Mapping[str, str]"]
        with pytest.raises(KeyError):
            find_command(name)


def test_what_depends_on_options() -> None:
    watch = find_command("get", watching=True)
    assert watch is not find_command("get") and parameters_of(watch) == ["Session", "Namespace"]
    assert find_command("show", watching=True) is find_command("show")
    checks = {find_standalone(name, dry_run="client") for name in WRITING}
    assert len(checks) == 1 and parameters_of(checks.pop()) == ["Namespace", "Mapping[str, str]"]
    assert {find_standalone(name, dry_run="server") for name in WRITING} == {None}


def test_only_the_commands_own_module_is_imported() -> None:
    program = "import sys; from cni_calico.ctl.main import find_command; find_command('ipam show'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=os.getcwd())
    imported = set(done.stdout.split())
    assert "cni_calico.ctl.ipam.show" in imported
    assert not imported & {f"cni_calico.ctl.{name}" for name in ("ipam.check", "ipam.split", "resources.commands")}


def test_progress_is_shown_on_a_terminal_and_nothing_of_it_stays(tmp_path: Path) -> None:
    """On its own line, which the next word replaces; the answer is the same without a terminal."""
    environ = {**os.environ, "DATASTORE_TYPE": "local", "DATASTORE_PATH": str(tmp_path / "datastore.db")}
    pool = "{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: p}, spec: {cidr: 10.0.0.0/16}}"
    calicoctl = [sys.executable, "-m", "cni_calico.ctl.main"]
    subprocess.run([*calicoctl, "create", "-f", "-"], env=environ, input=pool, text=True, check=True)
    plain = subprocess.run([*calicoctl, "ipam", "check"], env=environ, capture_output=True, text=True, check=True)
    assert plain.stderr == "" and "Check complete; found 0 problems" in plain.stdout
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        on_terminal = subprocess.run(
            [*calicoctl, "ipam", "check"], env=environ, stdout=subprocess.PIPE, stderr=theirs, text=True, check=True
        )
        os.close(theirs)
        shown = terminal.read(4096).decode()
    assert on_terminal.stdout == plain.stdout
    said = shown.split("\r\x1b[K")
    assert [word.partition(" ")[0] for word in said] == ["", "Reading,", "Looking", "Comparing", ""], shown


@pytest.mark.parametrize(
    ("where", "why"), [(">/dev/full", "No space left on device"), (">&-", "Bad file descriptor"), ("2>&-", "")]
)
def test_what_nobody_can_read_is_a_failure_in_a_line(where: str, why: str) -> None:
    command = f"exec {sys.executable} -m cni_calico.ctl.main version --client {where}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, timeout=60)
    said = f"cannot write the answer to standard output: {why}\n"
    assert (done.returncode, done.stderr) == ((1, said) if why else (0, ""))
