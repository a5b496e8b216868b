"""The packet filters' programs. What nft, iptables and ip sets say and do: tests/netns/agent/test_rules.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.errors import KernelError
from cni_calico.kernel.filter.programs import find_program, run_program
from tests.deadlines import soon


def test_a_program_is_found_in_path_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f":{tmp_path}")
    assert find_program("no-such-program") == ""
    assert Path(find_program("sh")).name == "sh"
    own = tmp_path / "sh"
    own.write_text("")
    assert find_program("sh") != str(own), "it cannot be executed"
    own.chmod(0o755)
    assert find_program("sh") == str(own)


def test_a_program_sees_nothing_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    monkeypatch.setenv("SECRET", "s3cret")
    printed = run_program(["/bin/sh", "-c", "cat; env"], b"script\n", soon()).decode().splitlines()
    assert printed[0] == "script" and "LC_ALL=C" in printed
    assert not any("s3cret" in line or "de_DE" in line for line in printed)


@pytest.mark.parametrize(("script", "said"), [("echo why >&2; exit 3", "why"), ("exit 3", "it ended with status 3")])
def test_a_failure_has_the_programs_own_words(script: str, said: str) -> None:
    with pytest.raises(KernelError, match=f"cannot run /bin/sh -c .*: {said}"):
        run_program(["/bin/sh", "-c", script], b"", soon())
