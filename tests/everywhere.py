"""Every test runs somewhere: what is skipped here for its kernel has run in a machine, what one backend is not for, on
another.

Rule: asked once a whole run (no file, expression or marker was chosen) has ended, of the reports of its tests. A slow
test that --slow was not given for, and one that needs the history that an archive of the sources has not, are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

RAN = "ran"  # the property of a lane's test: the id of a test that passed in its machine
ELSEWHERE, OTHERS = "kernel: ", "backend: "  # beginnings of reasons


def skipped_everywhere(skipped: Mapping[str, str], ran: Iterable[str]) -> list[str]:
    """Of skipped tests, id to reason, those that ran nowhere; of a backend's, with no parameters."""
    there = set(ran)
    functions = {nodeid.partition("[")[0] for nodeid in there}
    return sorted(
        nodeid
        for nodeid, reason in skipped.items()
        if (reason.startswith(ELSEWHERE) and nodeid not in there)
        or (reason.startswith(OTHERS) and nodeid.partition("[")[0] not in functions)
    )


class Everywhere:
    """In the run that counts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._missing: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if not is_whole(self._config) or not ended:
            return
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        passed = terminal.stats.get("passed", [])
        ran = [report.nodeid for report in passed]
        ran += [value for report in passed for name, value in report.user_properties if name == RAN]
        self._missing = skipped_everywhere(
            {report.nodeid: reason_of(report) for report in terminal.stats.get("skipped", [])}, ran
        )
        if self._missing:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self._missing:
            terminalreporter.write_line(f"FAILED {nodeid}: skipped here, and nowhere else did it run", red=True)


def reason_of(report: pytest.TestReport) -> str:
    found = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return found.removeprefix("Skipped: ")


def is_whole(config: pytest.Config) -> bool:
    chosen = config.option.keyword or config.option.markexpr or getattr(config.option, "deselect", None)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen
