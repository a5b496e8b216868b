"""PURE: renders policies and classes of endpoints as chains of one family's table.

Rule: no verdict marks. Allow is ``accept``, which ends the base chain only, and the next stage is a base chain of its
own (stages.py); Deny is ``drop``. The one mark bit says "passed on to the next tier": set by a policy, it skips the
rest of the tier, at whose end it is cleared. Mark tests would not be needed if each tier's chain jumped to the next
tier's; but the kernel follows at most 16 jumps, and there may be more tiers.

    to-CLASS     invalid? drop. tier after tier: jump to each policy, end of tier. profiles. drop
    from-CLASS   the same, but tunnels' packets are dropped before the tiers
    pi-, po-     one policy, ingress and egress
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial

from cni_calico.flows.deciders import END, REFUSED, Decider
from cni_calico.netfilter.rules import (
    ACCEPT,
    COMMENT_CHARACTERS,
    DROP,
    RETURN,
    ConnectionIs,
    CountPacket,
    HasMark,
    IsProtocol,
    LogPacket,
    NftRule,
    NoTrack,
    PortIn,
    RateLimit,
    Reject,
    RuleAction,
    SetMark,
    jump,
)
from cni_calico.netfilter.tables import NftChain
from cni_calico.nodeagent.policing.tables.matches import HasNetworks, ListSet, Match, render_match
from cni_calico.nodeagent.policing.tables.naming import (
    class_chain,
    digest,
    log_prefix,
    policy_chain,
    quoted,
)
from cni_calico.nodeagent.policing.tables.parts import RenderedRules
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import PolicyId, WantedClass, WantedPolicy, WantedRule, WantedTier

AskedPolicies = tuple[tuple[RuleAction, ...], bool]  # what asks one or more policies; whether they may pass one on
_UDP, _IPIP = 17, 4
NOTHING_ALLOWED, INVALID = "no policy or profile allowed it", "invalid"
TRACKED = ConnectionIs(("established", "related"))
ESTABLISHED = NftRule((TRACKED,), (ACCEPT,))


def deny(settings: FilterSettings) -> RuleAction:
    """What Deny does; the caller knows whether rejecting is possible at its hook."""
    return Reject() if settings.reject else DROP


def recorded(settings: FilterSettings, decider: Decider | str, action: RuleAction = DROP) -> tuple[RuleAction, ...]:
    """Drop or reject; the recorder is told why, if there is one. ``decider``: as ``Recording.before_drop``."""
    recording = settings.recording
    return (action,) if recording is None else (*recording.before_drop(decider), action)


def drop_invalid(settings: FilterSettings) -> NftRule:
    return NftRule((ConnectionIs(("invalid",)),), recorded(settings, INVALID), INVALID)


def nothing_allowed(settings: FilterSettings, ingress: bool, action: RuleAction) -> NftRule:
    """Behind the last profile."""
    decider = Decider("Profile", "", "", "", ingress, END, "Deny")
    return NftRule((), recorded(settings, decider, action), NOTHING_ALLOWED)


def refused_whole(policy: PolicyId, ingress: bool) -> Decider:
    """A policy that denies because it cannot be enforced."""
    return Decider(policy.kind, policy.namespace, policy.name, "", ingress, REFUSED, "Deny")


def drop_and_tell(settings: FilterSettings, match: Match, reason: str) -> NftRule:
    """Count the packets, report them if that is possible, and drop them; ``reason`` is the rule's comment, too."""
    told = (LogPacket(reason, group=settings.report_group),) if settings.report_group else ()
    others = [action for action in recorded(settings, reason) if not isinstance(action, CountPacket)]
    return NftRule(match, (CountPacket(), *told, *others), reason)


# -- policies ---------------------------------------------------------------------------------------------------------


def has_pass(policy: WantedPolicy, ingress: bool) -> bool:
    """Whether a tier has to check the mark after this policy."""
    rules = policy.ingress if ingress else policy.egress
    return bool(policy.tier) and any(rule.action == "Pass" for rule in rules or ())


def _decider(policy: WantedPolicy, ingress: bool, index: int, rule: WantedRule) -> Decider:
    name = policy.id
    named, before = (name.kind, name.namespace, name.name, policy.tier), policy.reach == "beforeNat"
    place = REFUSED if rule.stands_in else index
    return Decider(*named, ingress, place, rule.action, digest(rule), untranslated=before)


def _actions(
    rule: WantedRule, policy: WantedPolicy, settings: FilterSettings, drops: bool, decider: Callable[[], Decider]
) -> tuple[RuleAction, ...]:
    recording = settings.recording
    if rule.action == "Allow":
        has_connection = policy.reach != "raw"
        told = () if recording is None else recording.before_accept(decider(), has_connection=has_connection)
        return (*_decided(policy, settings), *told, ACCEPT)
    if rule.action == "Deny":
        action = DROP if drops or policy.reach in ("beforeNat", "raw") else deny(settings)
        return (action,) if recording is None else recorded(settings, decider(), action)
    if rule.action == "Pass":
        return (SetMark(settings.pass_mark), RETURN) if policy.tier else (RETURN,)
    return (LogPacket(log_prefix(settings.log_prefix, policy.tier, policy.id)),)


def _log_rate(rule: WantedRule, settings: FilterSettings) -> Match:
    rate = settings.log_rate
    return () if rate is None or rule.action != "Log" else (RateLimit(rate.count, rate.per_s, rate.burst),)


def _decided(policy: WantedPolicy, settings: FilterSettings) -> tuple[RuleAction, ...]:
    """What Allow means in addition for doNotTrack and preDNAT policies: later stages of hosts are skipped."""
    if policy.reach in ("own", "forward"):
        return ()
    return (SetMark(settings.host_mark), *((NoTrack(),) if policy.reach == "raw" else ()))


def _comment(rule: WantedRule) -> str:
    return quoted(" ".join(f"{key}={value}" for key, value in rule.annotations))[:COMMENT_CHARACTERS]


def render_rules(
    policy: WantedPolicy,
    ingress: bool,
    family: int,
    settings: FilterSettings,
    has_networks: HasNetworks,
    *,
    drops: bool = False,
) -> Iterator[RenderedRules]:
    """The rules of one direction, rule by rule. Raises CannotRender."""
    for index, rule in enumerate((policy.ingress if ingress else policy.egress) or ()):
        rendered = render_match(rule, family, has_networks, by_iptables=settings.by_iptables)
        if rendered.matches:
            decider = partial(_decider, policy, ingress, index, rule)
            rate, actions = _log_rate(rule, settings), _actions(rule, policy, settings, drops, decider)
            comment = _comment(rule) if rule.annotations else ""
            rules = [NftRule(match + rate, actions, comment) for match in rendered.matches]
            yield RenderedRules(rules, rendered.lists)


def render_policy(
    policy: WantedPolicy,
    ingress: bool,
    family: int,
    settings: FilterSettings,
    has_networks: HasNetworks,
    *,
    drops: bool = False,
) -> tuple[NftChain, dict[str, ListSet]]:
    """Its chain in one direction, and the lists that its rules look up. Raises CannotRender."""
    rendered = tuple(render_rules(policy, ingress, family, settings, has_networks, drops=drops))
    rules = tuple(rule for one in rendered for rule in one.rules)
    lists = {name: listed for one in rendered for name, listed in one.lists.items()}
    return NftChain(policy_chain(policy.id, ingress, drops=drops), rules), lists


def render_denied(
    policy: PolicyId, ingress: bool, why: str, settings: FilterSettings, *, drops: bool = False
) -> NftChain:
    """Replaces a policy that cannot be rendered: packets that reach it are dropped."""
    actions = recorded(settings, refused_whole(policy, ingress))
    rule = NftRule((), actions, quoted(why)[:COMMENT_CHARACTERS])
    return NftChain(policy_chain(policy, ingress, drops=drops), (rule,))


# -- classes ----------------------------------------------------------------------------------------------------------


def render_class(
    wanted: WantedClass,
    ingress: bool,
    settings: FilterSettings,
    passes: Callable[[PolicyId], bool],
    grouped: Callable[[WantedTier], Iterable[AskedPolicies] | None] = lambda _: None,
) -> NftChain:
    """The chain of a class in one direction. ``grouped``: for a tier whose policies are asked in groups, what asks
    these.
    """
    tiers = wanted.ingress if ingress else wanted.egress
    asked = [grouped(tier) or _ask_each(tier, ingress, passes) for tier in tiers]
    rules = [
        *_before_tiers(ingress, settings),
        *_ask_tiers(tiers, ingress, asked, settings, deny(settings)),
        *(NftRule((), (jump(policy_chain(profile, ingress)),)) for profile in wanted.profiles),
        nothing_allowed(settings, ingress, deny(settings)),
    ]
    return NftChain(class_chain(wanted.id, ingress), tuple(rules))


def _before_tiers(ingress: bool, settings: FilterSettings) -> Iterator[NftRule]:
    if settings.drop_invalid:
        yield drop_invalid(settings)
    if not ingress:
        yield from encapsulated_from_workload(settings)


def encapsulated_from_workload(settings: FilterSettings) -> Iterator[NftRule]:
    """Drop tunnels' packets; the caller sees to it that only workloads' packets come here."""
    if not settings.allow_vxlan:
        match = (IsProtocol(_UDP), PortIn(False, settings.vxlan_port, settings.vxlan_port))
        yield _recorded_rule(settings, match, "VXLAN from a workload")
    if not settings.allow_ipip:
        yield _recorded_rule(settings, (IsProtocol(_IPIP),), "IPIP from a workload")


def _recorded_rule(settings: FilterSettings, match: Match, reason: str) -> NftRule:
    return NftRule(match, recorded(settings, reason), reason)


def ask(
    policy: PolicyId, ingress: bool, denied: Collection[PolicyId], settings: FilterSettings, *, drops: bool = False
) -> tuple[RuleAction, ...]:
    """Continue in the policy's chain. A policy in ``denied`` has no chain, and packets that would reach it are
    dropped.
    """
    if policy in denied:
        return recorded(settings, refused_whole(policy, ingress))
    return (jump(policy_chain(policy, ingress, drops=drops)),)


def render_tiers(
    tiers: Sequence[WantedTier],
    ingress: bool,
    settings: FilterSettings,
    passes: Callable[[PolicyId], bool],
    *,
    drops: bool = False,
    denied: Collection[PolicyId] = (),
) -> Iterator[NftRule]:
    """``drops``: at a hook where nothing can be rejected (egress only). ``denied``: policies that have no chain."""
    asked = [
        [(ask(policy, ingress, denied, settings, drops=drops), passes(policy)) for policy in tier.policies]
        for tier in tiers
    ]
    yield from _ask_tiers(tiers, ingress, asked, settings, DROP if drops else deny(settings))


def _ask_each(tier: WantedTier, ingress: bool, passes: Callable[[PolicyId], bool]) -> Iterable[AskedPolicies]:
    return [((jump(policy_chain(policy, ingress)),), passes(policy)) for policy in tier.policies]


def _ask_tiers(
    tiers: Sequence[WantedTier],
    ingress: bool,
    asked: Iterable[Iterable[AskedPolicies]],
    settings: FilterSettings,
    ends: RuleAction,
) -> Iterator[NftRule]:
    found = [tuple(one) for one in asked]
    if any(may_pass for one in found for _, may_pass in one):
        yield NftRule((), (SetMark(settings.pass_mark, cleared=True),))
    for tier, its in zip(tiers, found, strict=True):
        yield from ask_in_turn(its, settings)
        not_passed = _not_passed(settings) if any(may_pass for _, may_pass in its) else ()
        if tier.end == "Deny":
            comment = f"end of tier {quoted(tier.name)}"[:COMMENT_CHARACTERS]
            last = tier.policies[-1]
            decider = Decider(last.kind, last.namespace, last.name, tier.name, ingress, END, "Deny")
            yield NftRule(not_passed, recorded(settings, decider, ends), comment)
        if not_passed:
            yield NftRule((), (SetMark(settings.pass_mark, cleared=True),), "passed")


def _not_passed(settings: FilterSettings) -> Match:
    return (HasMark(settings.pass_mark, negated=True),)


def ask_in_turn(asked: Iterable[AskedPolicies], settings: FilterSettings) -> Iterator[NftRule]:
    """The rules that ask them; no mark test is needed until one may have set the mark."""
    not_passed: Match = ()
    for actions, may_pass in asked:
        yield NftRule(not_passed, actions)
        if may_pass:
            not_passed = _not_passed(settings)
