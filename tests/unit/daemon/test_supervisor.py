"""The supervisor: order, restarts with growing pauses, an end within 5 s."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cni_calico.daemon.supervisor import LONGEST_PAUSE_S, ChildService, services_of_run
from tests.deadlines import until

PROGRAM = """
import os, sys
from cni_calico.log import Log
from cni_calico.daemon.supervisor import ChildService, Supervisor
services = [
    ChildService(
        name, ["-c", script], once=once, after=after, anyway=lambda paths=paths: any(map(os.path.exists, paths))
    )
    for name, script, once, after, *paths in {services!r}
]
sys.exit(Supervisor(services, ["/bin/sh"], os.environ, Log("info")).run())
"""
LONG = "trap 'echo {0} stopped >> {1}; exit 0' TERM; echo {0} $$ >> {1}; while :; do sleep 0.1; done"


class Running:
    def __init__(self, *services):
        program = PROGRAM.format(services=list(services))
        self.process = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)

    def stop(self):
        """(exit status, seconds, what was logged)"""
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=20)
        return self.process.returncode, time.monotonic() - begun, log


@pytest.fixture
def start_supervisor():
    started = []

    def run(*services):
        started.append(Running(*services))
        return started[-1]

    yield run
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def lines(path: Path):
    return path.read_text().splitlines() if path.exists() else []


def test_what_comes_after_waits_for_a_success(start_supervisor, tmp_path):
    notes, gate = tmp_path / "notes", tmp_path / "gate"
    once = f"echo try >> {notes}; test -e {gate}"
    running = start_supervisor(("first", once, True, ""), ("second", LONG.format("second", notes), False, "first"))
    until(lambda: len(lines(notes)) >= 2, "tried again")
    assert set(lines(notes)) == {"try"}
    gate.touch()
    until(lambda: any(line.startswith("second") for line in lines(notes)), "the second starts")
    code, seconds, _ = running.stop()
    assert code == 0 and seconds < 5
    assert lines(notes)[-1] == "second stopped"


def test_what_need_not_wait_starts_once_the_first_has_failed(start_supervisor, tmp_path):
    notes, known, gate = tmp_path / "notes", tmp_path / "known", tmp_path / "gate"
    known.touch()
    once = f"while ! test -e {gate}; do sleep 0.05; done; echo failed >> {notes}; exit 1"
    running = start_supervisor(
        ("first", once, True, ""), ("second", LONG.format("second", notes), False, "first", str(known))
    )
    until(lambda: running.process.poll() is None, "it runs")
    gate.touch()
    until(lambda: any(line.startswith("second") for line in lines(notes)), "the second starts")
    assert lines(notes)[0] == "failed"
    assert running.stop()[0] == 0


def test_a_child_that_ends_is_started_again(start_supervisor, tmp_path):
    notes = tmp_path / "notes"
    running = start_supervisor(("one", LONG.format("one", notes), False, ""))
    until(lambda: lines(notes), "it starts")
    os.kill(int(lines(notes)[0].split()[1]), signal.SIGKILL)
    until(lambda: len(lines(notes)) >= 2, "it starts again")
    code, _, log = running.stop()
    assert code == 0
    assert "one ended (signal 9); it is started again in 0.5 s" in log


def test_a_child_that_does_not_listen_is_killed(start_supervisor, tmp_path):
    notes = tmp_path / "notes"
    running = start_supervisor(
        ("deaf", f"trap '' TERM; echo deaf $$ >> {notes}; while :; do sleep 0.1; done", False, "")
    )
    until(lambda: lines(notes), "it starts")
    pid = int(lines(notes)[0].split()[1])
    code, seconds, _ = running.stop()
    assert code == 0 and seconds < 5
    assert not Path(f"/proc/{pid}").exists()


def test_what_cannot_be_started_is_tried_again(start_supervisor, tmp_path):
    running = start_supervisor(("gone", "exit 3", False, ""))
    log = ""
    until(lambda: running.process.poll() is None, "it runs")
    assert running.process.stderr is not None
    while "in 1 s" not in log:
        log += running.process.stderr.readline()
    assert "gone ended (exit status 3); it is started again in 0.5 s" in log


def test_pauses_grow_and_a_good_run_resets_them():
    service, pauses, now = ChildService("s", []), [], 1000.0
    for _ in range(8):
        service._started = now
        service.ended(now)
        pauses.append(service.pause_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S]
    service._started = now
    service.ended(now + 61)
    assert service.pause_s == 0.5
    assert not service.due(now + 61.4) and service.due(now + 61.6)


def test_the_services_of_run():
    cni, first, agent = services_of_run(startup=True)
    assert (cni.after, first.once, agent.after) == ("", True, first.name)
    assert not agent.anyway()
    assert services_of_run(startup=True, was_set_up=lambda: True)[2].anyway()
    assert [service.after for service in services_of_run(startup=False)] == ["", ""]
    (*_, docker) = services_of_run(startup=True, docker=True)
    assert list(docker.command)[-1] == "cni_calico.docker.main" and not docker.after
    without = services_of_run(startup=True, data_plane=False)[2]
    assert set(agent.arguments) - set(without.arguments) == {"-felix"}
