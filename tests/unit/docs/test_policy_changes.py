"""The examples of docs/policy-changes.md print what they say, and what docs/ci.md has runs."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cni_calico.ctl.main import run
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
    from jsonschema import Draft202012Validator  # a second of the processor, for whoever collects the tests

    calicoctl = Calicoctl(tmp_path / "datastore.db", capsys, monkeypatch)
    calicoctl.write(stored([POLICIES["database"]]))
    monkeypatch.chdir(tmp_path)
    found = []
    for block in blocks("policy-changes.md"):
        first, _, rest = block.partition("\n")
        if first.startswith("# ") and first.endswith((".yaml", ".jsonl")):
            Path(first[2:]).write_text(rest + "\n")
        elif first == "# pods.sh":
            command, _, file = rest.partition(" > ")
            Path(file).write_text(calicoctl(*shlex.split(command)[1:]).out)
        elif first.startswith("$ calicoctl"):
            result = calicoctl(*shlex.split(first)[2:])
            assert result.out.rstrip("\n") == rest, first
            found.append(" ".join(first.split()[2:4]))
    assert {"policy diff", "policy replay", "policy recommend", "policy test"} <= {*found}
    assert sum(one == "policy replay" for one in found) >= 2  # pods, and at a host endpoint
    schema = json.loads((ROOT / "docs" / "expectations.schema.json").read_text())
    Draft202012Validator(schema).validate(yaml.safe_load(Path("expected.yaml").read_text()))


def git(directory, *words):
    identity = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_CONFIG_GLOBAL": "/dev/null"}
    committer = {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org"}
    subprocess.run(["git", *words], cwd=directory, env={**os.environ, **identity, **committer}, check=True)


def job(place):
    """(command, environment) of what a pipeline runs."""
    documents = (yaml.safe_load(block) for block in blocks("ci.md") if block.startswith(("on:", "policies:")))
    github, gitlab = ({str(name): value for name, value in one.items()} for one in documents)
    if place == "github":
        assert github["True"]["pull_request"]["paths"] == ["policies/**"]  # YAML's "on"
        checkout, step = github["jobs"]["policies"]["steps"]
        assert checkout["with"]["fetch-depth"] == 0  # the target branch is there
        return step["run"], {"GITHUB_BASE_REF": "main"}
    (command,) = gitlab["policies"]["script"]
    assert gitlab["policies"]["variables"]["GIT_DEPTH"] == 0
    assert gitlab["policies"]["artifacts"]["paths"] == ["policy-diff.txt"]
    return command, {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main"}


@pytest.mark.parametrize(
    ("place", "ports", "status"),
    [("gitlab", [5432], 0), ("github", [5432, 5433], 1), ("gitlab", ["no port!"], 2)],
)
def test_the_script_for_pull_requests(tmp_path, place, ports, status):
    (script,) = (block for block in blocks("ci.md") if block.startswith("#!/bin/sh"))
    command, variables = job(place)
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
    git(tmp_path, "update-ref", "refs/remotes/origin/main", "main")  # as the checkouts leave it
    write(tmp_path / "policies" / "database.yaml", policy("database", "app == 'db'", [("app == 'web'", ports)]))
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environ = {**os.environ, "PATH": path, **variables}
    ran = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert ran.returncode == status, ran
    assert (tmp_path / "policy-diff.txt").read_text() == ran.stdout
    if status == 1:
        assert "shop/app=web -> shop/app=db  ingress tcp 5433  DENIED" in ran.stdout
    if status == 2:
        assert "cannot use" in ran.stderr


def test_the_expectations_of_a_pull_request(tmp_path, monkeypatch, capsys):
    found = re.search("`calicoctl (policy test tests/ [^`]+)`", (ROOT / "docs" / "ci.md").read_text())
    for name in ("policies", "tests"):
        (tmp_path / name).mkdir()
    (expected,) = (block for block in blocks("policy-changes.md") if block.startswith("# expected.yaml"))
    (tmp_path / "tests" / "expected.yaml").write_text(expected + "\n")
    monkeypatch.chdir(tmp_path)
    for ports, status in (([5432], 0), ([5433], 1)):
        write(tmp_path / "policies" / "database.yaml", policy("database", "app == 'db'", [("app == 'web'", ports)]))
        assert run(found.group(1).split(), {}) == status, capsys.readouterr()
