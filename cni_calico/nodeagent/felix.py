"""What upstream calls Felix, the policy engine and the data plane, with what all parts of calico-node share.

Rule: it starts before every other part. Those are not even imported until it is decided what workloads may do, or
OTHERS_S have passed: what they read, and their share of the interpreter, would delay policies.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from cni_calico.daemon.guarded import guarded_thread
from cni_calico.daemon.stopping import Stopping
from cni_calico.nodeagent.bgp.facts import ENDS, NOT_CONFIGURED, UNMET
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.context.open import Opened
from cni_calico.nodeagent.dataplane.loop import DataplaneLoop
from cni_calico.nodeagent.policing.enforce.filters import DataPlane, look
from cni_calico.nodeagent.policing.engine import PolicyEngine
from cni_calico.nodeagent.policing.feed.incoming import Incoming
from cni_calico.nodeagent.policing.feed.parameters import select_tunnels
from cni_calico.nodeagent.policing.loop import AskedOfEngine
from cni_calico.nodeagent.status.file import read_status
from cni_calico.nodeagent.status.numbers import Numbers
from cni_calico.nodeagent.view.snapshot import Snapshot

if TYPE_CHECKING:
    from cni_calico.nodeagent.driver.loop import DriverLoop

OTHERS_S = 1.0
_LOOK_S = 0.01
# how long a thread keeps the interpreter if others want it: while lists are read, each change of threads only costs
_READING_TURN_S, _USUAL_TURN_S = 0.03, sys.getswitchinterval()
Use = Callable[[Snapshot, FelixSettings], None]


class Felix:
    """``chosen``: the flags of calico-node that name parts, without their dash; "felix" is one of them or not."""

    def __init__(
        self,
        chosen: set[str],
        environ: Mapping[str, str],
        opened: Opened,
        stopping: Stopping,
        look: Callable[[FelixSettings], DataPlane] = look,
    ) -> None:
        """``opened``: from ``environ``. ``look`` is asked first what this kernel can do."""
        self.chosen, self.given = chosen, environ
        self.stopping = stopping
        self.failed = False
        self.threads: list[threading.Thread] = []
        self.context, self.node, self.environ = opened.context, opened.node, opened.environ
        self._decided = threading.Event()
        if "felix" in chosen:
            self.context.decided = self._decided
        self.numbers = Numbers()
        self.heard: Callable[[], object] = lambda: None  # called whenever the policy engine's status has changed
        self._use_others: Use | None = None
        self._newest: tuple[Snapshot, FelixSettings] | None = None
        self._handing = threading.Lock()
        self._driver: DriverLoop | None = None
        self.policy = PolicyEngine(self.context, self.node, self._heard, opened.felix, self._drive, look)
        self.plane = DataplaneLoop(
            self.context,
            self.node,
            opened.environ,
            self.numbers,
            on_snapshot=self._use,
            on_tunnels=self._use_tunnels,
            policing=lambda: self.policy.standing,
            policing_stalled_s=self.policy.stalled_s,
            policies=self.policy.count_policies,
        )
        settings, facts = self.context.settings, self.plane.facts
        facts["environment"] = list(opened.wrong)
        facts[ENDS] = read_status(settings.run_dir).get(ENDS)
        if "confd" in chosen and settings.backend == "bird":
            facts[UNMET] = [NOT_CONFIGURED]  # the node must not look ready before that part has begun

    def start(self) -> None:
        """Start both if they are chosen, and wait until the other parts may begin. For the main thread, which gets the
        signals.
        """
        self.stopping.on_signals(signal.SIGTERM, signal.SIGINT)
        if "felix" not in self.chosen:
            return
        sys.setswitchinterval(_READING_TURN_S)
        self.thread("policy", lambda: self.policy.run(self.stopping))
        self.thread("felix", lambda: self.plane.run(self.stopping))
        end = time.monotonic() + OTHERS_S
        while not self._decided.wait(_LOOK_S) and time.monotonic() < end and not self.stopping.is_set():
            continue

    def _heard(self) -> None:
        """The policy engine's status has changed."""
        if self.policy.standing.decided and not self._decided.is_set():
            sys.setswitchinterval(_USUAL_TURN_S)
            self._decided.set()
        self.plane.hear()
        self.heard()

    def thread(self, name: str, work: Callable[[], object]) -> None:
        """Start a part; if it fails, all end."""
        thread = guarded_thread(name, work, self.context.log, self._fail)
        thread.start()
        self.threads.append(thread)

    def _fail(self) -> None:
        self.failed = True
        self.stopping.set()

    def hand_to(self, use: Use) -> None:
        """``use`` gets the newest snapshot with the parameters, and from now on every new one in the data plane's
        thread.
        """
        with self._handing:
            self._use_others = use
            if self._newest is not None:
                use(*self._newest)

    def _use_tunnels(self, snapshot: Snapshot, felix: FelixSettings) -> None:
        """All that policy waits for; called in the data plane's thread."""
        if self.plane.tunnels is not None:
            backend, ports = self.context.settings.backend, self.plane.ports.values()
            tunnels = select_tunnels(snapshot, felix, backend, self.plane.tunnels, ports)
            self.policy.use(felix, tunnels, frozenset(pool.cidr for pool in snapshot.pools))

    def _drive(self, asked: AskedOfEngine, incoming: Incoming, engine: PolicyEngine) -> DriverLoop:
        """Another data plane's driver; called in the engine's thread."""
        from cni_calico.nodeagent.driver.loop import DriverLoop  # with protobuf

        driver = DriverLoop(self.context, self.node, self.environ, asked, incoming, engine)
        with self._handing:
            self._driver = driver
            if self._newest is not None:
                driver.use(self._newest[0])
        return driver

    def _use(self, snapshot: Snapshot, felix: FelixSettings) -> None:
        self._use_tunnels(snapshot, felix)
        with self._handing:
            self._newest = snapshot, felix
            if self._driver is not None:
                self._driver.use(snapshot)
            if self._use_others is not None:
                self._use_others(snapshot, felix)

    def end(self, limit: float) -> None:
        """Wait for all parts to end, until then (time.monotonic)."""
        self.plane.wake()
        self.policy.wake()
        for thread in self.threads:
            thread.join(max(0.0, limit - time.monotonic()))
