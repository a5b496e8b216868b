"""The workflows' rules: what they may do, and that nothing in them is decided outside of the repository."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import LAB_CACHE, ROOT
from tests.workflows.runner import NotUnderstood, combinations, filled, ordered, read_workflow

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = read_workflow(ROOT / ".github" / "workflows" / "release.yml")
SIGNING = {"sign", "publish"}
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_workflow(path)["jobs"]
    return found


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in jobs(path).values():
        yield from job["steps"]


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield str(key)
            yield from strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    else:
        yield str(value)


def test_there_are_three() -> None:
    assert [path.name for path in WORKFLOWS] == ["nightly.yml", "release.yml", "test.yml"]


@each_workflow
def test_actions_are_pinned_by_commit(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines() if "uses:" in line]
    assert lines
    pinned = r"- uses: actions/(checkout|upload-artifact|download-artifact)@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    assert [line for line in lines if not re.fullmatch(pinned, line)] == []


def test_an_action_has_one_version_everywhere() -> None:
    used = {line.strip() for path in WORKFLOWS for line in path.read_text().splitlines() if "uses:" in line}
    assert len(used) == len({line.partition("@")[0] for line in used})


@each_workflow
def test_a_job_may_do_what_it_says_and_no_more(path: Path) -> None:
    assert read_workflow(path)["permissions"] == {}
    for name, job in jobs(path).items():
        wanted = {"contents": "read"}
        if path.name == "release.yml":
            wanted |= {"sign": {"id-token": "write"}, "publish": {"packages": "write"}}.get(name, {})
            wanted |= {"contents": "write"} if name == "page" else {}
        assert job["permissions"] == wanted, name


@each_workflow
def test_secrets_are_where_things_are_signed_and_published(path: Path) -> None:
    for name, job in jobs(path).items():
        secret = [text for text in strings(job) if re.search(r"\bsecrets\b", text)]
        allowed = path.name == "release.yml" and name in SIGNING
        assert allowed or not secret, f"{name}: {secret}"
        # an environment asks somebody first
        assert (job.get("environment") == "release") == allowed
        # and only single steps see them
        assert not any("secrets" in text for text in strings(job.get("env", {})))


@each_workflow
def test_nobody_elses_branch_runs_with_our_rights(path: Path) -> None:
    events = read_workflow(path)["on"]
    assert set(events) <= {"push", "pull_request", "schedule", "workflow_dispatch"}
    if path.name == "release.yml":
        assert events == {"push": {"tags": ["v*"]}}
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@each_workflow
def test_one_at_a_time_and_not_for_ever(path: Path) -> None:
    together = read_workflow(path)["concurrency"]
    assert together["cancel-in-progress"] is (path.name == "test.yml")
    if path.name == "release.yml":
        assert together["group"] == "release-${{ github.ref }}"
    for job in jobs(path).values():
        assert 0 < job["timeout-minutes"] <= 240
        assert re.fullmatch(r"ubuntu-\d\d\.\d\d(-arm)?|\$\{\{ matrix\.runner \}\}", job["runs-on"])


def test_a_release_takes_nothing_from_a_cache() -> None:
    text = "\n".join(strings(RELEASE))
    assert "cache" not in text


@each_workflow
def test_a_line_calls_one_script_that_is_there(path: Path) -> None:
    """Without an expression in it: what a branch or a tag is called is never part of a command."""
    for step in steps(path):
        line = step.get("run")
        if line is None:
            continue
        assert "\n" not in line and "${{" not in line and not re.search(r"[;&|<>`]|\$\(", line), line
        words = [word for word in line.split() if word not in ("sudo", "--preserve-env", ".venv/bin/python")]
        called = [
            word.removeprefix("elsewhere/again/")
            for word in words
            if re.match(r"(elsewhere/|\.ci/|build/|tests/)", word)
        ]
        assert words[0].removeprefix("elsewhere/again/").startswith(".ci/"), line
        assert [name for name in called if not (ROOT / name).is_file()] == [], line


@pytest.mark.slow
@pytest.mark.actionlint
def test_actionlint_has_nothing_to_say() -> None:
    shellcheck = Path(sys.executable).parent / "shellcheck"
    command = [str(LAB_CACHE / "bin" / "actionlint"), "-no-color", f"-shellcheck={shellcheck}", *map(str, WORKFLOWS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_release_is_made_signed_and_published_in_this_order() -> None:
    assert ordered(RELEASE["jobs"], "page") == ["build", "again", "join", "sign", "publish", "page"]
    machines = {each["arch"]: each["runner"] for each in RELEASE["jobs"]["build"]["strategy"]["matrix"]["include"]}
    assert machines == {"amd64": "ubuntu-24.04", "arm64": "ubuntu-24.04-arm"}  # natively


def test_an_expression_that_nobody_knows_is_an_error() -> None:
    assert filled({"a": "x-${{ matrix.arch }}"}, {"matrix.arch": "arm64"}) == {"a": "x-arm64"}
    with pytest.raises(NotUnderstood, match=r"github\.event"):
        filled({"a": "${{ github.event }}"}, {})
    with pytest.raises(NotUnderstood, match="need one another"):
        ordered({"a": {"needs": "b"}, "b": {"needs": ["a"]}}, "a")


def test_the_combinations_of_a_matrix() -> None:
    assert list(combinations({})) == [{}]
    assert list(combinations({"a": [1, 2], "b": ["x"]})) == [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}]
    assert list(combinations({"include": [{"a": 1}]})) == [{"a": 1}]


# -- the scripts of .ci -----------------------------------------------------------------------------------------------


def call(script: str, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / ".ci" / script, *words],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )


def made(directory: Path, **files: str) -> Path:
    directory.mkdir()
    for name, text in files.items():
        (directory / name).write_text(text)
    listed = subprocess.run(["sha256sum", *sorted(files)], cwd=directory, capture_output=True, text=True, check=True)
    (directory / "SHA256SUMS").write_text(listed.stdout)
    return directory


def test_the_same_bytes(tmp_path: Path) -> None:
    one = made(tmp_path / "one", a="1", b="2")
    assert call("same", one, made(tmp_path / "same", b="2", a="1")).returncode == 0
    other = call("same", one, made(tmp_path / "other", a="1", b="3"))
    assert other.returncode == 1 and other.stderr.splitlines()[1:] == ["  b"]
    more = call("same", one, made(tmp_path / "more", a="1", b="2", c="3"))
    assert more.returncode == 1 and more.stderr.splitlines()[1:] == ["  c"]
    (one / "a").write_text("changed afterwards")
    changed = call("same", one, tmp_path / "same")
    assert changed.returncode == 1 and "not those of its SHA256SUMS" in changed.stderr
    assert call("same", one).returncode == 2


def test_the_key_is_in_a_file_of_its_owners_alone(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old")
    (tmp_path / "key").chmod(0o644)
    done = call("key", tmp_path / "key", SIGNING_KEY_TEXT="secret\nlines")
    assert done.returncode == 0 and "secret" not in done.stdout + done.stderr
    assert (tmp_path / "key").read_text() == "secret\nlines\n"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert "SIGNING_KEY_TEXT is empty" in call("key", tmp_path / "key").stderr


def test_the_drafts_name_the_repository_and_its_releases(tmp_path: Path) -> None:
    names = [f"kubectl-calico_1.2.3_linux_{each}.tar.gz" for each in ("amd64", "arm64")] + ["calicoctl-1.2.3.pyz"]
    made(tmp_path / "release", **dict.fromkeys(names, "x"))
    done = call("drafts", tmp_path / "release", tmp_path / "out", GITHUB_REPOSITORY="team/cni-calico")
    assert done.returncode == 0, done.stderr
    home = "https://github.com/team/cni-calico"
    manifest, formula = ((tmp_path / "out" / name).read_text() for name in ("calico.yaml", "cni-calico.rb"))
    assert f"  homepage: {home}\n" in manifest and f'  homepage "{home}"\n' in formula
    assert f"uri: {home}/releases/download/v1.2.3/{names[1]}\n" in manifest
    assert f'url "{home}/releases/download/v1.2.3/{names[2]}"' in formula


PAGE = """\
# A page
```sh
echo one >>ran
```
<!-- unpublished -->
```sh
echo two >>ran
```
<!-- published
```sh
echo hidden >>ran
```
-->
## Policies alone
```sh
echo instead >>ran
```
## More
```sh
echo three >>ran
false
echo four >>ran
```
"""


def test_a_page_is_followed_to_the_letter(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    (tmp_path / "release").mkdir()
    done = call("follow", page, tmp_path / "release")
    assert done.returncode == 1
    assert (tmp_path / "release" / "ran").read_text().split() == ["one", "two", "three"]
    page.write_text("nothing to do")
    assert "has no commands" in call("follow", page, tmp_path / "release").stderr


NIGHTLY = ROOT / ".github" / "workflows" / "nightly.yml"
EVERY_NIGHT = [*jobs(NIGHTLY)["distributions"]["strategy"]["matrix"]["page"], "minikube"]


def test_distributions_that_are_installed_every_night() -> None:
    assert EVERY_NIGHT == ["k3s", "kind", "k0s", "microk8s", "minikube"]
    *_, last = jobs(NIGHTLY)["minikube"]["steps"]
    assert last["run"] == ".ci/follow docs/distributions/minikube.md dist/trial"


@pytest.mark.parametrize("name", EVERY_NIGHT)
def test_the_pages_that_are_followed_every_night(name: str) -> None:
    printed = call("follow", "--print", ROOT / "docs" / "distributions" / f"{name}.md").stdout
    assert "cluster check" in printed and ".tar" in printed and "{registry}" not in printed
    assert subprocess.run(["bash", "-n", "-c", printed]).returncode == 0


@pytest.mark.parametrize(
    ("environment", "programs"),
    [
        ({}, "/nonexistent/.cache/cni-lab/bin"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/cni-lab/bin"),
        ({"XDG_CACHE_HOME": "/cache", "LAB_CACHE": "/lab"}, "/lab/bin"),
    ],
)
def test_on_debian_12_a_command_runs_as_it_is(environment: dict[str, str], programs: str) -> None:
    """With the programs on PATH that tests/setup made for that user."""
    done = call("debian", "sh", "-c", "echo $0 $PATH", "x y", **environment)
    assert done.stdout.startswith(f"x y {programs}:")


def test_its_status_is_the_commands() -> None:
    assert call("debian", "false").returncode == 1
    assert call("debian").returncode == 2
