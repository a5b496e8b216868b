"""The status file: whole or not there, also when the disk is full."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.file import (
    read_status,
    since_boot,
    unmet_needs,
    why_not_live,
    write_confd_status,
    write_startup_error,
    write_status,
)


def test_a_full_disk_keeps_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next attempt would not find room either."""
    run_dir = str(tmp_path)
    write_status(run_dir, {"node": "n1"})
    write = os.write

    def fill(fd: int, data: bytes) -> int:
        if len(data) <= 10:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data[:10])

    monkeypatch.setattr(os, "write", fill)
    for attempt in (lambda: write_status(run_dir, {"node": "n2"}), lambda: write_startup_error(run_dir, "x" * 50)):
        with pytest.raises(OSError, match="No space left"):
            attempt()
    assert os.listdir(tmp_path) == ["agent-status.json"] and read_status(run_dir)["node"] == "n1"


def test_a_name_that_is_taken_by_a_directory_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "agent-status.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_status(str(tmp_path), {})
    assert os.listdir(tmp_path) == ["agent-status.json"]


def test_birds_part_adds_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else, not over what the agent says itself, and no longer than it gives signs of life."""
    run_dir = str(tmp_path)
    said = {"bgp": "no BIRD", "bgp_unmet": ["it needs BIRD"], "node": "other"}
    write_confd_status(run_dir, said)
    found = read_status(run_dir)
    assert found == {"bgp": "no BIRD", "bgp_unmet": ["it needs BIRD"]}
    assert "has not started" in why_not_live(found, since_boot())
    write_status(run_dir, {"node": "n1", "synced": True, "policing": {"ready": True}})
    found = read_status(run_dir)
    assert (found["node"], found["bgp"], unmet_needs(found)) == ("n1", "no BIRD", ["it needs BIRD"])
    write_status(run_dir, {"node": "n1", "bgp": "", "bgp_unmet": []})
    assert read_status(run_dir)["bgp"] == "" and not unmet_needs(read_status(run_dir))[:-1]
    now = since_boot()
    write_status(run_dir, {"node": "n1"})
    monkeypatch.setattr(status, "since_boot", lambda: now + 61)
    assert "bgp" not in read_status(run_dir)
    for text in ("[]", '{"updated": "x"}', "\xff"):
        (tmp_path / status.CONFD_NAME).write_text(text)
        assert "bgp" not in read_status(run_dir)
