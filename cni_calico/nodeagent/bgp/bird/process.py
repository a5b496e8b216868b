"""The BIRD process: found, asked for its version, started, watched, restarted, ended.

Rule: only an unpatched BIRD from 2.0.12 on is used. One that outlived the agent is adopted, not replaced. It is
restarted with a back-off, and with graceful restart if the kernel may still hold routes of the previous one. One that
another service runs is only watched (adoption.py).
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Thread

from cni_calico.backoff import Backoff
from cni_calico.deadline import Deadline
from cni_calico.errors import BirdUnavailable, BirdUnsupported, CalicoError
from cni_calico.kernel.child import Child
from cni_calico.kernel.netlink.routes import decode_route, list_routes
from cni_calico.kernel.netlink.socket import Rtnl
from cni_calico.kernel.process import run
from cni_calico.log import SILENT, Log
from cni_calico.nodeagent.bgp.bird.adoption import AUTO, EXTERNAL, OWN, AdoptedBird, answers, find_adopted
from cni_calico.nodeagent.bgp.bird.control import BirdControl

BINARIES = ("/usr/sbin/bird", "/usr/local/sbin/bird", "/sbin/bird", "/usr/bin/bird")
OLDEST = (2, 0, 12)
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 30.0
STEADY_S = 60.0  # a BIRD that ran at least this long is restarted after a short pause
_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
_START_S, _STOP_S = 10.0, 3.0
_POLL_S = 0.02
RTPROT_BIRD = 12
_WATCH_S = 1.0


@dataclass(frozen=True, slots=True)
class BirdPaths:
    """``binary`` "": BIRD is searched for where distributions install it. ``service`` is AUTO, EXTERNAL or OWN;
    ``services`` the directory of runit's services, "" if there is none.
    """

    config_directory: str
    socket: str
    pid_file: str
    binary: str = ""
    service: str = AUTO
    services: str = ""

    @property
    def main(self) -> str:
        return f"{self.config_directory}/bird.cfg"


def parse_version(text: str) -> tuple[int, ...]:
    """(2, 0, 12) of "BIRD version 2.0.12"; () for anything else, such as upstream's "v0.3.3+birdv1.6.8"."""
    found = re.match(r"BIRD version (\d+(?:\.\d+)+)", text.strip())
    return tuple(map(int, found[1].split("."))) if found else ()


def find_binary(paths: BirdPaths) -> str:
    """Raises BirdUnsupported if there is none."""
    candidates = (paths.binary,) if paths.binary else BINARIES
    for path in candidates:
        if os.access(path, os.X_OK):
            return path
    raise BirdUnsupported(f"cannot find BIRD: none of {', '.join(candidates)} is there")


def require_version(binary: str, deadline: Deadline) -> tuple[int, ...]:
    """The binary's version. Raises BirdUnsupported if it is too old or not a BIRD."""
    done = run((binary, "--version"), env=_ENVIRONMENT, deadline=deadline)
    text = (done.stderr + done.stdout).decode("utf-8", "replace").strip()
    version = parse_version(text)
    if version < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise BirdUnsupported(f"cannot use {binary}: it says {text[:80]!r}, and {oldest} is the oldest that works")
    return version


def has_bird_routes(deadline: Deadline) -> bool:
    """Whether the kernel (of this thread's namespace) holds routes from a BIRD."""
    with Rtnl() as rtnl:
        return any(
            decode_route(payload).protocol == RTPROT_BIRD
            for version in (4, 6)
            for payload in rtnl.dump(list_routes(version), deadline)
        )


def check_files(binary: str, main: str, deadline: Deadline) -> str:
    """BIRD's complaint about a configuration, "" if it accepts it (``bird -p``)."""
    done = run((binary, "-p", "-c", main), env=_ENVIRONMENT, deadline=deadline)
    if done.rc == 0:
        return ""
    return (done.stderr or done.stdout).decode("utf-8", "replace").strip() or f"exit status {done.rc}"


class BirdProcess:
    """One BIRD and the thread that watches it. Call ``start`` and ``stop`` from one thread at a time."""

    def __init__(
        self,
        paths: BirdPaths,
        *,
        log: Log = SILENT,
        output_fd: int = 2,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.paths = paths
        self.adopted: AdoptedBird | None = None  # another service's
        self.fresh = False  # it was adopted, and not configured since
        self._changed = changed  # it is gone, or back
        self._had_service = False
        self.log = log
        self.output_fd = output_fd
        self.child: Child | None = None
        self.version: tuple[int, ...] = ()
        self.restarts = 0
        self.last_failure = ""
        self._lock = Lock()
        self._stopping = Event()
        self._watcher: Thread | None = None

    @property
    def running(self) -> bool:
        return self.child is not None or self.adopted is not None

    @property
    def main(self) -> str:
        """The configuration file that BIRD reads when it starts."""
        adopted = self.adopted
        return (adopted.config_file if adopted is not None else "") or self.paths.main

    @property
    def waits(self) -> bool:
        """Whether BIRD is for another service to start."""
        if self.paths.service in (EXTERNAL, OWN):
            return self.paths.service == EXTERNAL
        script = f"{self.paths.services}/bird/run" if self.paths.services else ""
        return self._had_service or (bool(script) and os.access(script, os.X_OK))

    def adopt(self) -> bool:
        """Adopt a BIRD that an earlier agent started, or that another service runs; returns whether there is one.
        Raises BirdUnsupported.
        """
        if self.running:
            return True
        if self._adopt_ours():
            return True
        found = find_adopted(self.paths.socket, OLDEST)
        if found is None:
            return False
        self.adopted, self.fresh, self._had_service = found, True, True
        self.log.info(f"using {found}; its configuration is {self.main}")
        self._stopping.clear()
        self._watcher = Thread(target=self._watch_service, args=(found,), name="bird", daemon=True)
        self._watcher.start()
        return True

    def _adopt_ours(self) -> bool:
        try:
            with open(self.paths.pid_file, encoding="ascii") as f:
                pid = int(f.read())
        except (OSError, ValueError):
            return False
        child = Child.adopt("bird", pid, argument=self.paths.socket)
        if child is None:
            return False
        self.log.info(f"BIRD is running already (process {pid})")
        self._watch(child)
        return True

    def start(self, deadline: Deadline, *, graceful: bool) -> None:
        """Start BIRD and wait until it answers; does nothing if it runs.

        ``graceful``: keep an earlier BIRD's routes in the kernel until the peers have announced theirs again. Raises
        BirdUnsupported, BirdUnavailable (also if it is another service's to start), KernelError, DeadlineExceeded.
        """
        if self.adopt():
            return
        if self.waits:
            raise BirdUnavailable(
                f"cannot reach BIRD at {self.paths.socket}: another service runs it, and it is not there",
                details="start that service; with CALICO_BIRD_SERVICE=own calico-node starts a BIRD of its own",
            )
        binary = find_binary(self.paths)
        self.version = require_version(binary, deadline)
        self._watch(self._launch(binary, deadline, graceful=graceful))

    def _launch(self, binary: str, deadline: Deadline, *, graceful: bool) -> Child:
        arguments = [binary, "-f", "-c", self.paths.main, "-s", self.paths.socket, "-P", self.paths.pid_file]
        child = Child.start([*arguments, "-R"] if graceful else arguments, env=_ENVIRONMENT, output_fd=self.output_fd)
        try:
            self._await_answer(child, deadline.sooner(_START_S))
        except BaseException:
            child.stop(0.0)
            child.close()
            raise
        self.log.info(f"BIRD started (process {child.pid}{', graceful restart' if graceful else ''})")
        return child

    def _await_answer(self, child: Child, deadline: Deadline) -> None:
        while True:
            if child.ended(_POLL_S):
                raise BirdUnavailable(f"cannot start BIRD: it ended at once with status {child.rc}")
            try:
                with BirdControl(self.paths.socket, deadline):
                    return
            except BirdUnavailable:
                if deadline.expired():
                    raise

    # -- watching -----------------------------------------------------------------------------------------------------

    def _watch(self, child: Child) -> None:
        with self._lock:
            self.child = child
        self._stopping.clear()
        self._watcher = Thread(target=self._supervise, name="bird", daemon=True)
        self._watcher.start()

    def _supervise(self) -> None:
        """Restart BIRD whenever it ends, until ``stop``."""
        backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_MAX_S)
        while not self._stopping.is_set():
            started = Deadline.after(STEADY_S)
            child = self.child
            while child is not None and not child.ended(_WATCH_S):
                pass
            if self._stopping.is_set():
                return
            if child is not None:
                self.last_failure = f"BIRD (process {child.pid}) ended with status {child.rc}"
                self.log.warning(f"{self.last_failure}; it is started again")
            if started.expired():
                backoff.reset()
            if self._stopping.wait(backoff.next()) or self.adopted is not None:
                return
            self._restart()

    def _watch_service(self, service: AdoptedBird) -> None:
        """Tell when another service's BIRD is gone, and when there is one again, until ``stop``."""
        while not self._stopping.is_set():
            if service.ended(_WATCH_S) if service.child is not None else self._lost(service):
                break
        if self._stopping.is_set():
            return
        with self._lock:
            self._forget()
        waits = "calico-node waits for it" if self.waits else "calico-node starts a BIRD of its own"
        self.last_failure = f"{service} is gone"
        self.log.warning(f"{self.last_failure}: {waits}")
        self._changed()
        while self.waits and not self.running and not self._stopping.wait(_WATCH_S):
            if answers(self.paths.socket):
                self._changed()
                return

    def _lost(self, service: AdoptedBird) -> bool:
        """Whether the BIRD is gone whose process cannot be seen: its socket is silent, twice."""
        return not self._stopping.wait(_WATCH_S) and service.ended(0.0) and service.ended(0.0)

    def _restart(self) -> None:
        try:
            replacement = self._launch(find_binary(self.paths), Deadline.after(_START_S), graceful=True)
        except CalicoError as e:
            self.last_failure = str(e)
            self.log.error(str(e))
            with self._lock:
                self._forget()
            return
        with self._lock:
            self._forget()
            self.child = replacement
            self.restarts += 1

    def _forget(self) -> None:
        if self.child is not None:
            self.child.close()
            self.child = None
        if self.adopted is not None:
            self.adopted.close()
            self.adopted = None

    # -- ending -------------------------------------------------------------------------------------------------------

    def stop(self, command: str | Callable[[BirdControl, Deadline], None] = "graceful restart") -> None:
        """End BIRD and its watcher; does nothing if it does not run. Another service's is only not watched any more.

        With "graceful restart" the kernel keeps its routes and peers keep ours, as for a restart; with "down" the
        sessions are closed. If BIRD does not react it is killed, which peers also take for a restart.
        """
        self._stopping.set()
        child = self.child
        if child is not None:
            if not child.ended(0.0):
                self._ask_to_end(command)
            if not child.ended(_STOP_S):
                child.send(signal.SIGKILL)
                child.ended(_STOP_S)
        if self._watcher is not None:
            self._watcher.join()
            self._watcher = None
        with self._lock:
            self._forget()

    def _ask_to_end(self, command: str | Callable[[BirdControl, Deadline], None]) -> None:
        deadline = Deadline.after(_STOP_S)
        try:
            with BirdControl(self.paths.socket, deadline) as control:
                if isinstance(command, str):
                    control.tell(command, deadline)
                else:
                    command(control, deadline)
        except CalicoError as e:
            self.log.warning(f"BIRD does not end when asked: {e}")
