"""The names of the executable: flags, what is printed, exit statuses."""

from __future__ import annotations

import json
import os
import sys

import pytest

from cni_calico import __version__
from cni_calico.controllers.health import STALE_S, Health, why_not_ready, write_status
from cni_calico.controllers.main import run
from cni_calico.errors import DatastoreUnavailable
from tests.fakes.memory_store import MemoryStore

WELL = {"Ready": True, "Reason": ""}


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("kube-controllers", ["-version"]),
        ("calico-kube-controllers", ["--version"]),
        ("calico-kube-controllers", ["-v"]),
        ("check-status", ["-v"]),
    ],
)
def test_version(program, arguments, capsys):
    assert run(program, arguments, {}) == 0
    assert capsys.readouterr().out == f"v{__version__}\n"


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        ("kube-controllers", ["-what"]),
        ("check-status", ["-f"]),
        ("wrapper", []),
        ("wrapper", ["-x"]),
        ("x", ["y"]),
        ("calico", []),
        ("calico", ["component", "node"]),
        ("calico", ["component", "kube-controllers", "-what"]),
    ],
)
def test_what_is_not_known_is_refused_with_the_usage(program, arguments, capsys):
    assert run(program, arguments, {}) == 2
    assert "usage: " in capsys.readouterr().err


def test_a_wrong_variable_ends_it_and_is_named(capsys):
    assert run("kube-controllers", [], {"ENABLED_CONTROLLERS": "nodes"}) == 1
    assert "ENABLED_CONTROLLERS='nodes'" in capsys.readouterr().err


def test_etcd_is_the_default_datastore_and_needs_endpoints(capsys):
    assert run("kube-controllers", [], {}) == 1
    assert "no etcd endpoints" in capsys.readouterr().err


def test_one_host_by_itself_has_nothing_to_control(capsys):
    assert run("kube-controllers", [], {"DATASTORE_TYPE": "local"}) == 1
    assert "DATASTORE_TYPE=local" in capsys.readouterr().err


@pytest.mark.parametrize("program", ["calico", "kube-controllers"])
def test_as_the_component_of_one_program_for_everything(program, tmp_path, capsys):
    """As newer charts call it, and their probes; also after the entry point of our image."""
    component = ["component", "kube-controllers"]
    assert run(program, [*component, "--version"], {}) == 0
    path = tmp_path / "status.json"
    write_status(path, {"Startup": WELL})
    for health in (["kube-controllers-health", "-r"], ["kube-controllers-health", "--live"], ["health", "-l"]):
        assert run(program, [*component, *health, "--file", str(path)], {}) == 0
    assert capsys.readouterr().out == f"v{__version__}\n" + 3 * "Ready\n"
    assert run(program, component, {"ENABLED_CONTROLLERS": "nodes"}) == 1


# -- check-status -----------------------------------------------------------------------------------------------------


def test_ready(tmp_path, capsys):
    path = tmp_path / "status.json"
    write_status(path, {"Startup": WELL, "CalicoDatastore": WELL})
    for flag in ("-r", "-l"):
        assert run("check-status", [flag, "-f", str(path)], {}) == 0
        assert capsys.readouterr().out == "Ready\n"


def test_the_reasons_are_joined(tmp_path, capsys):
    path = tmp_path / "status.json"
    found = {"Startup": WELL, "KubeAPIServer": {"Ready": False, "Reason": "b"}}
    write_status(path, {**found, "CalicoDatastore": {"Ready": False, "Reason": "a"}})
    assert run("check-status", ["-r", "-f", str(path)], {}) == 1
    assert capsys.readouterr().out == "a; b\n"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Readiness": 3}', '{"Readiness": {}}', '{"Readiness": {"A": 1}}'])
def test_a_file_that_says_nothing_is_not_ready(tmp_path, text):
    path = tmp_path / "status.json"
    path.write_text(text)
    assert why_not_ready(path)


def test_no_file_and_an_old_file_are_not_ready(tmp_path):
    path = tmp_path / "status.json"
    assert "there is no status file" in why_not_ready(path)
    write_status(path, {"Startup": WELL})
    assert why_not_ready(path) == ""
    old = path.stat().st_mtime - STALE_S - 5
    os.utime(path, (old, old))
    assert "was last written" in why_not_ready(path)


def test_health_says_what_is_down(tmp_path):
    store, path = MemoryStore(), tmp_path / "status.json"
    deadlines = []

    def server(deadline):
        deadlines.append(round(deadline.remaining_s()))
        if len(deadlines) < 4:
            raise DatastoreUnavailable("the API server is away")

    health = Health(path, store, server)
    assert not health.look()
    assert why_not_ready(path) == "the API server is away"
    store.set_down(True)
    assert not health.look()
    assert "scripted outage" in why_not_ready(path)
    store.set_down(False)
    assert not health.look()
    assert health.look()
    assert deadlines == [4, 8, 16, 16]
    assert json.loads(path.read_text()) == {
        "Readiness": {"Startup": WELL, "CalicoDatastore": WELL, "KubeAPIServer": WELL}
    }


# -- wrapper ----------------------------------------------------------------------------------------------------------


def test_wrapper_starts_again_what_ends_with_129_and_returns_any_other_status(tmp_path):
    count = tmp_path / "count"
    script = tmp_path / "program"
    script.write_text(f'#!/bin/sh\necho >>{count}\n[ "$(wc -l <{count})" -ge 3 ] && exit 7\nexit 129\n')
    script.chmod(0o755)
    command = [sys.executable, "-c", f"import sys; sys.argv[0] = 'wrapper'; {_MAIN}", str(script)]
    import subprocess

    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 7, done.stderr
    assert count.read_text() == "\n\n\n"


def test_wrapper_names_a_program_that_is_not_there(capsys):
    assert run("wrapper", ["no-such-program"], {"PATH": "/nowhere"}) == 1
    assert "no-such-program" in capsys.readouterr().err


_MAIN = "from cni_calico.controllers.main import main; sys.exit(main())"
