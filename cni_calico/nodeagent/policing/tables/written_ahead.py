"""PURE: the chains of policies, kept up to date; those of a large policy can be made ahead, part by part.

Rule: whether a policy is large follows from its text alone. A large policy's rules look up the networks of every
selector, whether it has any or not, so what is made ahead does not depend on members that change meanwhile. What is
made ahead is not led to by anything, and counts only if the policy and the settings are still the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from cni_calico.netfilter.rules import RETURN, HasMark, NftRule
from cni_calico.nodeagent.policing.tables import parts
from cni_calico.nodeagent.policing.tables.chains import has_pass, render_denied, render_policy, render_rules
from cni_calico.nodeagent.policing.tables.matches import CannotRender
from cni_calico.nodeagent.policing.tables.naming import policy_chain
from cni_calico.nodeagent.policing.tables.parts import ChainPart, PartedChain
from cni_calico.nodeagent.policing.tables.sets import FilterSets
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.touched import FILTER, GoalTables
from cni_calico.policy.budget import count_rules
from cni_calico.policy.wanted import PolicyId, WantedPolicy

_SERVICES = "s-service-"

PolicyForm = tuple[int, bool, bool]  # family, ingress, whether Deny drops instead of rejecting
FORMS: tuple[PolicyForm, ...] = tuple(
    (family, *form) for family in (4, 6) for form in ((True, False), (False, False), (False, True))
)


@dataclass(slots=True, eq=False)
class _Staged:
    """What has been made ahead. ``forms``: the finished ones; ``names``: all parts by table."""

    policy: WantedPolicy
    settings: FilterSettings
    forms: dict[PolicyForm, PartedChain] = field(default_factory=dict)
    names: list[tuple[PolicyForm, str]] = field(default_factory=list)


class PolicyChains:
    """``why_denied(policy)``: why a policy must deny instead; "" if it need not. ``drops(policy)``: whether its egress
    is needed in a form that drops. ``problems``: the policies that deny, and why.
    """

    def __init__(
        self,
        tables: GoalTables,
        sets: FilterSets,
        settings: Callable[[], FilterSettings],
        why_denied: Callable[[WantedPolicy], str],
        drops: Callable[[PolicyId], bool],
    ) -> None:
        self.problems: dict[PolicyId, str] = {}
        self._tables, self._sets = tables, sets
        self._settings, self._why_denied, self._drops = settings, why_denied, drops
        self._staged: dict[PolicyId, _Staged] = {}
        self._pinned: dict[PolicyId, frozenset[str]] = {}  # by policies in force

    @property
    def staged(self) -> tuple[PolicyId, ...]:
        """The policies that are being made ahead."""
        return tuple(self._staged)

    def is_large(self, policy: WantedPolicy) -> bool:
        if self._settings().by_iptables or (not policy.tier and (has_return(policy))):
            return False
        return len(policy.rules()) > parts.LARGE_RULES or count_rules(policy) > parts.LARGE_RULES

    # -- ahead --------------------------------------------------------------------------------------------------------

    def stage(self, policy: WantedPolicy) -> Iterator[None]:
        """Make a large policy's parts, one at each step; the sets that its rules name exist."""
        self.unstage(policy.id)
        staged = self._staged[policy.id] = _Staged(policy, self._settings())
        self._sets.pin(_selected(policy))
        for form in FORMS:
            if not self._is_needed(policy, form):
                continue
            found: list[ChainPart] = []
            steps = self._split(policy, form)
            while True:
                if self._staged.get(policy.id) is not staged or staged.settings != self._settings():
                    return
                try:
                    part = next(steps, None)
                except (CannotRender, ValueError, OverflowError):
                    return  # the policy will deny
                if part is None:
                    break
                found.append(part)
                staged.names.append((form, part.chain.name))
                self._tables.put_part(FILTER[form[0]], part)
                yield
            staged.forms[form] = self._join(policy, form, found)

    def unstage(self, policy: PolicyId) -> None:
        """What has been made ahead is in force by now, or not needed."""
        staged = self._staged.pop(policy, None)
        if staged is None:
            return
        self._sets.unpin(_selected(staged.policy))
        for form, name in staged.names:
            self._tables.forget_part(FILTER[form[0]], name)

    # -- in force -----------------------------------------------------------------------------------------------------

    def render(self, policy: WantedPolicy) -> None:
        self.problems.pop(policy.id, None)
        large = self.is_large(policy)
        pinned, before = _selected(policy) if large else frozenset(), self._pinned.pop(policy.id, frozenset())
        if pinned:
            self._sets.pin(pinned)
            self._pinned[policy.id] = pinned
        for form in FORMS:
            table, name = FILTER[form[0]], _name(policy.id, form)
            if self._is_needed(policy, form):
                self._tables.put_parted(table, self._rendered(policy, form, large=large))
            else:
                self._tables.drop_parted(table, name)
        self._sets.unpin(before)

    def drop(self, policy: PolicyId) -> None:
        self.problems.pop(policy, None)
        for form in FORMS:
            self._tables.drop_parted(FILTER[form[0]], _name(policy, form))
        self._sets.unpin(self._pinned.pop(policy, frozenset()))

    def _is_needed(self, policy: WantedPolicy, form: PolicyForm) -> bool:
        family, ingress, drops = form
        governs = not policy.tier or (policy.ingress if ingress else policy.egress) is not None
        families = (4, 6) if self._settings().ipv6 else (4,)
        return governs and family in families and not (drops and not self._drops(policy.id))

    def _rendered(self, policy: WantedPolicy, form: PolicyForm, *, large: bool) -> PartedChain:
        why = self._why_denied(policy)
        staged = self._staged.get(policy.id)
        if not why and staged is not None and staged.policy is policy and staged.settings == self._settings():
            ready = staged.forms.get(form)
            if ready is not None:
                return ready
        if not why:
            try:
                if large:
                    return self._join(policy, form, list(self._split(policy, form)))
                return self._whole(policy, form)
            except (CannotRender, ValueError, OverflowError) as e:
                why = f"it cannot be rendered: {e}"
        self.problems[policy.id] = why
        _, ingress, drops = form
        return PartedChain(render_denied(policy.id, ingress, why, self._settings(), drops=drops))

    def _whole(self, policy: WantedPolicy, form: PolicyForm) -> PartedChain:
        family, ingress, drops = form

        def has_networks(name: str) -> bool:
            return self._sets.has_networks(family, name)

        chain, lists = render_policy(policy, ingress, family, self._settings(), has_networks, drops=drops)
        return PartedChain(chain, (), lists)

    def _split(self, policy: WantedPolicy, form: PolicyForm) -> Iterator[ChainPart]:
        """Raises CannotRender."""
        family, ingress, drops = form
        rendered = render_rules(policy, ingress, family, self._settings(), _may_have_networks, drops=drops)
        sets = {name for rule in policy.rules() for name in rule.set_ids()}
        return parts.split(_name(policy.id, form), rendered, len(sets))

    def _join(self, policy: WantedPolicy, form: PolicyForm, found: list[ChainPart]) -> PartedChain:
        mark = HasMark(self._settings().pass_mark)
        passed = NftRule((mark,), (RETURN,)) if has_pass(policy, form[1]) else None
        return parts.join(_name(policy.id, form), found, passed)


def has_return(profile: WantedPolicy) -> bool:
    """Whether a profile may be left early; nothing marks the packet then."""
    return any(rule.action == "Pass" for rule in profile.rules())


def _name(policy: PolicyId, form: PolicyForm) -> str:
    return policy_chain(policy, form[1], drops=form[2])


def _may_have_networks(name: str) -> bool:
    return not name.startswith(_SERVICES)


def _selected(policy: WantedPolicy) -> frozenset[str]:
    """The sets whose networks a large policy's rules look up."""
    sides = (side for rule in policy.rules() for side in (rule.source, rule.destination))
    return frozenset(name for side in sides for name in (*side.sets, *side.not_sets) if _may_have_networks(name))
