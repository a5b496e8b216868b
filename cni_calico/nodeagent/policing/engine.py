"""The policy engine's thread: guards tunnels until the parameters are known, then opens the packet filter that they
ask for, and works with it until they ask for another one.

Rule: a kernel that cannot filter is reported, and tried again; it does not end the thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from cni_calico.errors import CalicoError, RulesRefused
from cni_calico.kernel.memory import collect_as_usual, expect_growth
from cni_calico.kernel.netlink.filter_events import FilterMonitor
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.model.resources import Network
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce.boot import BootTable
from cni_calico.nodeagent.policing.enforce.early import EarlyGuard, FoundEarly
from cni_calico.nodeagent.policing.enforce.filters import DataPlane, NoPacketFilter, OpenFilter, look, opened
from cni_calico.nodeagent.policing.feed.incoming import Incoming, RecordReading, begin_reading
from cni_calico.nodeagent.policing.loop import AskedOfEngine, PolicyLoop, filtering_of
from cni_calico.nodeagent.policing.report.decision import DecisionFile
from cni_calico.nodeagent.policing.report.in_force import RulesInForce
from cni_calico.nodeagent.policing.tables.touched import NAME
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.lifelines import Lifeline

KERNEL_AGAIN_S = 30.0


class DrivenPlane(Protocol):
    """Another data plane's driver, which is told what is to be in force."""

    def step(self, asked: AskedOfEngine, stopping: threading.Event) -> None: ...

    def stop(self) -> None: ...

    def wake(self) -> None: ...


class Woken(Protocol):
    def wake(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _EngineStart:
    """What an engine is started with: parameters of the environment, who knows what the kernel can do, and who starts a
    driver.
    """

    early: FelixSettings | None
    look: Callable[[FelixSettings], DataPlane]
    drive: Callable[[AskedOfEngine, Incoming, PolicyEngine], DrivenPlane] | None


class PolicyEngine:
    """Enforces policy for the workloads of the network namespace of the thread that calls ``run``.

    ``standing`` is the newest status; ``on_change`` is called whenever it changes, or the number of policies, from
    other threads.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        on_change: Callable[[], None] = lambda: None,
        early: FelixSettings | None = None,
        drive: Callable[[AskedOfEngine, Incoming, PolicyEngine], DrivenPlane] | None = None,
        look_first: Callable[[FelixSettings], DataPlane] = look,
    ) -> None:
        """``early``: the parameters of the environment, which guard tunnels until the others are known. ``drive``
        starts the driver that they may ask for. ``look_first`` is asked first what this kernel can do.
        """
        self.standing = Standing()
        self.figures = PolicyFigures()
        self._context = context
        self._outcome = _Outcome(context)
        self._node = node
        self._on_change = on_change
        self._start = _EngineStart(early, look_first, drive)
        limit_mib = early.policy_memory_mib if early is not None else 0
        self._reading = RecordReading(lambda: begin_reading(context, node, self.wake, limit_mib))
        self._asked: AskedOfEngine | None = None
        self._sessions: tuple[tuple[Lifeline, ...], Mapping[str, str]] = ((), {})
        self._guard = threading.Lock()  # two threads hand in
        self._moved: float | None = None
        self._configured = threading.Event()
        self._monitor: Woken | None = None

    def use(self, felix: FelixSettings, tunnels: Tunnels, pools: frozenset[Network] = frozenset()) -> None:
        """Use these parameters and tunnels, and the networks of all IP pools, from any thread; nothing is done before
        they are known.
        """
        with self._guard:
            lifelines, peers = self._sessions
            asked = AskedOfEngine(felix, tunnels, lifelines, pools, peers)
            is_new = asked != self._asked
            if is_new:  # the loop tells by the object whether something is new
                self._asked = asked
        if is_new:
            self._configured.set()
            self.wake()

    def use_sessions(self, lifelines: tuple[Lifeline, ...], peers: Mapping[str, str]) -> None:
        """Report which of the node's BGP sessions host endpoints cut, and in endpoints' status files which workloads
        are peers (by their interfaces the name of the BGPPeer); from any thread.
        """
        with self._guard:
            is_new, self._sessions = (lifelines, peers) != self._sessions, (lifelines, peers)
            if is_new and self._asked is not None:
                self._asked = replace(self._asked, sessions=lifelines, peers=peers)
        if is_new:
            self.wake()

    @property
    def rules(self) -> RulesInForce:
        """Which are in force, for whoever listens."""
        return self._outcome.rules

    def stalled_s(self) -> float:
        """How long the thread has been doing the same thing; may be called from any thread. 0 before it has begun."""
        moved = self._moved
        return 0.0 if moved is None else time.monotonic() - moved

    def wake(self) -> None:
        """May be called from any thread."""
        monitor = self._monitor
        if monitor is not None:
            monitor.wake()
        elif self.standing.decided:  # there is no packet filter: whoever counts policies hears of it
            self._on_change()

    def count_policies(self) -> int:
        """How many there are, enforced or not; from any thread."""
        return self._reading.count_policies()

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``."""
        expect_growth()
        self._tell_decision()
        self._reading.incoming()
        try:
            self._enforce(self._wait_for_parameters(stopping), stopping)
        finally:
            collect_as_usual()
            self._reading.stop()

    def _wait_for_parameters(self, stopping: threading.Event) -> FoundEarly:
        found = FoundEarly()
        if self._start.early is not None and self._start.early.internal_driver:
            early = EarlyGuard(self._start.early, self._context.log, self.tell, self._start.look)
            early.wait(self._configured, stopping)
            found = early.found
        while not stopping.is_set() and not self._configured.wait(0.1):
            pass
        return found

    def _enforce(self, found: FoundEarly, stopping: threading.Event) -> None:
        while not stopping.is_set():
            self._moved = time.monotonic()
            if self._asked is not None and not self._asked.felix.internal_driver and self._start.drive is not None:
                self._drive(self._start.drive, self._asked, stopping)
                found = FoundEarly()
                continue
            try:
                self._open(found, stopping)
            except CalicoError as e:
                self.tell(
                    Standing(
                        decided=True,
                        failing=f"this kernel's packet filter cannot be used: {e}",
                        upstream_goes=False,
                        unguardable=str(e) if isinstance(e, NoPacketFilter | RulesRefused) else "",
                    )
                )
                self._context.log.error(self.standing.sentence)
                stopping.wait(KERNEL_AGAIN_S)
            found = replace(found, plane=None)  # by the next time the kernel may have another one

    def _open(self, found: FoundEarly, stopping: threading.Event) -> None:
        """Returns when the parameters ask for another packet filter, too. Raises CalicoError."""
        asked = self._asked
        assert asked is not None
        same = self._start.early is not None and filtering_of(self._start.early) == asked.filtering
        with (
            opened(found.plane if same and found.plane is not None else look(asked.felix), asked.felix) as filtering,
            Nfnetlink() as conntrack,
            FilterMonitor(NAME, filtering.port) as monitor,
        ):
            self._monitor = monitor
            try:
                self._work(asked, (filtering, conntrack, monitor), found.keeps, stopping)
            finally:
                self._monitor = None

    def _drive(
        self,
        drive: Callable[[AskedOfEngine, Incoming, PolicyEngine], DrivenPlane],
        asked: AskedOfEngine,
        stopping: threading.Event,
    ) -> None:
        """Returns when the parameters ask for something else. Raises CalicoError, which ends the agent: a data plane
        that is gone has forgotten what it was told.
        """
        plane = self._monitor = drive(asked, self._reading.incoming(), self)
        self._reading.hand_over()
        try:
            while not stopping.is_set():
                self._moved = time.monotonic()
                newest = self._asked or asked
                if newest.filtering != asked.filtering:
                    return
                plane.step(newest, stopping)
                if self._reading.counts_anew():
                    self._on_change()
        finally:
            self._monitor = None
            plane.stop()

    def _work(
        self,
        asked: AskedOfEngine,
        kernel: tuple[OpenFilter, Nfnetlink, FilterMonitor],
        keeps: bool | None,
        stopping: threading.Event,
    ) -> None:
        """``keeps``: whether an earlier run's rules stay until everything has been read."""
        told = self.tell, self.figures, keeps, self._outcome.rules
        loop = PolicyLoop(self._context, self._node, asked, kernel, self._reading.incoming(), *told)
        self._reading.hand_over()
        try:
            while not stopping.is_set():
                self._moved = time.monotonic()
                newest = self._asked or asked
                if not loop.fits(newest):
                    return
                loop.step(newest)
                self._tell_decision()
                if self._reading.counts_anew():
                    self._on_change()
        finally:
            loop.stop()

    def tell(self, standing: Standing) -> None:
        """``standing`` is the status now; for the engine's thread."""
        if standing.decided and not self.standing.decided:
            collect_as_usual()
        self.standing = standing
        self._tell_decision()
        self._on_change()

    def _tell_decision(self) -> None:
        felix = self._asked.felix if self._asked is not None else self._start.early
        self._outcome.tell(self.standing, felix.endpoint_status_prefix if felix is not None else "")


class _Outcome:
    """Who else has to know what is decided: the CNI plugin, and the boot table, which goes then."""

    def __init__(self, context: Context) -> None:
        run_dir, log = context.settings.run_dir, context.log
        self.rules = RulesInForce()
        self._file = DecisionFile(run_dir, log)
        self._boot = BootTable(run_dir, log, context.troubles)

    def tell(self, standing: Standing, prefix: str) -> None:
        """May be told again and again: what failed is tried again. ``prefix``: of the endpoints' status files."""
        self._file.tell(standing, prefix)
        if standing.ready:
            self._boot.remove()
