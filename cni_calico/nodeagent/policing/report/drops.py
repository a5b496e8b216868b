"""What the standing rules drop: told once for each interface while it is there, with what allows it, and counted.

Rule: packets pay nothing for it: only one that is dropped is reported, and reports and counters are read at most once a
second and every ten seconds. A flood of one interface's packets may hide another's; the counters have all. Legacy
iptables reports nothing: what is told there is which rule has dropped packets, once while the agent runs. Reading its
counters means reading all rules, so that takes at most a fiftieth of the time.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.kernel.netlink.nflog import PacketReports, ReportedPacket
from cni_calico.log import Log
from cni_calico.nodeagent.policing.tables.stages import FROM_LOOPBACK, HOST_LOOPBACK, SPOOFED, SPOOFING, TO_LOOPBACK
from cni_calico.nodeagent.policing.tables.standing import ENCAPSULATED, LOOPBACK_IN, LOOPBACK_OUT
from cni_calico.nodeagent.policing.tables.tunnels import KNOWN_NODES, UNKNOWN_IPIP, UNKNOWN_VXLAN
from cni_calico.nodeagent.status.policing import PolicyFigures

_LOOK_S, _COUNT_S, _READ_S = 1.0, 10.0, 5.0
_REST = 50  # times as long as the last reading of iptables' counters
_TOLD = 1000  # at most so many interfaces are named, of those that are there
_CHAINS = (KNOWN_NODES, SPOOFING, LOOPBACK_IN, LOOPBACK_OUT, HOST_LOOPBACK, "to-workloads", *ENCAPSULATED)


@dataclass(frozen=True, slots=True)
class DropReason:
    """``label``: in the metric. ``allowed_by``: what its owner can do, "" for nothing."""

    label: str
    allowed_by: str = ""


REASONS = {
    SPOOFED: DropReason(
        "spoofed-source",
        "the pod's annotation cni.projectcalico.org/allowedSourcePrefixes, with FELIX_WORKLOADSOURCESPOOFING=Any",
    ),
    "VXLAN from a workload": DropReason("vxlan-from-workload", "FELIX_ALLOWVXLANPACKETSFROMWORKLOADS=true"),
    "IPIP from a workload": DropReason("ipip-from-workload", "FELIX_ALLOWIPIPPACKETSFROMWORKLOADS=true"),
    UNKNOWN_VXLAN: DropReason("vxlan-from-unknown-node", "its address in FELIX_EXTERNALNODESCIDRLIST"),
    UNKNOWN_IPIP: DropReason("ipip-from-unknown-node", "its address in FELIX_EXTERNALNODESCIDRLIST"),
    FROM_LOOPBACK: DropReason("loopback-from-workload"),
    TO_LOOPBACK: DropReason("loopback-to-workload"),
}


DropCounter = Callable[[Collection[str], Deadline], Mapping[str, int]]


class DroppedPackets:
    """For the engine's thread, whose network namespace the packets are in. ``group`` 0: nothing is reported.
    ``count`` reads the counters of the rules that drop, by their comments, from these chains; ``by_iptables``: the
    rules are legacy iptables'.
    """

    def __init__(
        self,
        group: int,
        log: Log,
        figures: PolicyFigures,
        count: DropCounter,
        now: Callable[[], float] = time.monotonic,
        *,
        by_iptables: bool = False,
    ) -> None:
        self._group = group
        self._by_iptables = by_iptables
        self._log = log
        self._figures = figures
        self._read_counters = count
        self._now = now
        self._reports: PacketReports | None = None
        self._told: set[tuple[str, str]] = set()
        self._next_look = self._next_count = 0.0
        self._trouble = ""

    def look(self) -> None:
        """Tell and count what is new, if it is time to. Nothing is raised: a failure is logged once."""
        now = self._now()
        if not (self._group or self._by_iptables) or now < self._next_look:
            return
        self._next_look = now + _LOOK_S
        try:
            if self._by_iptables:
                self._next_look = now + _COUNT_S
                self._count()
                self._next_look = max(now + _COUNT_S, self._now() + _REST * (self._now() - now))
                self._trouble = ""
                return
            if self._reports is None:
                self._reports = PacketReports(self._group, Deadline.after(_READ_S))
            for packet in set(self._reports.take()):
                self._tell(packet)
            if now >= self._next_count:
                self._next_count = now + _COUNT_S
                self._forget_gone()
                self._count()
            self._trouble = ""
        except CalicoError as e:
            self.close()
            self._next_look = max(now + _COUNT_S, self._now() + _REST * (self._now() - now))
            if str(e) != self._trouble:
                self._trouble = str(e)
                self._log.warning(f"what the standing rules drop is neither told nor counted: {e}")

    def _tell(self, packet: ReportedPacket) -> None:
        reason = REASONS.get(packet.prefix)
        interface = _name_of(packet.incoming or packet.outgoing)
        if reason is None or (packet.prefix, interface) in self._told or len(self._told) >= _TOLD:
            return
        self._told.add((packet.prefix, interface))
        where = f"that came in by {interface}" if packet.incoming else f"on its way out by {interface}"
        said = f"dropped a packet {where}: {packet.prefix} ({_allowed(reason)})"
        self._log.warning(f"{said}; the next ones are only counted")

    def _forget_gone(self) -> None:
        """Another workload may get an interface's name, and is told then."""
        if self._told:
            there = {name for _, name in socket.if_nameindex()}
            self._told = {one for one in self._told if one[1] in there}

    def _count(self) -> None:
        counts = dict.fromkeys((one.label for one in REASONS.values()), 0)
        for comment, count in self._read_counters(_CHAINS, Deadline.after(_READ_S)).items():
            if (reason := REASONS.get(comment)) is not None:
                counts[reason.label] += count
                if self._by_iptables:
                    self._tell_once(comment, reason)
        self._figures.dropped = counts

    def _tell_once(self, comment: str, reason: DropReason) -> None:
        if (comment, "") not in self._told:
            self._told.add((comment, ""))
            self._log.warning(f"dropped packets: {comment} ({_allowed(reason)}); the next ones are only counted")

    def close(self) -> None:
        if self._reports is not None:
            self._reports.close()
            self._reports = None


def _allowed(reason: DropReason) -> str:
    return f"what allows it: {reason.allowed_by}" if reason.allowed_by else "nothing allows it"


def _name_of(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return f"interface {index}, which is gone"
