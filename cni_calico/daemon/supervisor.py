"""``calico-node run``: set the node up, then keep its processes running until told to stop.

Rule: a child that ends is started again, at once the first time, then with growing pauses; after it has run well for a
while the pauses are short again. SIGTERM is passed to every child, and everything ends in less than 5 s: what a child
has not finished by then, it would not finish later either. The data plane stays as it is.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from cni_calico.backoff import Backoff
from cni_calico.daemon.child_lines import ChildLines
from cni_calico.daemon.orphans import VARIABLE
from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import KernelError
from cni_calico.kernel.child import Child
from cni_calico.log import Log

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 60.0
STOP_S = 4.3  # the children drain for up to 4 s
_TICK_S = 0.25


@dataclass(slots=True)
class ChildService:
    """A process to keep running. ``once``: it has to succeed only once; services that name it in ``after`` wait for
    that. ``anyway`` returns whether they may start although it has failed. ``command``: of another program of ours.
    """

    name: str
    arguments: Sequence[str]
    command: Sequence[str] = ()
    once: bool = False
    after: str = ""
    anyway: Callable[[], bool] = lambda: False
    child: Child | None = None
    restarts: int = 0
    done: bool = False
    _pause_s: float = 0.0
    _pauses: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S))
    _not_before: float = 0.0
    _started: float = field(default=0.0)
    since_boot: float = 0.0  # when it was started, for other processes

    def due(self, now: float) -> bool:
        return self.child is None and not self.done and now >= self._not_before

    def started(self, child: Child, now: float) -> None:
        self.child, self._started = child, now
        self.since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)

    def ended(self, now: float) -> None:
        """Decide when it may start again."""
        steady = bool(self._started) and now - self._started >= STEADY_S
        if steady:
            self._pauses.reset()
        self._pause_s = self._pauses.next()
        self._not_before = now + self._pause_s
        if self.child is not None:
            self.child.close()
            self.child = None

    @property
    def pause_s(self) -> float:
        return self._pause_s


class Supervisor:
    """Runs services; ``command`` is this executable's own command, to which a service's arguments are added.

    ``publish`` is called with the services after each start and end of one, ``look_too`` four times a second.
    """

    def __init__(
        self,
        services: Sequence[ChildService],
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Log,
        publish: Callable[[Sequence[ChildService]], None] = lambda services: None,
        look_too: Callable[[], None] = lambda: None,
    ) -> None:
        self.services = list(services)
        self._command = list(command)
        self._environ = {**environ, VARIABLE: str(os.getpid())}
        self._log = log
        self._publish, self._look_too = publish, look_too
        self._stopping = Stopping()
        self._lines: ChildLines

    def run(self) -> int:
        """Run until a signal; returns the exit status."""
        self._stopping.on_signals(signal.SIGTERM, signal.SIGINT)
        self._lines = ChildLines(self._log)
        try:
            while not self._stopping.wait(_TICK_S):
                self.look()
                self._look_too()
        finally:
            self._end_all()
            self._lines.close()
        return 0

    def look(self) -> None:
        """Start the services that are due, and note those that have ended."""
        now = time.monotonic()
        for service in self.services:
            if service.child is not None and service.child.ended(0.0):
                self._notice(service, now)
            if service.due(now) and self._may_start(service):
                self._start(service, now)

    def _may_start(self, service: ChildService) -> bool:
        first = next((other for other in self.services if other.name == service.after), None)
        return first is None or first.done or (first.restarts > 0 and service.anyway())

    def _start(self, service: ChildService, now: float) -> None:
        try:
            child = Child.start(
                [*(service.command or self._command), *service.arguments], env=self._environ, output_fd=self._lines.fd
            )
        except KernelError as e:
            service.ended(now)
            self._log.error(f"{e}; next try in {service.pause_s:g} s")
            return
        service.started(child, now)
        self._log.info(f"started {service.name} (process {child.pid})")
        self._publish(self.services)

    def _notice(self, service: ChildService, now: float) -> None:
        assert service.child is not None
        code = service.child.rc or 0
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        if service.once and code == 0:
            service.done = True
            service.ended(now)
            return
        service.restarts += 1
        service.ended(now)
        self._publish(self.services)
        self._log.warning(f"{service.name} ended ({how}); it is started again in {service.pause_s:g} s")

    def _end_all(self) -> None:
        """Ask all to end at the same time, then wait; those that do not react are killed."""
        limit = time.monotonic() + STOP_S
        running = [service.child for service in self.services if service.child is not None]
        self._each(running, lambda child: child.send(signal.SIGTERM))
        for child in running:
            if not child.ended(max(0.0, limit - time.monotonic())):
                self._log.warning(f"{child.name} (process {child.pid}) did not end in time and is killed")
                self._each([child], lambda child: child.send(signal.SIGKILL))
                child.ended(0.5)
            child.close()

    def _each(self, children: Sequence[Child], do: Callable[[Child], None]) -> None:
        for child in children:
            try:
                do(child)
            except KernelError as e:
                self._log.error(str(e))


def own_command() -> list[str]:
    """The command that started this executable, without a flag."""
    return [sys.executable] if getattr(sys, "frozen", False) else [sys.executable, "-m", "cni_calico.nodeagent.main"]


def docker_command() -> list[str]:
    """The command of Docker's drivers, which are beside this executable."""
    if getattr(sys, "frozen", False):
        return [os.path.join(os.path.dirname(os.path.realpath(sys.executable)), "calico-docker")]
    return [sys.executable, "-m", "cni_calico.docker.main"]


def services_of_run(
    *, startup: bool, was_set_up: Callable[[], bool] = lambda: False, data_plane: bool = True, docker: bool = False
) -> list[ChildService]:
    """The processes of ``calico-node run``; the CNI server waits for none of the others.

    ``was_set_up``: whether start-up succeeded here before. If so, its failure is no reason to leave the node's
    workloads without an agent, or other nodes without routes to them. ``data_plane`` False: another agent maintains it.
    ``docker``: with Docker's drivers, which wait for none of the others either.
    """
    services = [ChildService("the CNI server", ["-cni-server"])]
    parts = ["-felix", "-confd", "-allocate-tunnel-addrs", "-monitor-addresses", "-monitor-token", "-complete-startup"]
    parts.append("-status-reporter")
    if not data_plane:
        parts.remove("-felix")
    if startup:
        # a node without a tunnel address (its pool is full) is still a node: the agent keeps trying
        first = ["-startup", "-allocate-tunnel-addrs-run-once", "-best-effort"]
        services.append(ChildService("start-up", first, once=True))
        services.append(ChildService("the agent", parts, after="start-up", anyway=was_set_up))
    else:
        services.append(ChildService("the agent", parts))
    if docker:
        services.append(ChildService("Docker's drivers", (), docker_command()))
    return services
