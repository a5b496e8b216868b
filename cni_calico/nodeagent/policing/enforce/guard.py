"""Puts the standing rules into force where no policy is enforced.

Rule: a failure leaves what there is, is reported, and is tried again, soon at first and then less often; it does not
make the node unready, because nobody's network may depend on an update that only adds rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from cni_calico.backoff import Backoff
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, RulesRefused
from cni_calico.netfilter.tables import TableId
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.nodeagent.dataplane.encapsulation import IPIP, VXLAN
from cni_calico.nodeagent.policing.enforce.enforcer import Enforcer
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.matches import NETWORKS
from cni_calico.nodeagent.policing.tables.standing import EARLY, select_early, select_standing
from cni_calico.nodeagent.policing.tables.touched import FILTER
from cni_calico.nodeagent.policing.tables.tunnels import KNOWN_NODES, NODES, Tunnels
from cni_calico.nodeagent.status.policing import Standing

DEVICES = frozenset((IPIP, *VXLAN.values()))
_APPLY_S, _AGAIN_S, _AGAIN_LAST_S, _FORGIVE_S = 60.0, 1.0, 30.0, 180.0


_TUNNEL_PARTS = (KNOWN_NODES, NODES, NODES + NETWORKS)
_EARLY = (
    "not every record has been read yet: of the standing rules only those for tunnels, packets of tunnels from "
    "workloads, and 127.0.0.0/8 are in force"
)


class StandingGuard:
    """For the engine's thread. ``stands``: whether the standing rules are in force, with policies or without;
    ``begins`` is called whenever they come into force.
    """

    def __init__(
        self,
        enforcer: Enforcer,
        goal: Goal,
        now: Callable[[], float] = time.monotonic,
        begins: Callable[[], None] = lambda: None,
    ) -> None:
        self.stands = False
        self.why_not = ""
        self.refused = ""  # why the packet filter refuses tunnels' rules, where no policy is to be enforced
        self.next_look = float("inf")
        self.tunnels = Tunnels()
        self._enforcer = enforcer
        self._goal = goal
        self._now, self._begins = now, begins
        self._again = Backoff(_AGAIN_S, _AGAIN_LAST_S)
        self._failed_with: object = None  # the tunnels and settings of the last attempt, if that failed
        self._early: object = None  # for which tunnels and parameters the early rules are in force
        self.keeps: bool | None = None  # whether an earlier run's rules stay, more than the early ones; None: unknown

    @property
    def has_rules(self) -> bool:
        """Whether any standing rules are in the kernel, as far as is known: all, the early ones, an earlier run's."""
        return self.stands or self._early is not None or bool(self.keeps)

    def chains(self) -> frozenset[str]:
        """The names of our chains in the kernel; none if they cannot be read."""
        try:
            return self._enforcer.read_chain_names(Deadline.after(_APPLY_S))
        except CalicoError:
            return frozenset()

    def with_policies(self) -> None:
        """They are in force together with the policies."""
        before, self.stands = self.stands, True
        self.why_not, self.refused, self.next_look = "", "", float("inf")
        self._early = self._failed_with = None
        self._again.reset()
        if not before:
            self._begins()

    # -- before everything has been read ------------------------------------------------------------------------------

    def stand_early(self, felix: FelixSettings) -> bool:
        """Put the part into force that needs only parameters and tunnels, unless an earlier run has left its rules:
        those stay as they are. Returns whether the early rules, and no others, are in force.
        """
        if self.stands:  # all of them, perhaps with policies, while a listing is read that a new rule needs
            return False
        wanted = (felix, self.tunnels)
        if felix.standing_rules != "Enabled" or self.keeps or self._early == wanted:
            return self._early is not None
        now = self._now()
        if self.why_not and now < self.next_look:
            return self._early is not None
        try:
            self._enforcer.only(select_early)
            if self.keeps is None:
                self.keeps = self._enforcer.has_other_chains(EARLY, Deadline.after(_APPLY_S))
            if not self.keeps:
                self._enforcer.bring_about(Deadline.after(_APPLY_S))
                self._early, self.why_not = wanted, ""
                self._again.reset()
        except CalicoError as e:
            self.why_not, self.next_look = str(e), now + self._again.next()
        return self._early is not None

    def describe_early(self, before: Standing, felix: FelixSettings, error: str) -> Standing:
        """The status while not everything has been read; ``error``: why not, "" if it just takes time."""
        warnings = (_EARLY,) if self.stand_early(felix) else ()
        policed = felix.policy_enforcement == "Enabled"  # as far as is known
        said = replace(self.describe(before, felix, policed=policed), unguardable=before.unguardable, warnings=warnings)
        return replace(said, decided=True, failing=error) if error else said

    def describe(self, before: Standing, felix: FelixSettings, *, policed: bool) -> Standing:
        """``before`` with what the standing rules do and do not. ``policed``: policies are in force."""
        return replace(
            before,
            problems=self.problems(),
            guarded=self.guarded(felix, policed=policed),
            vxlan_ports=self.vxlan_ports(felix, policed=policed),
            unguardable=self.refused,
        )

    # -- where no policy is enforced ----------------------------------------------------------------------------------

    def stand_or_leave(self, felix: FelixSettings, refresh_s: float) -> None:
        """Put them into force, or remove them if they are not wanted. As ``stand``."""
        if felix.standing_rules == "Enabled":
            self.stand(refresh_s)
        else:
            self.leave()

    def stand(self, refresh_s: float) -> None:
        """Put them, and nothing else, into force. ``refresh_s``: how often they are compared with the kernel. Raises
        CalicoError if policies' rules could not be removed.
        """
        self._enforcer.only(select_standing)
        now, wanted = self._now(), (self.tunnels, self._goal.settings)
        if self._failed_with == wanted and now < self.next_look and not self._enforcer.is_there:
            return  # the rounds themselves try again if policies' rules are there
        if self.next_look == float("inf"):
            self.next_look = now + (refresh_s or _FORGIVE_S)
        elif now >= self.next_look:
            self._enforcer.doubt()
            self._goal.forgive()
            self.next_look = now + (refresh_s or _FORGIVE_S)
        try:
            self._enforcer.bring_about(Deadline.after(_APPLY_S))
        except CalicoError as e:
            self.why_not, self.next_look, self._failed_with = str(e), now + self._again.next(), wanted
            self.refused = str(e) if isinstance(e, RulesRefused) else ""
            if self._enforcer.is_there:
                raise
            return
        before, self.stands, self.why_not, self._early = self.stands, True, "", None
        if self._failed_with is not None:
            self._failed_with, self.next_look = None, now + (refresh_s or _FORGIVE_S)
        self._again.reset()
        withheld = self._goal.refused.withheld.items()
        self.refused = "; ".join(why for (_, name), why in withheld if name in _TUNNEL_PARTS)
        if not before:
            self._begins()

    def guarded(self, felix: FelixSettings, *, policed: bool) -> frozenset[str]:
        """Tunnel devices whose rules are in force; all of them where none are wanted. ``policed``: policies are."""
        if not policed and felix.standing_rules != "Enabled":
            return DEVICES
        tunnels = self.tunnels
        withheld = self._goal.refused.withheld
        there = {
            family: self._holds(table, KNOWN_NODES) and (table, KNOWN_NODES) not in withheld
            for family, table in FILTER.items()
        }
        names = {VXLAN[family] for family in tunnels.vxlan if there[family]}
        return frozenset(names | ({IPIP} if tunnels.ipip and there[4] else set()))

    def vxlan_ports(self, felix: FelixSettings, *, policed: bool) -> frozenset[int] | None:
        """The ports of VXLAN for which ``guarded`` is said; None: for any."""
        if not policed and felix.standing_rules != "Enabled":
            return None
        return self.tunnels.other_ports | {self._goal.settings.vxlan_port}

    def _holds(self, table: TableId, name: str) -> bool:
        """Whether the kernel has this chain as it is wanted now: an older one may lack a device's rule."""
        held, wanted = self._enforcer.held.get(table), self._goal.tables.of[table].chains.get(name)
        return held is not None and wanted is not None and held.chains.get(name) == wanted

    def leave(self) -> None:
        """Remove them with all that is ours."""
        if self._enforcer.held or self._enforcer.is_there:
            self._enforcer.remove(Deadline.after(_APPLY_S))
            self._enforcer.held.clear()
        self._enforcer.let_go()
        self.stands, self.why_not, self.refused, self.next_look = False, "", "", float("inf")
        self._early, self.keeps, self._failed_with = None, False, None
        self._again.reset()

    def problems(self) -> tuple[str, ...]:
        """In words."""
        said = f"the rules that guard tunnels and sources without policies are not in force: {self.why_not}"
        return (said,) if self.why_not else ()
