"""The agent's loop: after every event it computes what must exist, and makes it so.

Rule: level-triggered. A change in the datastore or a notification of the kernel only says that something has changed,
not what; a full resync comes every 90 seconds in any case. Until every listing has been read once nothing is changed,
and losing the datastore later leaves the data plane as it is.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cni_calico.daemon.doorbell import hang_bell
from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.directories import FORWARD_BELL
from cni_calico.errors import CalicoError
from cni_calico.kernel import memory
from cni_calico.kernel.host_routes import read_host_routes
from cni_calico.kernel.interfaces import read_interfaces
from cni_calico.kernel.monitor import RULES, Monitor
from cni_calico.kernel.tunnels import read_tunnels
from cni_calico.log import LEVELS, Log
from cni_calico.model.access import describe_config
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.bgp.facts import BIRD_MAKES_ROUTES
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.configurations import Scoped
from cni_calico.nodeagent.context.felix import FelixSettings, Parameters
from cni_calico.nodeagent.context.felix_parser import FelixParser
from cni_calico.nodeagent.dataplane.changed_limits import ChangedLimits
from cni_calico.nodeagent.dataplane.desired import (
    Desired,
    desired_state,
    with_routes_in_doubt,
    with_staying_routes,
)
from cni_calico.nodeagent.dataplane.encryption.families import GUARDS, is_enabled
from cni_calico.nodeagent.dataplane.floating import TABLE as FLOATING
from cni_calico.nodeagent.dataplane.held_devices import HeldDevices
from cni_calico.nodeagent.dataplane.later import PartsLater
from cni_calico.nodeagent.dataplane.masquerade_rules import TABLE
from cni_calico.nodeagent.dataplane.moving import Moving
from cni_calico.nodeagent.dataplane.needs import select_unmet
from cni_calico.nodeagent.dataplane.parts.tunnels import DEVICES
from cni_calico.nodeagent.dataplane.pass_schedule import PassSchedule
from cni_calico.nodeagent.dataplane.passes import Pass
from cni_calico.nodeagent.dataplane.routes import decide_writer, makes_routes
from cni_calico.nodeagent.dataplane.switching import Switching
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.numbers import Numbers
from cni_calico.nodeagent.status.policing import Standing
from cni_calico.nodeagent.view.last_valid import VIEW_FILE, LastValid
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.nodeagent.view.sources import FelixParts, FelixSpec, Sources

PASS_S = 60.0
FIRST_PASS_S = 0.5  # so long it waits for the first decision about policies, which needs the interpreter
GROWN_BYTES = 512 << 10  # giving back takes a millisecond, and a full pass comes every 90 s


@dataclass(slots=True)
class _EngineView:
    """What the policy engine says now. ``used``: what the last pass used of it."""

    standing: Callable[[], Standing]
    stalled_s: Callable[[], float]
    policies: Callable[[], int]
    of_kubernetes: tuple[int, int] = 0, 0  # Kubernetes' own policies, and of them those not read
    used: Standing | None = None


class DataplaneLoop:
    """One data plane, in the network namespace of the thread that calls ``run``.

    ``on_snapshot`` is called with every snapshot (BIRD and the tunnel addresses use it); it must not block.
    ``policies``: how many there are, without those that are only Kubernetes'. ``on_tunnels`` is called as soon as
    ``tunnels`` is known, and before each pass: policy waits for no more than that.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        environ: Mapping[str, str],
        numbers: Numbers,
        *,
        on_snapshot: Callable[[Snapshot, FelixSettings], None] = lambda snapshot, felix: None,
        on_tunnels: Callable[[Snapshot, FelixSettings], None] = lambda snapshot, felix: None,
        policing: Callable[[], Standing] = lambda: Standing(
            decided=True, ready=True, upstream_goes=True, why_not="no engine runs", guarded=frozenset(DEVICES)
        ),
        policing_stalled_s: Callable[[], float] = lambda: 0.0,
        policies: Callable[[], int] = lambda: 0,
    ) -> None:
        self.node = node
        self.numbers = numbers
        self.facts: dict[str, Any] = {}  # what other parts add to the status
        self._context = context
        self._felix = FelixParser(environ)
        self._on_snapshot = on_snapshot
        self._on_tunnels = on_tunnels
        self._engine = _EngineView(policing, policing_stalled_s, policies)
        self._log: Log = context.log
        self._said = Said(self._log)
        self._schedule = PassSchedule()
        self._last = Pass()
        self._resident = 0
        self.tunnels: frozenset[str] | None = None  # our tunnel devices that are there or are to be; None: unknown yet
        self.ports: Mapping[str, int] = {}  # the UDP ports of those that are VXLAN devices and there
        self._desired = Desired()
        self._held = HeldDevices()
        self._switching = Switching()
        self._moving = Moving(context, self.wake)
        self.in_use = Snapshot(node)  # the newest snapshot, with pools as they are used
        self._monitor: Monitor | None = None

    @property
    def held(self) -> Collection[str]:
        """The tunnel devices that wait for their rules."""
        return self._desired.held

    @property
    def devices(self) -> Mapping[str, object]:
        """The tunnel devices as they should be."""
        return self._desired.devices

    @property
    def public_keys(self) -> Mapping[int, bytes]:
        """By family, what this node's Node is to say of WireGuard's key, b"": nothing; others are left as they are."""
        return self._last.public_keys

    @property
    def awaits(self) -> Mapping[int, tuple[str, ...]]:
        """By family, the nodes that have not followed a new key of this node's yet."""
        return self._last.awaits

    def wake(self) -> None:
        """Look again soon; may be called from any thread."""
        if self._monitor is not None:
            self._monitor.wake()

    def hear(self) -> None:
        """The engine says something new, which is told, and needs a pass if it matters to one; from any thread."""
        if self._monitor is None:
            return
        is_used = self._engine.standing().for_dataplane() == self._engine.used
        (self._monitor.nudge if is_used else self._monitor.wake)()

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``. Raises KernelError if the kernel's notifications cannot be received."""
        settings = self._context.settings
        bell = hang_bell(f"{settings.run_dir}/{FORWARD_BELL}")
        self._monitor = Monitor(TABLE, DEVICES, (*GUARDS, FLOATING), bell)
        record_changed = threading.Event()

        def on_change() -> None:
            record_changed.set()
            self.wake()

        sources = Sources(
            self._context.followed,
            self.node,
            on_change,
            use_pod_cidr=settings.use_pod_cidr,
            brief=self._context.is_kubernetes_datastore,
            routed=self._makes_routes,
            partial_blocks=self._context.relayed is not None,
            last_valid=LastValid(self._context.files, self._log, settings.state_dir, VIEW_FILE),
            watch_after=self._context.decided,
            floating=self._has_floating,
        )
        parts = PartsLater(self._context, self._engine.standing)
        limits = ChangedLimits(record_changed, sources.local_endpoints, parts, self._log)
        if self._context.kubernetes is not None:
            from cni_calico.nodeagent.dataplane.policy_count import start_counting

            start_counting(self._context, self._count_policies, stopping)
        try:
            self._restore_guard(parts)
            while not stopping.is_set():
                happened = self._monitor.wait(self._schedule.patience_s(time.monotonic(), status.HEARTBEAT_S))
                changed = self._monitor.take_changed()
                parts.notice(changed)
                if not self._schedule.has_begun and RULES in changed:
                    self._restore_guard(parts)
                if self.tunnels is None and sources.begun:
                    self._look_for_tunnels(sources.snapshot())
                used = time.thread_time()
                if not stopping.is_set() and sources.settle() and (happened or self._schedule.is_due(time.monotonic())):
                    if not self._schedule.has_begun and self._context.decided is not None:
                        self._context.decided.wait(FIRST_PASS_S)
                    limits.bring_changed()
                    self._pass(sources, parts, limits)
                if self._schedule.has_begun:  # also after no pass: what the engine says may change all the time, too
                    pause_s = self._schedule.pause_s(time.monotonic(), time.thread_time() - used)
                    if limits.rest(pause_s, stopping):
                        self.wake()
                self._tell(sources)
        finally:
            sources.stop()

    def _restore_guard(self, parts: PartsLater) -> None:
        """Records may not be readable for long, and the guard of encryption must not wait for them."""
        done = parts.restore_guard(Deadline.after(PASS_S))
        if done:
            self._log.warning(done)

    def _look_for_tunnels(self, snapshot: Snapshot) -> None:
        """Before the first pass, which also waits for IPAM's records: they say nothing of tunnels."""
        deadline, felix, backend = Deadline.after(PASS_S), self._parameters(snapshot), self._context.settings.backend
        try:
            interfaces = read_interfaces(deadline)
            desired = desired_state(snapshot, interfaces, felix, backend)
            self._note_tunnels(snapshot, felix, desired, interfaces, deadline)
        except CalicoError as e:
            self._log.warning(f"cannot look for tunnels yet: {e}")  # the first pass tells it

    def _note_tunnels(
        self,
        snapshot: Snapshot,
        felix: FelixSettings,
        desired: Desired,
        interfaces: Sequence[HostInterface],
        deadline: Deadline,
    ) -> None:
        there = {interface.name for interface in interfaces if interface.up or interface.kind != "ipip"}
        tunnels = frozenset((*desired.devices, *there.intersection(DEVICES)))
        self.ports = self._read_ports(desired, there, deadline)
        self.tunnels = tunnels
        self._on_tunnels(snapshot, felix)

    # -- one pass -----------------------------------------------------------------------------------------------------

    def _pass(self, sources: Sources, parts: PartsLater, limits: ChangedLimits) -> None:
        begun = time.monotonic()
        full, self._engine.used = self._schedule.is_full(begun), self._engine.standing().for_dataplane()
        deadline = Deadline.after(PASS_S)
        backend = self._context.settings.backend
        snapshot = self.in_use = sources.snapshot()
        felix = self._parameters(snapshot)
        limits.passed()
        if not felix.internal_driver:
            self._leave_alone(snapshot, felix, begun)
            return
        try:
            interfaces = read_interfaces(deadline)
            up = {interface.name for interface in interfaces if interface.up}
            ways = self._switching.select(snapshot, felix, backend, up, begun)
            used = self.in_use = replace(snapshot, pools=ways.pools)
            moves = self._moving.moves(snapshot, felix)
            self._desired = desired_state(used, interfaces, felix, backend, (*ways.coming, *ways.leaving), moves)
            if ways.leaving:
                actual = read_host_routes(deadline)
                self._desired = with_staying_routes(
                    self._desired, used, ways.leaving, interfaces, actual, felix, backend
                )
            if snapshot.unproven or snapshot.unread_of("WorkloadEndpoint"):
                self._desired = with_routes_in_doubt(self._desired, used, read_host_routes(deadline), felix)
            self._note_tunnels(snapshot, felix, self._desired, interfaces, deadline)
            self._desired, waiting = self._held.select(self._desired, up, self.ports, self._engine.standing(), begun)
            done = parts.apply(self._desired, felix, deadline, full=full)
            limits.passed(snapshot.endpoints, interfaces, (self._desired, felix), done.limits_left)
            there = {interface.name for interface in interfaces if interface.up or interface.kind != "ipip"}
            self.ports = self._read_ports(self._desired, there.union(self._desired.devices), deadline)
            done.pending += waiting + ways.pending
            unmet = select_unmet(snapshot if ways.overdue else used, done.lacking)
        except CalicoError as e:
            done, unmet = Pass(failed=[str(e)]), ()
        ended = time.monotonic()
        failed, pending = bool(done.failed), bool(done.pending)
        self._schedule.ended(ended, full=full, resync_s=felix.resync_s, failed=failed, pending=pending)
        done.unmet = (*unmet, *done.refused)
        self._report(done, snapshot)
        self.numbers.resynced(ended - begun, full=full, changed=len(done.changed), failed=len(done.failed))
        self._on_snapshot(snapshot, felix)
        if full:
            self._shrink()

    def _leave_alone(self, snapshot: Snapshot, felix: FelixSettings, begun: float) -> None:
        """Another data plane has the node: nothing of its kernel is read or changed."""
        self._desired, self.tunnels, self.ports = Desired(), frozenset(), {}
        self._schedule.ended(time.monotonic(), full=True, resync_s=felix.resync_s, failed=False, pending=False)
        self._report(Pass(), snapshot)
        self.numbers.resynced(time.monotonic() - begun, full=True, changed=0, failed=0)
        self._on_snapshot(snapshot, felix)

    def _read_ports(self, desired: Desired, there: Collection[str], deadline: Deadline) -> Mapping[str, int]:
        """The ports that VXLAN devices have; read only if one that is ``there`` is not known to have the wanted one."""
        held = {name: port for name, port in self.ports.items() if name in there}
        wanted = {name: device.port for name, device in desired.devices.items() if device.port and name in there}
        if held | wanted == held:
            return held
        read = read_tunnels(wanted, deadline)
        others = {name: port for name, port in held.items() if name not in wanted}
        return others | {name: device.port for name, device in read.items() if device.port}

    def _shrink(self) -> None:
        """Return free memory to the kernel: the C library would keep what a burst of changes needed."""
        if memory.resident_bytes() > self._resident + GROWN_BYTES:
            memory.trim_memory()
            self._resident = memory.resident_bytes()

    def _makes_routes(
        self, pools: Sequence[IPPool], felix_node: FelixSpec, felix_default: FelixSpec, scoped: Scoped
    ) -> bool:
        felix, _ = self._decide_writer(self._felix.parse(felix_node, felix_default, scoped).settings)
        if is_enabled(felix) or not felix.internal_driver:  # a driver is told every route
            return True
        return makes_routes((*pools, *self._switching.others), felix, self._context.settings.backend)

    def _has_floating(self, felix: FelixParts) -> bool:
        return self._felix.parse(*felix).settings.floating_ips == "Enabled"

    def _parameters(self, snapshot: Snapshot) -> FelixSettings:
        parsed: Parameters = self._felix.parse(snapshot.felix_node, snapshot.felix_default, snapshot.felix_scoped)
        felix, contradiction = self._decide_writer(parsed.settings)
        self._said.say("parameters", (*parsed.warnings, *filter(None, [contradiction])), "warning")
        self._said.say("missing", parsed.errors, "error")
        configure_log(self._log, felix)
        return felix

    def _decide_writer(self, felix: FelixSettings) -> tuple[FelixSettings, str]:
        return decide_writer(felix, self.facts.get(BIRD_MAKES_ROUTES), self._context.settings.backend)

    # -- telling ------------------------------------------------------------------------------------------------------

    def _report(self, done: Pass, snapshot: Snapshot) -> None:
        self._last = done
        for text in done.changed:
            self._log.info(text)
        self._said.say("failed", tuple(done.failed), "error")
        self._said.say("unmet", tuple(f"this node is not ready: {text}" for text in done.unmet), "error")
        self._said.say("problems", self._desired.problems, "warning")
        policies: tuple[str, ...] = ()
        standing = self._engine.standing()
        # there may be a policy that the engine has not taken in yet: it says so itself within a round
        silent = standing.in_force or not standing.decided or standing.none_exist or standing.upstream_stays
        count = 0 if silent else self._engine.policies() + self._engine.of_kubernetes[0]
        if count:
            policies = (
                f"{count} network policies exist and NOBODY ENFORCES THEM on this node: every workload can "
                f"be reached by everybody ({standing.failing or standing.why_not})",
            )
        if self._engine.of_kubernetes[1]:
            from cni_calico.nodeagent.dataplane.policy_count import render_unread

            policies += render_unread(self._engine.of_kubernetes[1])
        self._said.say("policies", policies, "warning")
        self.facts["policies"] = count
        self.numbers.policies = count

    def _count_policies(self, count: int, unread: int) -> None:
        """Called, from another thread, with the number of Kubernetes' own policies, and of those that are not read."""
        if (count, unread) != self._engine.of_kubernetes:
            self._engine.of_kubernetes = count, unread
            self.wake()

    def _tell(self, sources: Sources) -> None:
        error = sources.error
        self._said.say("datastore", (f"the datastore is out of sync: {error}",) if error else (), "warning")
        self.numbers.note_datastore(in_sync=sources.healthy, error=bool(error))
        self.numbers.routes = Counter(route.dst.version for route in self._desired.routes)
        self.facts["policing"] = self._engine.standing().fields()
        fields = {
            "node": self.node,
            "datastore": describe_config(self._context.config),
            "synced": self._schedule.has_begun,
            "datastore_error": error,
            "failed": self._last.failed,
            "unmet": list(self._last.unmet),
            "problems": list(self._desired.problems),
            "warnings": [text for topic in ("missing", "parameters", "policies") for text in self._said.texts(topic)],
            "mtu": self._desired.mtu,
            "devices": {name: str(device.address or "") for name, device in self._desired.devices.items()},
            "routes": len(self._desired.routes),
            "backend": self._context.settings.backend,
            "policing_stalled_s": round(self._engine.stalled_s(), 1),
            "troubles": dict(self._context.troubles),
            **({"encryption": self._last.encryption} if self._last.encryption else {}),
            **self.facts,
        }
        try:
            status.write_status(self._context.settings.run_dir, fields)
        except OSError as e:
            self._said.say("status", (f"cannot write the agent's status: {e.strerror}",), "error")


def configure_log(log: Log, felix: FelixSettings) -> None:
    """What is written, and where."""
    log.threshold = LEVELS.get(felix.log_severity, 20)
    log.file_threshold = None if felix.log_file_severity is None else LEVELS[felix.log_file_severity]
    log.file_path = log.usual_file_path if felix.log_file is None else felix.log_file
    log.debug_files = felix.log_debug_files
