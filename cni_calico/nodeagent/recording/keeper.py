"""Keeps the recorder of flows running while flows are to be recorded, and tells it who has which address.

Rule: the recorder is a process of its own, so that neither its work nor its end touches the agent. Nothing is started,
and no file written, before flows are to be recorded for the first time, and rules are in force: it delays none of them.
What it has to know is written to a file: it may be stopped, or begun again, at any time. It gets no more memory than it
can need, and is the first to go where the node has too little. While it runs, and nothing changes, the agent sleeps.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from select import POLLIN, poll
from threading import Lock

from cni_calico.backoff import Backoff
from cni_calico.daemon.child_lines import ChildLines
from cni_calico.daemon.orphans import VARIABLE
from cni_calico.daemon.stopping import Stopping
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import KernelError
from cni_calico.flows.groups import WHAT, groups_of, read_pair
from cni_calico.flows.host_parameters import HostParameters
from cni_calico.flows.limits import USUAL_LIMITS, FlowLimits
from cni_calico.flows.names import ENDS, SUMS_KEPT_S, AddressedEnd, EndName, render_ends
from cni_calico.kernel.child import Child
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.identity import container_name
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.nodeagent.context.recording import DISABLED, WantedRecording
from cni_calico.nodeagent.recording.rules import RulesTeller
from cni_calico.nodeagent.recording.staging import StagedFollower

KnownToRecorder = tuple[Iterable[WorkloadEndpoint], float, HostParameters | None, FlowLimits]
"""This node's endpoints, how long sums are kept, what counts at host endpoints, how much is recorded."""

FLAG = "-flow-recorder"
_NAMES, _PROCESS = "names of flows", "the flow recorder"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S, _LOOK_S, _GRACE_S = 0.5, 30.0, 60.0, 0.25, 2.0
_RUNS_S = 2.0  # one that ends at once does not run
_REST_S = 60.0  # nothing has to be looked at sooner that nobody tells of
_FIRST_TO_GO = b"900"  # of 1000: when memory has run out, before the agent and what the node is for
_NOTHING_KNOWN: KnownToRecorder = ((), SUMS_KEPT_S, None, USUAL_LIMITS)
_BYTES, _CONNECTION_BYTES = 1 << 30, 1 << 10  # at most: of all else, several times what was ever seen; and of each


def most_bytes(limits: FlowLimits) -> int:
    """Of memory of its own (RLIMIT_DATA) that the recorder may have; the ring, a file, is not of it."""
    return _BYTES + _CONNECTION_BYTES * limits.live


def name_of(endpoint: WorkloadEndpoint) -> EndName:
    """A pod by its name; a container by the name that people gave it, if that is known."""
    metadata = endpoint.metadata
    if endpoint.pod:
        return EndName("pod", metadata.namespace, endpoint.pod)
    return EndName("workload", metadata.namespace, container_name(endpoint) or endpoint.workload or metadata.name)


class RecorderKeeper:
    """``use`` in one thread. ``command``: this executable's own, to which the flag is added; ``start_thread`` runs its
    argument in a thread of its own until ``stopping``.
    """

    def __init__(
        self,
        node: str,
        run_dir: str,
        log: Log,
        command: Sequence[str],
        environ: Mapping[str, str],
        start_thread: Callable[[Callable[[], None]], object],
        stopping: Stopping,
        tell: Callable[[str, str], object] = lambda part, why: None,
        rules: RulesTeller | None = None,
        staged: StagedFollower | None = None,
        may_begin: Callable[[WantedRecording], bool] = lambda wanted: True,
    ) -> None:
        """``tell`` is called with a part and what is wrong with it, "" for nothing. ``rules`` tells the recorder which
        are in force, ``staged`` follows the staged policies for it. ``may_begin`` is asked before the first one is
        started, in its thread, and again whenever there is something to hear (``heard``).
        """
        self._may_begin = may_begin
        self._staged = staged
        self._rules = rules or RulesTeller(lambda: None)
        self._node, self._run_dir, self._path, self._log = node, run_dir, f"{run_dir}/{ENDS}", log
        self._command, self._environ = list(command), {**environ, VARIABLE: str(os.getpid())}
        self._start_thread, self._stopping, self._tell_trouble = start_thread, stopping, tell
        self._wanted, self._limits = WantedRecording(DISABLED), USUAL_LIMITS
        self._woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._runs = self._begun = False
        self._telling, self._known = Lock(), _NOTHING_KNOWN
        self._written = b""
        self.troubles: dict[str, str] = {}

    def use(
        self,
        wanted: WantedRecording,
        endpoints: Iterable[WorkloadEndpoint],
        kept_s: float = SUMS_KEPT_S,
        hosts: HostParameters | None = None,
        limits: FlowLimits = USUAL_LIMITS,
    ) -> None:
        """``endpoints``: this node's; ``kept_s``: how long sums are; ``hosts``: what counts at host endpoints;
        ``limits``: how much is recorded.
        """
        records = wanted.flows != DISABLED
        if self._staged is not None:
            self._staged.use(wanted=records and wanted.judges)
        changed = (wanted, limits) != (self._wanted, self._limits)
        self._wanted, self._limits = wanted, limits
        if not records:
            self._note_none()
        else:
            with self._telling:
                self._known = endpoints, kept_s, hosts if wanted.judges else None, limits
                if self._begun:
                    self._tell(*self._known)
            self._begin(wanted)
            if not self._runs:
                self._runs = True
                self._start_thread(self._run)
        if changed:
            self.wake()

    def wake(self) -> None:
        """From any thread: what ``may_begin`` says may be something else."""
        os.eventfd_write(self._woken, 1)

    def heard(self) -> None:
        """As ``wake``, as long as it is asked for."""
        if not self._begun:
            self.wake()

    def _begin(self, wanted: WantedRecording) -> bool:
        """Whether a recorder may be started; it has been told what it has to know then."""
        with self._telling:
            if not self._begun and self._may_begin(wanted):
                self._begun = True
                self._tell(*self._known)
            return self._begun

    def _tell(
        self, endpoints: Iterable[WorkloadEndpoint], kept_s: float, hosts: HostParameters | None, limits: FlowLimits
    ) -> None:
        ends = [
            AddressedEnd(name_of(one), [net.network_address.packed for net in one.ip_networks], one.metadata.labels)
            for one in endpoints
        ]
        ordered = sorted(ends, key=lambda one: (one.name.shown, one.addresses))
        data = render_ends(self._node, ordered, kept_s, hosts, limits)
        if data == self._written:
            return
        try:
            Files().write_atomic(self._path, data, 0o600, durable=False)
            self._written = data
            self._note(_NAMES, "")
        except OSError as e:
            self._note(_NAMES, f"flows have no names of pods: cannot write {self._path}: {e.strerror}")

    def _note(self, part: str, trouble: str) -> None:
        if trouble and trouble != self.troubles.get(part):
            self._log.warning(trouble)
        self.troubles[part] = trouble
        self._tell_trouble(part, trouble)

    def _note_none(self) -> None:
        """What is not wanted has no troubles."""
        for part, trouble in tuple(self.troubles.items()):
            if trouble:
                self._note(part, "")

    # -- the process --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        lines, pauses = ChildLines(self._log), Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        try:
            while not self._stopping.is_set():
                wanted = self._wanted
                if wanted.flows == DISABLED:
                    self._note_none()
                    with suppress(OSError):  # one that was killed has left it
                        os.unlink(f"{self._run_dir}/{FLOW_SOCKET}")
                if wanted.flows == DISABLED or not self._begin(wanted):
                    self._sleep(_REST_S)
                    continue
                lasted = self._run_once(lines.fd, wanted)
                if not self._is_wanted(wanted):
                    continue
                if lasted:
                    pauses.reset()
                pause_s = pauses.next()
                self._note(_PROCESS, "flows are not recorded: the recorder ended, its log says why")
                self._log.warning(f"the flow recorder is started again in {pause_s:g} s")
                self._stopping.wait(pause_s)
        finally:
            lines.close()

    def _is_wanted(self, wanted: WantedRecording) -> bool:
        """One that does that."""
        return self._wanted == wanted and not self._stopping.is_set()

    def _sleep(self, seconds: float, child: Child | None = None) -> None:
        """At most so long, until something else is wanted, or the child has ended."""
        waiting = poll()
        for fd in (self._stopping.fileno(), self._woken, -1 if child is None else child.pidfd):
            if fd >= 0:
                waiting.register(fd, POLLIN)
        waiting.poll(seconds * 1000)
        with suppress(BlockingIOError):
            os.eventfd_read(self._woken)

    def _run_once(self, output_fd: int, wanted: WantedRecording) -> bool:
        """Until it ends, or is not wanted any more; returns whether it ran for a while."""
        pair = read_pair(self._run_dir)
        try:
            child = self._start(output_fd, wanted)
        except (KernelError, OSError) as e:
            self._rules.detach()
            self._log.error(str(e))
            return False
        self._log.info(f"started the flow recorder (process {child.pid})")
        began, limits = time.monotonic(), None
        try:
            while True:
                ran_s = time.monotonic() - began
                self._sleep(_REST_S if ran_s >= _STEADY_S and not wanted.judges else _LOOK_S, child)
                if child.ended(0):
                    break
                if ran_s >= _RUNS_S:
                    self._note(_PROCESS, "")
                self._rules.go_on()
                pair = self._follow(pair)
                if limits != self._limits:
                    limits = self._limits
                    self._bound(child.pid, most_bytes(limits))
                if not self._is_wanted(wanted):
                    child.stop(_GRACE_S)
                    break
        finally:
            child.close()
            self._rules.detach()
        return time.monotonic() - began >= _STEADY_S

    def _start(self, output_fd: int, wanted: WantedRecording) -> Child:
        """Raises KernelError, OSError."""
        command, environ = [*self._command, FLAG], {**self._environ, WHAT: wanted.flows}
        if not wanted.judges:
            return Child.start(command, env=environ, output_fd=output_fd)
        with self._rules.attach() as theirs:
            return Child.start(command, env=environ, output_fd=output_fd, input_fd=theirs.fileno())

    def _bound(self, pid: int, size: int) -> None:
        """What it asks for beyond that fails, and then it ends, and is started again."""
        try:
            _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
            allowed = size if most == resource.RLIM_INFINITY else min(size, most)
            resource.prlimit(pid, resource.RLIMIT_DATA, (allowed, most))
            with open(f"/proc/{pid}/oom_score_adj", "wb") as file:
                file.write(_FIRST_TO_GO)
        except ProcessLookupError:
            pass  # it has ended
        except OSError as e:
            self._log.warning(f"the flow recorder's memory is not limited: {e.strerror}")

    def _follow(self, before: int) -> int:
        """The pair of groups that the recorder listens to; the engine is told of another one."""
        pair = read_pair(self._run_dir)
        if pair != before:
            taken, used = (" and ".join(map(str, groups_of(one))) for one in (before, pair))
            self._log.warning(f"another program listens to groups {taken}, or one of them: rules report to {used}")
            self._rules.wake()
        return pair
