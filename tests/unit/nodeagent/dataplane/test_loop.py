"""What the agent's parameters make of its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.log import Log
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.nodeagent.dataplane.loop import configure_log


def said(tmp_path: Path, capfd: pytest.CaptureFixture[str], **spec: str) -> tuple[list[str], list[str]]:
    """The levels of the lines on standard error and in the usual file."""
    usual = tmp_path / "usual.log"
    usual.write_text("")
    log = Log("info", str(usual))
    configure_log(log, parse_felix({}, None, spec).settings)
    for level in ("debug", "info", "warning"):
        getattr(log, level)(level)
    lines = capfd.readouterr().err, usual.read_text()
    first, second = ([line.rpartition(" ")[2] for line in text.splitlines()] for text in lines)
    return first, second


def test_the_levels_of_the_log_and_of_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    both = ["info", "warning"]
    assert said(tmp_path, capfd) == (both, both)
    assert said(tmp_path, capfd, logSeverityScreen="Warning") == (["warning"], ["warning"])
    assert said(tmp_path, capfd, logSeverityScreen="Warning", logSeverityFile="Debug") == (
        ["warning"],
        ["debug", *both],
    )
    assert said(tmp_path, capfd, logSeverityFile="None") == (both, [])
    assert said(tmp_path, capfd, logFilePath="none") == (both, [])


def test_debug_records_of_some_source_files_only(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The regular expression is searched in the name of the file that writes the record."""
    assert "debug" in said(tmp_path, capfd, logSeverityScreen="Debug", logDebugFilenameRegex="test_lo+p")[0]
    assert said(tmp_path, capfd, logSeverityScreen="Debug", logDebugFilenameRegex="felix") == (
        ["info", "warning"],
        ["info", "warning"],
    )


def test_the_log_goes_nowhere_but_below_var_log() -> None:
    """Whoever writes a FelixConfiguration must not have the agent append to any file."""
    for path in ("/etc/passwd", "/var/log/../../etc/passwd", "felix.log", "/var/log/", "/var/log/a\0b"):
        found = parse_felix({}, None, {"logFilePath": path})
        assert found.settings.log_file is None and "a file below /var/log/" in found.warnings[0]
    assert parse_felix({"FELIX_LOGFILEPATH": "/var/log/calico/felix.log"}).settings.log_file is not None
