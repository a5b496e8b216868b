"""``calico-node sv``: runit's commands for the processes of ``calico-node run``, which upstream's image runs with
runit.

    sv status|restart|hup|up|start [/etc/service/enabled/]felix|confd|bird|...

Rule: upstream's services of the agent are one process here, so restarting one restarts all of them; pods keep their
network. Nothing can be switched off this way: the supervisor keeps its processes running.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cni_calico import directories
from cni_calico.daemon.supervisor import ChildService
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import CalicoError
from cni_calico.nodeagent.flags import UsageError
from cni_calico.nodeagent.status.file import since_boot
from cni_calico.regular import make_directories

FILE = "services.json"
AGENT, BIRD, CNI = "the agent", "BIRD", "the CNI server"
AGENTS = (
    "felix",
    "confd",
    "allocate-tunnel-addrs",
    "monitor-addresses",
    "monitor-token",
    "node-status-reporter",
    "node-services",
)
SERVICES = {**dict.fromkeys(AGENTS, AGENT), "bird": BIRD, "bird6": BIRD, "cni": CNI}
WAIT_S = 7.0  # other commands of sv
_LOOK_S = 0.1
_STARTED_S = 5.0  # between the start of a process and when that was noted
_USAGE = "usage: sv status|restart|hup|up|start SERVICE..., SERVICE being one of " + ", ".join(SERVICES)
_COMMANDS = {"s": "status", "t": "restart", "term": "restart", "h": "hup", "reload": "hup", "u": "up", "start": "up"}


@dataclass(frozen=True, slots=True)
class RunningService:
    """``since`` is in seconds since boot."""

    pid: int
    since: float


def write_services(run_dir: str, services: Sequence[ChildService]) -> None:
    """Write what the supervisor runs, for ``control`` in another process. Raises KernelError."""
    running = {s.name: {"pid": s.child.pid, "since": s.since_boot} for s in services if s.child is not None}
    target = f"{run_dir}/{FILE}"
    with Doing(f"write {target}"):
        make_directories(run_dir, 0o755)
        with open(f"{target}.{os.getpid()}", "w") as file:
            json.dump(running, file)
        os.rename(file.name, target)


def control(arguments: Sequence[str], environ: Mapping[str, str], say: Callable[[str], object]) -> int:
    """``sv`` with these arguments; the exit status, as in sv, is the number of services for which it failed.

    Each service's line is passed to ``say`` as soon as it is known. Raises UsageError.
    """
    words = [argument for argument in arguments if not argument.startswith("-")]
    command = _COMMANDS.get(words[0], words[0]) if words else ""
    if len(words) < 2 or command not in ("status", "restart", "hup", "up"):
        raise UsageError(_USAGE)
    run_dir = directories.run_dir(environ)
    failed = 0
    for path in words[1:]:
        name = path.rstrip("/").rpartition("/")[2]
        try:
            text = f"{'ok: ' if command != 'status' else ''}{_do(command, name, run_dir)}"
        except (CalicoError, OSError, ValueError) as e:
            failed += 1
            text = f"fail: {path}: {e}"
        say(f"{text}\n")
    return failed


def _do(command: str, name: str, run_dir: str) -> str:
    """The state of the service afterwards. Raises ValueError, OSError, CalicoError."""
    if name not in SERVICES:
        raise ValueError("unable to change to service directory: file does not exist")
    before = _find(name, run_dir)
    if command in ("status", "up"):
        return _describe(name, before)
    if command == "hup" and (SERVICES[name] == BIRD or name == "confd"):
        from cni_calico.nodeagent.bgp.bird.control import BirdControl

        deadline = Deadline.after(WAIT_S)
        with BirdControl(f"{run_dir}/{directories.BIRD_SOCKET}", deadline) as bird:
            bird.tell("configure", deadline)
        return _describe(name, before)
    if before is None:
        raise ValueError("it does not run")
    os.kill(before.pid, signal.SIGTERM)
    limit = time.monotonic() + WAIT_S
    while (after := _find(name, run_dir)) is None or after.pid == before.pid:
        if time.monotonic() > limit:
            raise ValueError("timeout: it has not come back yet")
        time.sleep(_LOOK_S)
    return _describe(name, after)


def _describe(name: str, found: RunningService | None) -> str:
    if found is None:
        return f"down: /etc/service/enabled/{name}: 0s, normally up, want up"
    return f"run: /etc/service/enabled/{name}: (pid {found.pid}) {max(0, round(since_boot() - found.since))}s"


def _find(name: str, run_dir: str) -> RunningService | None:
    """The living process of a service."""
    process = SERVICES[name]
    try:
        if process == BIRD:
            return _find_bird(run_dir)
        with open(f"{run_dir}/{FILE}") as file:
            entry: Any = json.load(file)[process]
        pid, since = int(entry["pid"]), float(entry["since"])
        if not since - _STARTED_S <= _started_at(pid) <= since + _STARTED_S:
            return None  # the number is another process's now
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return RunningService(pid, since)


def _find_bird(run_dir: str) -> RunningService | None:
    """Ours, or the one that another service runs: what a crash left in the file may be another process's number.
    Raises OSError, ValueError.
    """
    from cni_calico.nodeagent.bgp.bird.adoption import is_bird, process_at

    path = f"{run_dir}/{directories.BIRD_PID}"
    if os.path.exists(path):
        with open(path) as file:
            pid = int(file.read())
        if is_bird(_words(pid)):
            return RunningService(pid, _started_at(pid))

    pid = process_at(f"{run_dir}/{directories.BIRD_SOCKET}")
    if not pid:
        return None
    return RunningService(pid, _started_at(pid))


def _started_at(pid: int) -> float:
    """In seconds since boot. Raises OSError."""
    with open(f"/proc/{pid}/stat") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19])
    return ticks / os.sysconf("SC_CLK_TCK")


def _words(pid: int) -> list[bytes]:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1]
    except OSError:
        return []
