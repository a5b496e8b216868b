"""build/release/sign.sh and publish.sh: what is refused before cosign is asked for anything; no registry, no cosign."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

RELEASE = ROOT / "build/release"


def run(script: str, *words: str | Path, **environment: str) -> tuple[int, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("COSIGN_", "SIGNING_", "GITHUB_"))
    }
    command = [RELEASE / script, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env={**kept, **environment})
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("script", ["sign.sh", "publish.sh", "mirror.sh", "verify.sh"])
def test_help_is_the_beginning_of_the_script(script: str) -> None:
    status, said = run(script, "--help")
    assert status == 0 and f"{script} " in said and "Rule" not in said and "set -euo" not in said


def test_what_is_not_said(tmp_path: Path) -> None:
    for script, words, said in (
        ("sign.sh", (), "which release?"),
        ("sign.sh", (tmp_path,), "with what? --key FILE, or --keyless"),
        ("sign.sh", ("--key", "k", "--keyless", tmp_path), "--key or --keyless, not both"),
        ("sign.sh", ("--key", "k", tmp_path / "none"), "build/release/join.py makes it"),
        ("sign.sh", ("--key", "k", tmp_path, tmp_path), "one directory, not also"),
        ("sign.sh", ("--kye", "k", tmp_path), "unknown option --kye"),
        ("publish.sh", (), "which release?"),
        ("publish.sh", (tmp_path,), "Set SIGNING_KEY"),
        ("mirror.sh", ("a",), "from where to where?"),
    ):
        status, text = run(script, *words)
        assert status == 2 and said in text and text.count("\n") == 1, text


def test_a_program_that_is_missing(tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "mktemp", "rm", "env", "sed", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    for script, words in (("sign.sh", ("--key", "k", tmp_path)), ("mirror.sh", ("a/b", "c/d"))):
        status, text = run(script, *words, PATH=str(tools))
        assert status == 2 and ("install version 3 of it" in text or "no skopeo" in text), text
