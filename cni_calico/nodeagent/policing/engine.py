"""The policy engine's thread: waits for changes of records and of the kernel, and does a round when there are any.

Rule: this loop does nothing else: a change is applied at once if the loop is idle, and what comes meanwhile is
collected. Nothing is written before every listing has been read once; losing the datastore, and stopping, leave
everything in force. A kernel that cannot filter is reported, and tried again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from cni_calico.errors import CalicoError, RulesRefused
from cni_calico.kernel.filter.legacy.filter import LegacyFilter
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.kernel.netlink.filter_events import FilterMonitor
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce.early import EarlyGuard
from cni_calico.nodeagent.policing.enforce.filters import (
    DataPlane,
    NoPacketFilter,
    count_dropped,
    look,
    opened,
    remove_other,
)
from cni_calico.nodeagent.policing.feed.memory import MemoryGuard
from cni_calico.nodeagent.policing.feed.records import RecordFeed
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.report.drops import DroppedPackets
from cni_calico.nodeagent.policing.rounds import Rounds
from cni_calico.nodeagent.policing.tables.touched import NAME
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing

KERNEL_AGAIN_S = 30.0
LOOK_S = 1.0  # how often an idle thread checks whether it should end
UNREAD_LAST_S = 10.0  # with policies in force: how long changes wait for a listing that is needed from now on
UNREAD_S = 0.01  # an empty listing wakes nobody when it has been read


def _filter_of(felix: FelixSettings) -> tuple[object, ...]:
    """The parameters that a packet filter is opened with."""
    return felix.nftables_mode, felix.mark_mask, felix.iptables_lock_s


class PolicyEngine:
    """Enforces policy for the workloads of the network namespace of the thread that calls ``run``.

    ``standing`` is the newest status; ``on_change`` is called whenever it changes, from the engine's thread.
    """

    def __init__(
        self,
        context: Context,
        node: str,
        on_change: Callable[[], None] = lambda: None,
        early: FelixSettings | None = None,
    ) -> None:
        """``early``: the parameters of the environment, which guard tunnels until the others are known."""
        self.standing = Standing()
        self.figures = PolicyFigures()
        self._context = context
        self._node = node
        self._on_change = on_change
        self._early = early
        self._keeps: bool | None = None  # whether an earlier run's rules stay until everything has been read
        self._told: tuple[FelixSettings, Tunnels] | None = None
        self._moved: float | None = None
        self._configured = threading.Event()
        self._monitor: FilterMonitor | None = None

    def use(self, felix: FelixSettings, tunnels: Tunnels) -> None:
        """Use these parameters and tunnels, from any thread; nothing is done before they are known."""
        if (felix, tunnels) != self._told:
            self._told = felix, tunnels
            self._configured.set()
            self.wake()

    def stalled_s(self) -> float:
        """How long the thread has been doing the same thing; may be called from any thread. 0 before it has begun."""
        moved = self._moved
        return 0.0 if moved is None else time.monotonic() - moved

    def wake(self) -> None:
        """May be called from any thread."""
        monitor = self._monitor
        if monitor is not None:
            monitor.wake()

    def run(self, stopping: threading.Event) -> None:
        """Run until ``stopping``."""
        if self._early is not None:
            early = EarlyGuard(self._early, self._context.log, self._tell)
            early.wait(self._configured, stopping)
            self._keeps = early.keeps
        while not stopping.is_set() and not self._configured.wait(0.1):
            pass
        while not stopping.is_set():
            self._moved = time.monotonic()
            try:
                assert self._told is not None
                felix = self._told[0]
                plane = look(felix)
                with (
                    opened(plane, felix) as (kernel, port),
                    Nfnetlink() as conntrack,
                    FilterMonitor(NAME, port) as monitor,
                ):
                    self._monitor = monitor
                    try:
                        self._loop(kernel, plane, conntrack, monitor, stopping)
                    finally:
                        self._monitor = None
            except CalicoError as e:
                self._tell(
                    Standing(
                        decided=True,
                        failing=f"this kernel's packet filter cannot be used: {e}",
                        upstream_goes=False,
                        unguardable=str(e) if isinstance(e, NoPacketFilter | RulesRefused) else "",
                    )
                )
                self._context.log.error(self.standing.sentence)
                stopping.wait(KERNEL_AGAIN_S)

    def _loop(
        self,
        kernel: NfTables | LegacyFilter,
        plane: DataPlane,
        conntrack: Nfnetlink,
        monitor: FilterMonitor,
        stopping: threading.Event,
    ) -> None:
        """Returns when the parameters ask for another packet filter, too."""
        told = self._told
        assert told is not None
        legacy = kernel if isinstance(kernel, LegacyFilter) else None
        in_force = is_ready = False
        context = self._context

        def tell(standing: Standing) -> None:
            nonlocal is_ready
            is_ready = standing.ready
            self._tell(standing)

        rounds = Rounds(
            context,
            self._node,
            told[0],
            kernel,
            conntrack,
            tell,
            (lambda: None) if legacy else monitor.watch_rules,
            self.figures,
            watch_addresses=monitor.watch_addresses,
            dataplane=plane,
        )
        rounds.guard.keeps = self._keeps
        rounds.use_tunnels(told[1])
        count = partial(count_dropped, plane)
        drops = DroppedPackets(plane.report_group, context.log, self.figures, count, by_iptables=legacy is not None)
        memory = MemoryGuard(told[0].policy_memory_mib)
        feed = RecordFeed(context.followed, self._node, monitor.wake, context.followed_kubernetes, memory.judge)
        news, unread_since, turns = True, 0.0, Turns(memory)
        try:
            while not stopping.is_set():
                self._moved = time.monotonic()
                if self._told is not told and self._told is not None:
                    if _filter_of(self._told[0]) != _filter_of(told[0]):
                        return
                    told, news = self._told, True
                    rounds.configure(told[0])
                    memory.configure(told[0].policy_memory_mib)
                    rounds.use_tunnels(told[1])
                happened = monitor.take()
                if legacy is not None and rounds.guard.stands and legacy.touched():
                    happened.touched_by.add("?")
                rounds.notice(happened)
                if rounds.guard.has_rules:
                    drops.look()
                else:
                    drops.close()
                synced = feed.synced  # asked first: what was read until then is taken below
                taken = turns.take(
                    feed,
                    rounds.intake.ahead,
                    everything=not rounds.in_force,
                    starting=not (rounds.in_force or is_ready),
                    synced=synced,
                    chains=rounds.guard.chains,
                )
                self.figures.waiting_for_memory = memory.waiting()
                if (due := memory.next_due()) is not None:
                    feed.read_again(due)
                rounds.receive(taken.changes, taken.since)
                if synced or rounds.in_force:
                    rounds.calculate()
                    needs = rounds.intake.facts.needs
                    synced = feed.need(endpoints=needs.endpoints, services=needs.services) and synced
                now = time.monotonic()
                unread_since = 0.0 if synced else unread_since or now
                if synced or (rounds.in_force and now - unread_since >= UNREAD_LAST_S):
                    if news or taken.changes or happened.touched_by or not rounds.waits_to_retry:
                        rounds.once(
                            feed.left_out,
                            feed.unread,
                            feed.unread_kinds,
                            everybody=synced and feed.follows_all,
                            waiting=memory.problems() + turns.problems(),
                        )
                    turns.charge(taken)
                    patience_s = 0.0 if turns else min(LOOK_S, rounds.patience_s())
                    if rounds.guard.stands and not in_force:
                        in_force = True
                        self._remove_other(plane, told[0])
                else:
                    rounds.wait_for(feed.error)
                    patience_s = LOOK_S if feed.error or now - unread_since >= LOOK_S else UNREAD_S
                news = monitor.wait(patience_s)
        finally:
            rounds.stop()
            feed.stop()
            drops.close()

    def _remove_other(self, plane: DataPlane, felix: FelixSettings) -> None:
        left = remove_other(plane, felix)
        if left:
            self._context.log.warning(left)

    def _tell(self, standing: Standing) -> None:
        self.standing = standing
        self._on_change()
