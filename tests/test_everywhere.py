"""A run fails if a test ran nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.everywhere import skipped_everywhere

ROOT = Path(__file__).parents[1]
HERE = "tests/a.py::test_a[nftables]"


@pytest.mark.parametrize(
    ("skipped", "ran", "missing"),
    [
        ({HERE: "kernel: no sctp here"}, [], [HERE]),
        ({HERE: "kernel: no sctp here"}, ["tests/a.py::test_a[iptables]"], [HERE]),
        ({HERE: "kernel: no sctp here"}, [HERE], []),
        ({HERE: "backend: no transactions"}, ["tests/a.py::test_b[nftables]"], [HERE]),
        ({HERE: "backend: no transactions"}, ["tests/a.py::test_a[iptables]"], []),
        ({HERE: "slow: only with --all"}, [], []),
    ],
)
def test_what_ran_nowhere(skipped: dict[str, str], ran: list[str], missing: list[str]) -> None:
    assert skipped_everywhere(skipped, ran) == missing


PLUGIN = "from tests.everywhere import Everywhere\n\ndef pytest_configure(config):\n"
PLUGIN += "    config.pluginmanager.register(Everywhere(config))\n"
SKIPPED = """
import pytest

@pytest.mark.parametrize("backend", ["one", "other"])
def test_documents(backend, record_property):
    record_property("ran", "test_it.py::test_there")
    if backend == SKIPPED_ON or SKIPPED_ON == "both":
        pytest.skip("backend: no documents")

@pytest.mark.skip(reason="kernel: no sctp here")
def test_there():
    pass

def test_passes():
    pass
"""


@pytest.mark.parametrize(
    ("skipped_on", "arguments", "status"),
    [("one", [], 0), ("both", [], 1), ("both", ["-k", "there or passes or documents"], 0), ("both", ["test_it.py"], 0)],
)
def test_only_a_whole_run_is_asked(tmp_path: Path, skipped_on: str, arguments: list[str], status: int) -> None:
    """Of both backends the second has the property, so that with both skipped neither test ran."""
    (tmp_path / "conftest.py").write_text(PLUGIN)
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\n")
    (tmp_path / "test_it.py").write_text(f"SKIPPED_ON = {skipped_on!r}\n{SKIPPED}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    environ = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("test_there: skipped here" in done.stdout) is bool(status)
