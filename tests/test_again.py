"""How a whole run counts: a second try for what failed, one closing line, and no success where no test ran."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# lucky: fails unless it was called before; broken fails always; killed takes its process with it the second time
TESTS = """
import os
import pathlib
import pytest

def before(name):
    mark = pathlib.Path(__file__).with_name(name)
    known = mark.exists()
    mark.touch()
    return known

@pytest.fixture
def lucky_fixture():
    yield
    assert before("torn-down")

@pytest.mark.parametrize("name", ["good", "lucky one", "broken", "killed"])
def test_it(name, record_property):
    record_property("summary", f"said by {name}")
    known = before(name)
    if name == "killed" and known:
        os._exit(1)
    assert name == "good" or name == "lucky one" and known

def test_teardown(lucky_fixture):
    pass

def test_last():
    assert before("last")

@pytest.mark.never_excused
def test_verdict():
    assert before("verdict")

@pytest.mark.slow
def test_slow():
    pass
"""


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    (directory / "conftest.py").write_text("from tests.conftest import *\n")
    (directory / "pytest.ini").write_text(
        "[pytest]\naddopts = -ra --import-mode=importlib\nmarkers =\n slow: late\n never_excused: no\n"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=directory,
        env={**environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "build")])},  # as pyproject.toml says
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("processes", ["0", "2"])
def test_what_failed_gets_one_more_try(tmp_path: Path, processes: str) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run(tmp_path, "-n", processes, "--again", "--no-unexpected-skips")
    assert done.returncode == 1, done.stdout + done.stderr
    closing = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"=+ 3 failed, 4 passed, 1 skipped, 4 rerun in .*=+", closing), done.stdout
    named = re.findall(r"^(FAILED|ERROR|AGAIN) \S*::(test_\w+(?:\[.*\])?)", done.stdout, re.MULTILINE)
    assert sorted(named) == [
        ("AGAIN", "test_it[lucky one]"),
        ("AGAIN", "test_last"),
        ("AGAIN", "test_teardown"),
        ("FAILED", "test_it[broken]"),
        ("FAILED", "test_it[killed]"),
        ("FAILED", "test_verdict"),
    ]
    assert "test_some.py::test_verdict failed: a second try would not excuse it" in done.stdout
    assert done.stdout.count("said by good") == 1
    assert "slow: only with" in done.stdout


def test_all_passed_in_the_end(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    done = run(tmp_path, "-n", "2", "--again", "-k", "lucky or teardown or good")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch(r"=+ 3 passed, 2 rerun in .*=+", done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.parametrize("arguments", [["-k", "slow"], ["-k", "nothing"], ["-n", "2", "-k", "slow"]])
def test_no_success_where_no_test_ran(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    assert run(tmp_path, *arguments).returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def test_an_unexpected_skip_fails(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text("import pytest\ndef test_it():\n    pytest.skip('just so')\n")
    done = run(tmp_path, "-n", "2", "--again", "--no-unexpected-skips")
    assert done.returncode == 1 and "has to run on this machine: just so" in done.stdout
    assert re.fullmatch(r"=+ 1 failed, 1 rerun in .*=+", done.stdout.splitlines()[-1]), done.stdout
