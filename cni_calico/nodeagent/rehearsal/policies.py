"""Policies in a rehearsal: the engine's own rounds, on a packet filter and on files that change nothing.

Rule: nothing of the engine is made again here. It reads the records that the agent reads and decides as the agent does;
what listens to the kernel, writes Events, or removes connections, has no part in it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError
from cni_calico.kernel.filter.interface import PacketFilter
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.nf_tables.filter import NfTables
from cni_calico.model.resources import Network
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.enforce.filters import (
    NFTABLES,
    REPORTS,
    DataPlane,
    KernelSide,
    OpenFilter,
    choose,
    marks_of,
    opened,
)
from cni_calico.nodeagent.policing.feed.incoming import begin_reading
from cni_calico.nodeagent.policing.feed.turns import Turns
from cni_calico.nodeagent.policing.rounds import Rounds
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.nodeagent.rehearsal.files import RehearsedFiles
from cni_calico.nodeagent.rehearsal.tables import RehearsedFilter
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.policy.wanted import Wanted

_STEP_S = 0.05


@dataclass(slots=True)
class RehearsedPolicies:
    """``standing``: what the status would say. ``differences``: of our tables. ``was_there``: an agent of ours has its
    tables in the kernel now.
    """

    standing: Standing = field(default_factory=Standing)
    differences: list[str] = field(default_factory=list)
    wanted: Wanted = field(default_factory=Wanted)
    was_there: bool = False
    warnings: tuple[str, ...] = ()


def rehearse_policies(
    context: Context,
    node: str,
    felix: FelixSettings,
    tunnels: Tunnels,
    deadline: Deadline,
    pools: frozenset[Network] = frozenset(),
) -> RehearsedPolicies:
    """What the first round would do. ``context``: with RehearsedFiles. Raises CalicoError."""
    assert isinstance(context.files, RehearsedFiles)
    woken, told = threading.Event(), [Standing()]
    incoming = begin_reading(context, node, woken.set, felix.policy_memory_mib)
    try:
        with _filter(felix) as (plane, kernel):
            filtering = RehearsedFilter(kernel)
            side = KernelSide(OpenFilter(filtering, plane), keeps_numbers=False)
            quiet = replace(context, kubernetes_store=None)  # no Events
            rounds = Rounds(quiet, node, felix, side, told.append, PolicyFigures())
            try:
                rounds.use_tunnels(tunnels)
                rounds.use_pools(pools)
                turns, feed = Turns(incoming.memory), incoming.feed
                while True:
                    woken.clear()
                    synced = feed.synced
                    taken = turns.take(feed, rounds.intake.ahead, everything=True, synced=synced)
                    rounds.receive(taken.changes, taken.since)
                    if synced:
                        rounds.calculate()
                        synced = feed.need(rounds.needs) and synced
                    if synced and not turns:
                        rounds.once(feed.left_out, feed.unread, feed.unread_kinds, everybody=feed.follows_all)
                        if told[-1].decided:
                            break
                    if deadline.remaining_s() <= 0:
                        why = feed.unread or "they need what has not been read"
                        raise DeadlineExceeded(f"cannot rehearse the policies: {why}")
                    woken.wait(_STEP_S)
                return RehearsedPolicies(
                    told[-1],
                    filtering.differences(),
                    rounds.intake.wanted(),
                    filtering.was_there(),
                    rounds.intake.warnings,
                )
            finally:
                rounds.stop()
    finally:
        incoming.feed.stop()


@contextmanager
def _filter(felix: FelixSettings) -> Iterator[tuple[DataPlane, PacketFilter]]:
    """The one that would be used, as far as that shows without trying. Raises KernelError."""
    no_iptables = programs.missing_programs() or ("" if marks_of(felix.mark_mask) else "too few marks")
    plane = choose(felix.nftables_mode, _why_no_nf_tables(), no_iptables)
    if plane.name == NFTABLES:
        plane = replace(plane, report_group=REPORTS)
    with opened(plane, felix) as filtering:
        yield plane, filtering.kernel


def _why_no_nf_tables() -> str:
    try:
        with NfTables() as kernel:
            kernel.generation(Deadline.after(10))
    except KernelError as e:
        return f"this kernel has no nf_tables ({e})"
    return ""
