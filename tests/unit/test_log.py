"""Records of the log as text and as JSON."""

from __future__ import annotations

import json
import os
import stat
import sys
from datetime import UTC, datetime

import pytest

from cni_calico.log import Log, wants_json


def test_json_is_one_object_a_line(tmp_path, capfd) -> None:
    path = tmp_path / "x.log"
    log = Log("info", str(path), context="ADD c1 eth0: ", as_json=True)
    begun = datetime.now(UTC)
    log.warning('two\nlines, "quoted", \u00e9; password=hunter2')
    log.debug("not said")
    Log("info", str(path), as_json=True).info("without a context")
    lines = path.read_text().splitlines()
    assert capfd.readouterr().err.splitlines() == lines and len(lines) == 2
    record = json.loads(lines[0])
    assert list(record) == ["time", "level", "pid", "context", "message"]
    assert (record["level"], record["pid"], record["context"]) == ("warning", os.getpid(), "ADD c1 eth0")
    assert record["message"].startswith('two\nlines, "quoted", \u00e9;') and "hunter2" not in record["message"]
    assert abs((datetime.fromisoformat(record["time"]) - begun).total_seconds()) < 60
    assert "context" not in json.loads(lines[1])


def test_text_stays_what_it_was(capfd) -> None:
    Log("info", context="agent: ").info("two\nlines")
    first, second = capfd.readouterr().err.splitlines()
    assert first.endswith(f"[INFO][{os.getpid()}] agent: two") and second == "\tlines"


def test_a_log_without_standard_error(tmp_path, capfd) -> None:
    log = Log("info", str(tmp_path / "x.log"))
    log.file_only().info("one")
    assert log.stderr and capfd.readouterr().err == ""
    assert (tmp_path / "x.log").read_text().endswith("one\n")


@pytest.mark.parametrize(("value", "wanted"), [("json", True), (" JSON ", True), ("text", False), ("", False)])
def test_who_wants_json(value: str, wanted: bool) -> None:
    assert wants_json({"CALICO_LOG_FORMAT": value}) is wanted
    assert wants_json({}) is False


@pytest.mark.parametrize("what", ["fifo with a reader", "device", "directory"])
def test_only_a_file_is_written_to(tmp_path, what: str) -> None:
    path = tmp_path / "x.log"
    if what == "directory":
        path.mkdir()
    elif what == "device":
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    else:
        os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        Log("info", str(path), stderr=False, max_size_mb=0).info("one")
        assert what == "directory" or os.read(reader, 100) == b""
    finally:
        os.close(reader)
    assert os.listdir(tmp_path) == ["x.log"]


@pytest.mark.parametrize("what", ["fifo", "link"])
def test_a_rotation_whose_lock_is_no_file_is_left_out(tmp_path, what: str) -> None:
    path, elsewhere = tmp_path / "x.log", tmp_path / "elsewhere"
    if what == "fifo":
        os.mkfifo(f"{path}.lock")
    else:
        os.symlink(elsewhere, f"{path}.lock")
    log = Log("info", str(path), stderr=False, max_size_mb=0)
    log.info("one")
    log.info("two")
    assert [line[-3:] for line in path.read_text().splitlines()] == ["one", "two"]
    assert sorted(os.listdir(tmp_path)) == ["x.log", "x.log.lock"]
    os.unlink(f"{path}.lock")
    log.info("three")
    assert not path.exists() and len(list(tmp_path.glob("x-*.log"))) == 1


@pytest.mark.parametrize("loadable", [True, False])
def test_a_failure_has_its_trace_if_one_can_be_made(tmp_path, monkeypatch, loadable: bool) -> None:
    if not loadable:  # as without a free descriptor
        monkeypatch.setitem(sys.modules, "traceback", None)
    path = tmp_path / "x.log"
    try:
        raise KeyError("web")
    except KeyError as e:
        Log("info", str(path), stderr=False).failure("the part failed", e)
    text = path.read_text()
    assert "the part failed" in text and "KeyError: 'web'" in text and ("test_log.py" in text) == loadable
