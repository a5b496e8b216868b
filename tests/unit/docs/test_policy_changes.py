"""The examples of docs/policy-changes.md print what they say, and the script of docs/ci.md runs."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.ctl.conftest import Calicoctl
from tests.unit.ctl.policy.shop import POLICIES, endpoints_file, policy, stored, write

ROOT = Path(__file__).resolve().parents[3]


def blocks(page):
    """The indented blocks, without their indentation."""
    found, lines = [], []
    for line in [*(ROOT / "docs" / page).read_text().splitlines(), "end"]:
        if line.startswith("    ") or (not line and lines):
            lines.append(line[4:])
        elif lines:
            found.append("\n".join(lines).strip("\n"))
            lines = []
    return found


def test_the_examples_print_what_they_say(tmp_path, capsys, monkeypatch):
    calicoctl = Calicoctl(tmp_path / "datastore.db", capsys, monkeypatch)
    calicoctl.write(stored([POLICIES["database"]]))
    monkeypatch.chdir(tmp_path)
    found = []
    for block in blocks("policy-changes.md"):
        first, _, rest = block.partition("\n")
        if first.startswith("# ") and first.endswith((".yaml", ".jsonl")):
            Path(first[2:]).write_text(rest + "\n")
        elif first.startswith("$ calicoctl"):
            result = calicoctl(*shlex.split(first)[2:])
            assert result.out.rstrip("\n") == rest, first
            found.append(" ".join(first.split()[2:4]))
    assert {"policy diff", "policy replay", "policy recommend", "policy test"} <= {*found}
    assert sum(one == "policy replay" for one in found) >= 2  # pods, and at a host endpoint


def git(directory, *words):
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}
    committer = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    subprocess.run(["git", *words], cwd=directory, env={**os.environ, **identity, **committer}, check=True)


@pytest.mark.parametrize(("ports", "status"), [([5432], 0), ([5432, 5433], 1), (["no port!"], 2)])
def test_the_script_for_pull_requests(tmp_path, ports, status):
    (script,) = (block for block in blocks("ci.md") if block.startswith("#!/bin/sh"))
    (tmp_path / "bin").mkdir()
    (tmp_path / "policies").mkdir()
    program = tmp_path / "bin" / "calicoctl"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cni_calico.ctl.main "$@"\n')
    program.chmod(0o755)
    (tmp_path / "policy-diff.sh").write_text(script + "\n")
    endpoints_file(tmp_path)
    write(tmp_path / "policies" / "database.yaml", POLICIES["database"])
    git(tmp_path, "init", "-q", "-b", "main")
    git(tmp_path, "add", "policies")
    git(tmp_path, "commit", "-q", "-m", "policies")
    write(tmp_path / "policies" / "database.yaml", policy("database", "app == 'db'", [("app == 'web'", ports)]))
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    ran = subprocess.run(
        ["sh", "policy-diff.sh", "main"], cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert ran.returncode == status, ran
    if status == 1:
        assert "shop/app=web -> shop/app=db  ingress tcp 5433  DENIED" in ran.stdout
    if status == 2:
        assert "cannot use" in ran.stderr
