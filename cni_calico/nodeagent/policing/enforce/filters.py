"""Which packet filter enforces policies: nf_tables, or legacy iptables with IP sets where the kernel has no nf_tables.

Rule: NFTablesMode Disabled chooses iptables only if iptables can be used here; the mode never leaves policies without
enforcement. While iptables is used, a warning says what it lacks, and only then is what prints its rules imported. What
the other packet filter left is removed only after this one's rules are in force: for a moment a packet meets both, but
never neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, KernelError
from cni_calico.flows.deciders import Decider
from cni_calico.kernel.filter.interface import PacketFilter
from cni_calico.kernel.filter.legacy import programs
from cni_calico.kernel.filter.nf_tables.counters import read_counters
from cni_calico.kernel.filter.nf_tables.filter import NfTables, why_no_nf_tables
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.netfilter.rules import ACCEPT, DROP, LogPacket, NftRule
from cni_calico.netfilter.tables import (
    AddChain,
    AddRules,
    AddSet,
    AddTable,
    AddVerdicts,
    DropTable,
    Operation,
    TableId,
)
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.policing.tables.numbers import MAPS, Recording, RuleNumbers
from cni_calico.nodeagent.policing.tables.settings import FilterSettings, Networks, filter_settings
from cni_calico.nodeagent.policing.tables.touched import FILTER, NAME, TABLES

NFTABLES, IPTABLES = "nftables", "iptables"
_LOOK_S, _REMOVE_S = 60.0, 60.0
_MARKS = 4
REPORTS = 61789  # a number that nobody else uses, as far as is known
_PROBE = TableId(FILTER[4].family, f"{NAME}-probe")
_DISABLED = "NFTablesMode is Disabled"
_LIMITS = (
    "Changes take longer the more rules there are, rules that others change are noticed within a second, members of "
    "sets only every IptablesRefreshInterval, and proxy ARP's answers are not checked"
)


@dataclass(frozen=True, slots=True)
class DataPlane:
    """``name``: NFTABLES or IPTABLES. ``warning``: what its users have to know, "" for nothing. ``report_group``:
    to which its rules can report what they drop, 0 if they cannot.
    """

    name: str = NFTABLES
    warning: str = ""
    report_group: int = 0

    def settings(
        self, felix: FelixSettings, service_networks: Networks, recording: Recording | None = None
    ) -> FilterSettings:
        """What the rules depend on."""
        return filter_settings(felix, service_networks, self.name, self.report_group, recording)

    def refresh_s(self, felix: FelixSettings) -> float:
        """How often everything is compared with the kernel."""
        return felix.iptables_refresh_s if self.name == IPTABLES else felix.nftables_refresh_s


DEFAULT = DataPlane()


@dataclass(frozen=True, slots=True)
class OpenFilter:
    """``port``: of the socket that makes the changes, by which notifications of changed rules tell our own; 0: there
    are none, and ``touched`` says whether others have changed rules, as far as it can tell cheaply.
    """

    kernel: PacketFilter
    plane: DataPlane = DEFAULT
    port: int = 0
    touched: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class KernelSide:
    """What the engine has opened, of the network namespace of its thread. ``conntrack`` None: connections are left
    alone. ``watch_rules`` and ``watch_addresses`` ask for notifications from then on. ``why_no_recording``: as the
    function of that name, of whether what is let through is recorded too; asked once flows are to be recorded.
    ``keeps_numbers``: what the rules' numbers stand for is written down; not in a rehearsal.
    """

    filtering: OpenFilter
    conntrack: Nfnetlink | None = None
    watch_rules: Callable[[], None] = lambda: None
    watch_addresses: Callable[[], None] = lambda: None
    why_no_recording: Callable[[bool], str] = lambda allowed: ""
    keeps_numbers: bool = True


class NoPacketFilter(KernelError):
    """A kernel without any that can be used: nothing can be filtered."""


def choose(mode: str, no_nftables: str, no_iptables: str) -> DataPlane:
    """``mode``: NFTablesMode. ``no_nftables``, ``no_iptables``: why that cannot be used, "" if it can.

    Raises NoPacketFilter if neither can.
    """
    if mode == "Disabled" and not no_iptables:
        return DataPlane(IPTABLES, f"{_DISABLED}: policies are enforced with legacy iptables and IP sets. {_LIMITS}")
    if not no_nftables:
        if mode != "Disabled":
            return DataPlane()
        why = f"{_DISABLED}, but policies are enforced with nftables all the same, because {no_iptables}"
        return DataPlane(NFTABLES, f"{why}; iptables' rules of other programs are not affected")
    if no_iptables:
        raise NoPacketFilter(
            f"there is no packet filter for policies: {no_nftables}; and {no_iptables}. Boot a kernel that has "
            "nf_tables (CONFIG_NF_TABLES), or make iptables-legacy and ipset work here"
        )
    return DataPlane(
        IPTABLES, f"{no_nftables}: policies are enforced with legacy iptables and IP sets instead. {_LIMITS}"
    )


def marks_of(mask: int) -> tuple[int, ...]:
    """The third and fourth bit of the mask (nf_tables uses the first two), for legacy iptables; () if it has fewer."""
    bits = [1 << i for i in range(32) if mask >> i & 1]
    return tuple(bits[2:_MARKS]) if len(bits) >= _MARKS else ()


def look(felix: FelixSettings) -> DataPlane:
    """What this kernel has, in the namespace of the calling thread. Raises CalicoError if that is nothing.

    A kernel that can report packets has nf_tables, so one question is enough there. Each question is a transaction that
    is given up, after which the kernel waits until no processor uses what it had prepared.
    """
    reports = _can_report()
    no_nftables = "" if reports else why_no_nf_tables([AddTable(_PROBE)], Deadline.after(_LOOK_S))
    no_iptables = "" if felix.nftables_mode != "Disabled" and not no_nftables else _no_iptables(felix)
    plane = choose(felix.nftables_mode, no_nftables, no_iptables)
    return replace(plane, report_group=REPORTS) if plane.name == NFTABLES and reports else plane


def _can_report() -> bool:
    """Whether rules of nf_tables can report packets: the kernel may lack nfnetlink_log."""
    rule = NftRule((), (LogPacket("probe", group=REPORTS),))
    try:
        with NfTables() as kernel:
            probe = (AddTable(_PROBE), AddChain(_PROBE, "probe"), AddRules(_PROBE, "probe", (rule,)))
            kernel.check(probe, Deadline.after(_LOOK_S))
    except CalicoError:
        return False
    return True


def why_no_recording(plane: DataPlane, kernel: PacketFilter, allowed: bool) -> str:
    """Why rules cannot do what the recorder of flows needs, "" if they can. The namespace is the calling thread's.
    ``allowed``: as in Recording. A kernel that can report packets, which ``look`` has asked, can report denied ones.
    """
    if plane.report_group and not allowed:
        return ""
    by_iptables = plane.name == IPTABLES
    recording = Recording(RuleNumbers(), allowed=allowed, by_iptables=by_iptables)
    decider = Decider("Profile", "", "probe", "", True, 0, "Allow")
    allow = NftRule((), (*recording.before_accept(decider), ACCEPT))
    deny = NftRule((), (*recording.before_drop(decider), DROP))
    probe: list[Operation] = [AddTable(_PROBE)]
    for spec, verdicts in tuple(MAPS.items()) if allowed and not by_iptables else ():
        probe += (AddSet(_PROBE, spec), AddVerdicts(_PROBE, spec, verdicts))
    probe += (AddChain(_PROBE, "probe"), AddRules(_PROBE, "probe", (allow, deny)))
    try:
        kernel.check(probe, Deadline.after(_LOOK_S))
    except CalicoError as e:
        needed = "nfnetlink_log, connection labels" if allowed else "nfnetlink_log"
        return f"flows are not recorded: this kernel lacks what that needs ({needed}): {e}"
    return ""


def _no_iptables(felix: FelixSettings) -> str:
    missing = programs.missing_programs()
    if missing:
        return f"legacy iptables cannot be used: install {missing}"
    if not marks_of(felix.mark_mask):
        return f"legacy iptables cannot be used: NftablesMarkMask needs {_MARKS} bits for it"
    try:
        programs.probe(Deadline.after(_LOOK_S), felix.iptables_lock_s)
    except CalicoError as e:
        return f"legacy iptables cannot be used: {e}"
    return ""


@contextmanager
def opened(plane: DataPlane, felix: FelixSettings) -> Iterator[OpenFilter]:
    if plane.name == IPTABLES:
        from cni_calico.kernel.filter.legacy.filter import LegacyFilter
        from cni_calico.kernel.filter.legacy.matches import Marks

        # there are marks, or it would not have been chosen
        with LegacyFilter(Marks(*marks_of(felix.mark_mask)), felix.iptables_lock_s) as filtering:
            yield OpenFilter(filtering, plane, touched=filtering.touched)
    else:
        with NfTables() as kernel:
            yield OpenFilter(kernel, plane, kernel.port)


def count_dropped(plane: DataPlane, chains: Collection[str], deadline: Deadline) -> Mapping[str, int]:
    """The packets that our rules that drop have counted, by the rules' comments, and maybe others' counts. ``chains``:
    where such rules are; iptables is read as a whole. Raises KernelError, DeadlineExceeded.
    """
    counts: Counter[str] = Counter()
    if plane.name == IPTABLES:
        from cni_calico.kernel.filter.legacy.script import parse_dropped

        for family in FILTER:
            counts += parse_dropped(programs.read_tables(family, deadline, counters=True))
        return counts
    with Nfnetlink() as netlink:
        for table in FILTER.values():
            for chain in chains:
                counts.update(read_counters(netlink, table, chain, deadline))
    return counts


def remove_other(plane: DataPlane, felix: FelixSettings) -> str:
    """Remove what the other packet filter has of ours; returns what is in the way, "" if it is gone."""
    deadline = Deadline.after(_REMOVE_S)
    try:
        if plane.name == NFTABLES:
            marks = marks_of(felix.mark_mask)
            if marks and not programs.missing_programs() and programs.is_in_use():
                from cni_calico.kernel.filter.legacy.filter import LegacyFilter
                from cni_calico.kernel.filter.legacy.matches import Marks

                with LegacyFilter(Marks(*marks), felix.iptables_lock_s) as filtering:
                    filtering.remove(FILTER.values(), deadline)
        elif not why_no_nf_tables([AddTable(_PROBE)], Deadline.after(_LOOK_S)):
            with NfTables() as kernel:
                there = [table for table in TABLES if kernel.has_table(table, deadline)]
                if there:
                    kernel.apply([DropTable(table) for table in there], deadline)
    except CalicoError as e:
        return f"the policies that the other packet filter enforced are still in force there, too: {e}"
    return ""
