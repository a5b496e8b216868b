"""PURE: the chains of classes: endpoints with the same policies in the same order share one chain for each direction.

Rule: a class's chain depends on its policies' names, on which of them may pass a packet on to the next tier, and on the
settings. A class whose chain the kernel refused drops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet

from cni_calico.netfilter.rules import COMMENT_CHARACTERS, NftRule
from cni_calico.netfilter.tables import NftChain
from cni_calico.nodeagent.policing.tables import groups
from cni_calico.nodeagent.policing.tables.chains import AskedPolicies, has_pass, recorded, render_class
from cni_calico.nodeagent.policing.tables.groups import PolicyGroups
from cni_calico.nodeagent.policing.tables.naming import class_chain, quoted
from cni_calico.nodeagent.policing.tables.parts import ChainPart, PartedChain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER, GoalTables
from cni_calico.policy.wanted import PolicyId, WantedClass, WantedPolicy, WantedTier

_BOTH = tuple((family, ingress) for ingress in (True, False) for family in (4, 6))


class ClassChains:
    """``refused``: why the kernel refuses the chain of a class in a direction, "" if it does not."""

    def __init__(
        self, tables: GoalTables, settings: Callable[[], FilterSettings], refused: Callable[[str, bool], str]
    ) -> None:
        self.all: dict[str, WantedClass] = {}
        self._tables, self._settings, self._refused = tables, settings, refused
        self._groups = PolicyGroups()
        self._passing: dict[bool, set[PolicyId]] = {True: set(), False: set()}  # policies, by whether ingress

    def put(self, wanted: WantedClass) -> None:
        self.all[wanted.id] = wanted
        self.render(wanted)

    def remove(self, class_id: str) -> None:
        """What it shares with others stays."""
        del self.all[class_id]
        for family, ingress in _BOTH:
            self._tables.drop_parted(FILTER[family], class_chain(class_id, ingress))

    def render_all(self) -> None:
        for wanted in self.all.values():
            self.render(wanted)

    def render_asking(self, policies: AbstractSet[PolicyId]) -> None:
        """Those that ask one of these policies."""
        for wanted in self.all.values():
            if not policies.isdisjoint(wanted.policy_ids()):
                self.render(wanted)

    def render(self, wanted: WantedClass) -> None:
        families = (4, 6) if self._settings().ipv6 else (4,)
        for family, ingress in _BOTH:
            why = self._refused(wanted.id, ingress)
            if family not in families:
                self._tables.drop_parted(FILTER[family], class_chain(wanted.id, ingress))
            elif why:
                actions = recorded(self._settings(), "the kernel refuses its rules")
                deny = NftRule((), actions, quoted(why)[:COMMENT_CHARACTERS])
                chain = NftChain(class_chain(wanted.id, ingress), (deny,))
                self._tables.put_parted(FILTER[family], PartedChain(chain))
            else:
                self._tables.put_parted(FILTER[family], self._rendered(wanted, ingress, family))

    def _rendered(self, wanted: WantedClass, ingress: bool, family: int) -> PartedChain:
        settings, passing, used = self._settings(), self._passing[ingress], dict[str, ChainPart]()

        def grouped(tier: WantedTier) -> Iterator[AskedPolicies] | None:
            if len(tier.policies) < groups.GROUPED_FROM or settings.by_iptables:
                return None
            return self._groups.ask(tier.policies, ingress, settings, passing, used)

        chain = render_class(wanted, ingress, settings, passing.__contains__, grouped)
        return PartedChain(chain, tuple(used.values()))

    def forget_groups(self) -> None:
        """Call it after changes: what is not in use any more is not kept for long."""
        self._groups.forget(self._tables.of[FILTER[4]].chains.keys())

    # -- passing a packet on ------------------------------------------------------------------------------------------

    def may_pass(self, policy: PolicyId, ingress: bool) -> bool:
        return policy in self._passing[ingress]

    def note_passing(self, policy: PolicyId, wanted: WantedPolicy | None) -> bool:
        """Returns whether that has changed."""
        changed = False
        for ingress, passing in self._passing.items():
            if (wanted is not None and has_pass(wanted, ingress)) != (policy in passing):
                passing ^= {policy}
                changed = True
        return changed

    def assume_passing(self, policies: Mapping[bool, Collection[PolicyId]]) -> set[PolicyId]:
        """These may (by whether ingress), until they are noted again. Returns for which that is new."""
        new: set[PolicyId] = set()
        for ingress, passing in self._passing.items():
            new.update(policy for policy in policies[ingress] if policy not in passing)
            passing.update(policies[ingress])
        return new
