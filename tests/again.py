"""What failed beside other tests is run once more, alone, before the run is summed up.

Rule: a second try is a pytest of its own, one test after another, when everything else has ended. Its reports take the
first ones' places, so that the closing line counts every test once; what passed only then is shown with its first
failure, under "passed when run again". What the second try has no whole report of (it was killed) stays failed, as does
everything when so much failed that it is no bad luck.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

TOO_MANY = 100  # tests
NEVER = "never_excused"  # the marker
FIRST_FAILURES = "rerun"  # the category of reports that pytest's closing line names


class Recorder:
    """In the second try: writes every report, a line each."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a") as out:
            out.write(json.dumps(data) + "\n")


class Again:
    """In the run that counts."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._first: dict[str, list[Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        result = yield
        self._run_again(session)
        return result

    def _run_again(self, session: pytest.Session) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        failed = _failed_tests(terminal)
        if not failed:
            return
        terminal.write_line("")
        if len(failed) > TOO_MANY:
            terminal.write_line(f"{len(failed)} tests failed: too many to try them again")
            return
        final = sorted(nodeid for nodeid, reports in failed.items() if any(NEVER in each.keywords for each in reports))
        for nodeid in final:
            del failed[nodeid]
            terminal.write_line(f"{nodeid} failed: a second try would not excuse it")
        if not failed:
            return
        terminal.write_sep("=", f"once more, alone: {len(failed)} failed")
        for nodeid, reports in self._second_reports(list(failed)).items():
            for category in ("failed", "error", "passed"):  # passed: and then an error in its teardown
                _forget(terminal.stats, category, nodeid)
            session.testsfailed -= len(failed[nodeid])
            self._first[nodeid] = failed[nodeid]
            terminal.stats.setdefault(FIRST_FAILURES, []).append(failed[nodeid][0])
            for report in reports:
                self._config.hook.pytest_runtest_logreport(report=report)

    def _second_reports(self, nodeids: list[str]) -> dict[str, list[pytest.TestReport]]:
        """Whole reports of a try in a process of its own, by test."""
        found: dict[str, list[pytest.TestReport]] = {}
        while nodeids:
            for report in self._reports_of(nodeids):
                found.setdefault(report.nodeid, []).append(report)
            nodeids = [nodeid for nodeid in nodeids if not _is_whole(found.get(nodeid))]
            for nodeid in nodeids[:1]:  # the one it ended in
                found.pop(nodeid, None)
            nodeids = nodeids[1:]
        return found

    def _reports_of(self, nodeids: list[str]) -> list[pytest.TestReport]:
        options = [name for name in ("--slow", "--no-unexpected-skips") if self._config.getoption(name)]
        with tempfile.TemporaryDirectory(prefix="cct-again-") as directory:
            path = Path(directory, "reports")
            command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "--reports", str(path)]
            done = subprocess.run(
                [*command, *options, *nodeids],
                cwd=self._config.rootpath,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
            )
            if not path.exists():
                print(done.stdout + done.stderr, file=sys.stderr)
                return []
            lines = path.read_text().splitlines()
        read = self._config.hook.pytest_report_from_serializable
        reports = [read(config=self._config, data=json.loads(line)) for line in lines]
        for report in reports:
            if isinstance(report.longrepr, list):
                report.longrepr = tuple(report.longrepr)  # of a skip; JSON has no tuples
        return reports

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        still = _failed_tests(terminalreporter)
        passed = {nodeid: reports for nodeid, reports in self._first.items() if nodeid not in still}
        if not passed:
            return
        terminalreporter.section("passed when run again")
        for nodeid, reports in passed.items():
            for report in reports:
                terminalreporter.write_sep("_", f"{nodeid} ({report.when})", yellow=True)
                terminalreporter.write_line(report.longreprtext)
        for nodeid in passed:
            terminalreporter.write_line(f"AGAIN {nodeid}", yellow=True)


def _forget(stats: dict[str, list[Any]], category: str, nodeid: str) -> None:
    kept = [report for report in stats.pop(category, []) if getattr(report, "nodeid", "") != nodeid]
    if kept:
        stats[category] = kept


def _is_whole(reports: list[pytest.TestReport] | None) -> bool:
    return bool(reports and reports[-1].when == "teardown")


def _failed_tests(terminal: Any) -> dict[str, list[Any]]:
    """Reports of failures by test; a module that could not be collected is none."""
    found: dict[str, list[Any]] = {}
    for report in [*terminal.stats.get("failed", []), *terminal.stats.get("error", [])]:
        if isinstance(report, pytest.TestReport):
            found.setdefault(report.nodeid, []).append(report)
    return found
