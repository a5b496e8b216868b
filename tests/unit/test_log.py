"""Records of the log as text and as JSON."""

from __future__ import annotations

import json
import os
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
