"""Commits say what they change and why: a short subject, ``component: Imperative``, and a body.

Rule: what is checked comes after ``SINCE``; older commits were made before the rule. Where the history is not there (an
archive without .git, a shallow clone that ends after ``SINCE``) there is nothing to check.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SINCE = "313c8ac6f41ef7fe902e0004b4658dba7905d8c1"
SUBJECT = re.compile(r"[\w./-]+(, [\w./-]+)*: \S.*")
LONGEST_SUBJECT = 72


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True)


def messages(root: Path, since: str) -> list[tuple[str, str]]:
    """(subject, body) of the commits after one, without merges; none where that one is not known."""
    if not (root / ".git").exists() or git(root, "merge-base", "--is-ancestor", since, "HEAD").returncode != 0:
        return []
    log = git(root, "log", "--no-merges", "--format=%B%x00", f"{since}..HEAD")
    assert log.returncode == 0, log.stderr
    written = [text.strip("\n") for text in log.stdout.split("\0")]
    return [(text.partition("\n")[0], text.partition("\n")[2].strip()) for text in written if text]


def wrong_with(subject: str, body: str) -> list[str]:
    found = []
    if len(subject) > LONGEST_SUBJECT:
        found.append(f"{len(subject)} characters: {subject}")
    if not SUBJECT.fullmatch(subject):
        found.append(f"no component: {subject}")
    if not body:
        found.append(f"no body: {subject}")
    return found


def test_commits_say_what_and_why() -> None:
    assert [wrong for message in messages(ROOT, SINCE) for wrong in wrong_with(*message)] == []


def test_what_is_wrong_with_a_commit_is_found(tmp_path: Path) -> None:
    """In a history of its own: before the named commit everything is accepted, after it each rule counts."""
    clone, archive = tmp_path / "clone", tmp_path / "archive"
    archive.mkdir()
    origin = tmp_path / "origin"
    origin.mkdir()

    def commit(*paragraphs: str) -> str:
        who = ("-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "commit.gpgsign=false")
        texts = [word for text in paragraphs for word in ("-m", text)]
        made = git(origin, *who, "commit", "-q", "--allow-empty", *texts)
        assert made.returncode == 0, made.stderr
        return git(origin, "rev-parse", "HEAD").stdout.strip()

    assert git(origin, "init", "-q").returncode == 0
    since = commit("older than the rule")
    commit("ipam: Do this", "Because of that.")
    commit("ipam: " + "long " * 14, "Because.")
    commit("no component", "Because.")
    commit("docs, tests: Do this")
    found = [wrong for message in reversed(messages(origin, since)) for wrong in wrong_with(*message)]
    assert [wrong.partition(":")[0] for wrong in found] == ["75 characters", "no component", "no body"]
    assert git(tmp_path, "clone", "-q", "--depth=2", f"file://{origin}", str(clone)).returncode == 0
    assert messages(clone, since) == [] == messages(archive, since)
    assert len(messages(origin, since)) == 4
