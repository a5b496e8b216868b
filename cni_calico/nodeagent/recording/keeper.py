"""Keeps the recorder of flows running while flows are to be recorded, and tells it who has which address.

Rule: the recorder is a process of its own, so that neither its work nor its end touches the agent. Nothing is started,
and no file written, before flows are to be recorded for the first time. What it has to know is written to a file: it
may be stopped, or begun again, at any time. It gets no more memory than it can need: what goes wrong there must not
take the node's.
"""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

from cni_calico.backoff import Backoff
from cni_calico.daemon.child_lines import ChildLines
from cni_calico.daemon.orphans import VARIABLE
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
from cni_calico.nodeagent.context.recording import DISABLED
from cni_calico.nodeagent.recording.rules import RulesTeller
from cni_calico.nodeagent.recording.staging import StagedFollower

FLAG = "-flow-recorder"
_NAMES, _PROCESS = "names of flows", "the flow recorder"
_FIRST_PAUSE_S, _LONGEST_PAUSE_S, _STEADY_S, _LOOK_S, _GRACE_S = 0.5, 30.0, 60.0, 0.25, 2.0
_RUNS_S = 2.0  # one that ends at once does not run
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
        stopping: threading.Event,
        tell: Callable[[str, str], object] = lambda part, why: None,
        rules: RulesTeller | None = None,
        staged: StagedFollower | None = None,
    ) -> None:
        """``tell`` is called with a part and what is wrong with it, "" for nothing. ``rules`` tells the recorder which
        are in force, ``staged`` follows the staged policies for it.
        """
        self._staged = staged
        self._rules = rules or RulesTeller(lambda: None)
        self._node, self._run_dir, self._path, self._log = node, run_dir, f"{run_dir}/{ENDS}", log
        self._command, self._environ = list(command), {**environ, VARIABLE: str(os.getpid())}
        self._start_thread, self._stopping, self._tell_trouble = start_thread, stopping, tell
        self._wanted = threading.Event()
        self._runs, self._flows, self._limits = False, "", USUAL_LIMITS
        self._written = b""
        self.troubles: dict[str, str] = {}

    def use(
        self,
        flows: str,
        endpoints: Iterable[WorkloadEndpoint],
        kept_s: float = SUMS_KEPT_S,
        hosts: HostParameters | None = None,
        limits: FlowLimits = USUAL_LIMITS,
    ) -> None:
        """``flows``: the parameter; ``endpoints``: this node's; ``kept_s``: how long sums are; ``hosts``: what
        counts at host endpoints; ``limits``: how much is recorded.
        """
        if self._staged is not None:
            self._staged.use(wanted=flows != DISABLED)
        if flows == DISABLED:
            self._wanted.clear()
            self._note_none()
            return
        self._tell(endpoints, kept_s, hosts, limits)
        self._flows, self._limits = flows, limits
        self._wanted.set()
        if not self._runs:
            self._runs = True
            self._start_thread(self._run)

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
                if not self._wanted.is_set():
                    self._note_none()
                    self._stopping.wait(_LOOK_S)
                    continue
                flows = self._flows
                lasted = self._run_once(lines.fd, flows)
                if not self._is_wanted(flows):
                    continue
                if lasted:
                    pauses.reset()
                pause_s = pauses.next()
                self._note(_PROCESS, "flows are not recorded: the recorder ended, its log says why")
                self._log.warning(f"the flow recorder is started again in {pause_s:g} s")
                self._stopping.wait(pause_s)
        finally:
            lines.close()

    def _is_wanted(self, flows: str) -> bool:
        """One that records what ``flows`` says."""
        return self._wanted.is_set() and self._flows == flows and not self._stopping.is_set()

    def _run_once(self, output_fd: int, flows: str) -> bool:
        """Until it ends, or is not wanted any more; returns whether it ran for a while."""
        pair = read_pair(self._run_dir)
        try:
            with self._rules.attach() as theirs:
                fds = {"output_fd": output_fd, "input_fd": theirs.fileno()}
                child = Child.start([*self._command, FLAG], env={**self._environ, WHAT: flows}, **fds)
        except (KernelError, OSError) as e:
            self._rules.detach()
            self._log.error(str(e))
            return False
        self._log.info(f"started the flow recorder (process {child.pid})")
        ran_s, limits = 0.0, None
        try:
            while not child.ended(_LOOK_S):
                ran_s += _LOOK_S
                if ran_s == _RUNS_S:
                    self._note(_PROCESS, "")
                self._rules.go_on()
                pair = self._follow(pair)
                if limits != self._limits:
                    limits = self._limits
                    self._bound(child.pid, most_bytes(limits))
                if not self._is_wanted(flows):
                    child.stop(_GRACE_S)
                    break
        finally:
            child.close()
            self._rules.detach()
        return ran_s >= _STEADY_S

    def _bound(self, pid: int, size: int) -> None:
        """What it asks for beyond that fails, and then it ends, and is started again."""
        try:
            _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
            allowed = size if most == resource.RLIM_INFINITY else min(size, most)
            resource.prlimit(pid, resource.RLIMIT_DATA, (allowed, most))
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
