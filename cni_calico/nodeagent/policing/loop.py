"""The policy engine's work while one packet filter is open: what has happened goes into a round, as soon as one may be
done.

Rule: this loop does nothing else: a change is applied at once if the loop is idle, and what comes meanwhile is
collected. Nothing is written before every listing has been read once; losing the datastore, and stopping, leave
everything in force.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from cni_calico.kernel.netlink.filter_events import FilterMonitor, Happened
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.model.resources import Network
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce.filters import (
    IPTABLES,
    KernelSide,
    OpenFilter,
    count_dropped,
    remove_other,
    why_no_recording,
)
from cni_calico.nodeagent.policing.feed.changes import FedRecord
from cni_calico.nodeagent.policing.feed.incoming import Incoming
from cni_calico.nodeagent.policing.feed.shares import Taken
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.report.drops import DroppedPackets
from cni_calico.nodeagent.policing.report.in_force import RulesInForce
from cni_calico.nodeagent.policing.rounds import Rounds
from cni_calico.nodeagent.policing.schedule import LOOK_S, RoundReason
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.lifelines import Lifeline

_TOLD = (RoundReason.RETRY, RoundReason.COMPARISON, RoundReason.STANDING)
OTHER_AGAIN_S = 10.0


@dataclass(frozen=True, slots=True)
class AskedOfEngine:
    """What the other parts of the agent hand in. ``sessions``: what BGP needs from host endpoints; ``peers``: the
    workloads that it has sessions with, by their interfaces the name of the BGPPeer. ``pools``: the networks of all IP
    pools.
    """

    felix: FelixSettings
    tunnels: Tunnels
    sessions: tuple[Lifeline, ...] = ()
    pools: frozenset[Network] = frozenset()
    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def filtering(self) -> tuple[object, ...]:
        """The parameters that a packet filter is opened with."""
        return filtering_of(self.felix)


def filtering_of(felix: FelixSettings) -> tuple[object, ...]:
    """The parameters that a packet filter is opened with, or another data plane's driver instead."""
    driver = () if felix.internal_driver else (felix.dataplane_driver,)
    return felix.nftables_mode, felix.mark_mask, felix.iptables_lock_s, *driver


class PolicyLoop:
    """For the engine's thread. ``step`` again and again, then ``stop``; what is in force stays."""

    def __init__(
        self,
        context: Context,
        node: str,
        asked: AskedOfEngine,
        kernel: tuple[OpenFilter, Nfnetlink, FilterMonitor],
        incoming: Incoming,
        tell: Callable[[Standing], None],
        figures: PolicyFigures,
        keeps: bool | None = None,
        rules: RulesInForce | None = None,
    ) -> None:
        """``incoming`` ends with the loop. ``keeps``: whether an earlier run's rules stay until everything has been
        read; None: unknown. ``rules`` is told which are in force.
        """
        self._filter, conntrack, self._monitor = kernel
        self._asked, self._log, self._figures = asked, context.log, figures
        plane, monitor, felix = self._filter.plane, self._monitor, asked.felix
        watch_rules = monitor.watch_rules if self._filter.port else lambda: None
        can_record = partial(why_no_recording, plane, self._filter.kernel)
        side = KernelSide(self._filter, conntrack, watch_rules, monitor.watch_addresses, can_record)
        self._rounds = rounds = Rounds(context, node, felix, side, tell, figures, rules=rules)
        rounds.guard.keeps = keeps
        rounds.use_tunnels(asked.tunnels)
        rounds.use_pools(asked.pools)
        rounds.use_sessions(asked.sessions, asked.peers)
        count, by_iptables = partial(count_dropped, plane), plane.name == IPTABLES
        self._drops = DroppedPackets(plane.report_group, context.log, figures, count, by_iptables=by_iptables)
        self._feed, self._memory = incoming.feed, incoming.memory
        self._memory.configure(felix.policy_memory_mib)
        self._memory.use(self._filter.kernel.forget_cached)
        self._turns = Turns(self._memory)
        rounds.intake.bound_members(self._memory.admits_members)
        self._other_due: float | None = 0.0  # when to remove what the other packet filter has of ours; None: it is gone
        self._due = RoundReason.NEWS

    def fits(self, asked: AskedOfEngine) -> bool:
        """Whether this packet filter is the one that is asked for."""
        return asked.filtering == self._asked.filtering

    def step(self, asked: AskedOfEngine) -> None:
        """Take in what has happened, do a round if there is reason to, and wait for the next thing to happen."""
        if self._use(asked):
            self._due = RoundReason.NEWS
        rounds, happened = self._rounds, self._notice()
        synced = self._feed.synced  # asked first: what was read until then is taken below
        taken = self._take(synced=synced)
        if synced or rounds.in_force:
            rounds.calculate()
            synced = self._feed.need(rounds.needs) and synced
        if rounds.schedule.may_begin(synced=synced, in_force=rounds.in_force):
            if taken.changes or happened.touched_by or happened.lost:
                self._due = RoundReason.NEWS
            if self._due is RoundReason.NEWS or not rounds.waits_to_retry:
                self._round(synced=synced)
            self._turns.charge(taken)
            pause = rounds.pause(slices=bool(self._turns), longest_s=LOOK_S)
            self._remove_other()
        else:
            rounds.wait_for(self._feed.error)
            pause = rounds.schedule.pause_unread(failing=bool(self._feed.error))
        self._due = RoundReason.NEWS if self._monitor.wait(pause.seconds) else pause.until

    def stop(self) -> None:
        self._rounds.stop()
        self._feed.stop()
        self._drops.close()

    def _use(self, asked: AskedOfEngine) -> bool:
        """Use these parameters; returns whether they are new."""
        if asked is self._asked:
            return False
        self._asked = asked
        self._rounds.configure(asked.felix)
        self._memory.configure(asked.felix.policy_memory_mib)
        self._rounds.use_tunnels(asked.tunnels)
        self._rounds.use_pools(asked.pools)
        self._rounds.use_sessions(asked.sessions, asked.peers)
        return True

    def _notice(self) -> Happened:
        """Process what the kernel reports, of changes and of dropped packets."""
        guard, happened = self._rounds.guard, self._monitor.take()
        if guard.stands and self._filter.touched():
            happened.touched_by.add("?")
        self._rounds.notice(happened)
        if guard.has_rules:
            self._drops.look()
        else:
            self._drops.close()
        return happened

    def _take(self, *, synced: bool) -> Taken[FedRecord]:
        """Put into the graph what is to be in the next round."""
        rounds = self._rounds
        taken = self._turns.take(
            self._feed,
            rounds.intake.ahead,
            everything=not rounds.in_force,
            starting=rounds.is_starting,
            synced=synced,
            chains=rounds.guard.chains,
        )
        rounds.receive(taken.changes, taken.since)
        for key, nets in self._memory.take_unread_sets().items():
            rounds.intake.hold_back(key, nets)
        self._figures.waiting_for_memory = self._memory.waiting(rounds.intake.facts.waiting)
        for due in (self._memory.next_due(), rounds.intake.reconsider()):
            if due is not None:
                self._feed.read_again(due)
        return taken

    def _round(self, *, synced: bool) -> None:
        self._figures.rounds[self._due.value] += 1
        if self._due in _TOLD:
            self._log.debug(f"policies: a round for the {self._due.value}")
        feed = self._feed
        self._rounds.once(
            feed.left_out,
            feed.unread,
            feed.unread_kinds,
            everybody=synced and feed.follows_all,
            waiting=self._memory.problems(self._rounds.intake.facts.waiting) + self._turns.problems(),
        )

    def _remove_other(self) -> None:
        """Once the standing rules are in force here."""
        due = self._other_due
        if due is None or time.monotonic() < due or not self._rounds.guard.stands:
            return
        left = remove_other(self._filter.plane, self._asked.felix)
        self._other_due = time.monotonic() + OTHER_AGAIN_S if left else None
        if left and not due:
            self._log.warning(left)
