"""PURE: what one read brought, decisions and ends, taken in together as far as it is alike.

Rule: decisions come before the ends of what they are about; the outcome is that of one after the other.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence

from cni_calico.flows.arrivals import DecidedPacket
from cni_calico.flows.begins import BegunTogether
from cni_calico.flows.ends import EndedTogether
from cni_calico.flows.judging.unjudged import JudgedReports
from cni_calico.flows.names import Names
from cni_calico.flows.stores import FlowStore
from cni_calico.flows.untranslated import UntranslatedDecisions
from cni_calico.kernel.netlink.ended import TrackedConnection


class TakenTogether:
    """Before ``deciding``."""

    def __init__(self, deciding: UntranslatedDecisions, store: FlowStore, judged: JudgedReports, names: Names) -> None:
        self._begins = BegunTogether(deciding, store, judged, names)
        self._ends = EndedTogether(deciding, store)

    def receive(
        self,
        decisions: Sequence[DecidedPacket],
        ended: Sequence[TrackedConnection],
        now: int,
        new: MutableMapping[int, None] | None,
    ) -> None:
        """``now``: microseconds since 1970. ``new``: gets the numbers of records that are new, or denied now, if
        somebody wants to know.
        """
        self._begins.decide_all(decisions, now, new)
        self._ends.end_all(ended, now)
