"""What host endpoints decide about recorded flows, by two states of policy.

Rule: what is not known of a flow (where it was sent before translation, its source port) leaves every answer that a
stage may give. What a stage whose rules are the same may answer is the same before and after.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import ip_address
from itertools import product
from typing import NamedTuple

from cni_calico.ctl.policy.at_hosts.facts import KnownHosts
from cni_calico.ctl.policy.at_hosts.ways import HostWay, PassedStage
from cni_calico.ctl.policy.hosts import is_open
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Decision, Packet, asked_host
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.judge.asked import names_of
from cni_calico.policy.judge.cells import AskedEachTime, JudgedPacket, plane_of
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Packed, PolicyId, Wanted, WantedTier

_STAGES = {"raw": "doNotTrack", "beforeNat": "preDNAT", "forward": "forwarded", "own": "the host itself"}
_EARLY = "raw", "beforeNat"
_TRANSLATED = "it is not recorded where the connection was sent, and a {} policy may decide by that"
PORTS = "the source port decides, and sums have none"


class AskedFlow(NamedTuple):
    """``first``, ``second``: what a cell is asked for, ``second`` -1: it is not known. ``sent``: the address and port
    to which it was sent, before translation; None: that is not known.
    """

    source: Packed
    destination: Packed
    protocol: int
    first: int
    second: int
    sent: tuple[Packed, int] | None


class HostAnswer(NamedTuple):
    """Of one stage, or of all of a way. ``by`` None: nothing, or it is not known which rule. ``at``: where it was.
    ``untracked``: let through by a doNotTrack policy. ``early``: before translation.
    """

    denied: bool
    by: Decision | None = None
    at: str = ""
    untracked: bool = False
    early: bool = False


BothAnswers = tuple[HostAnswer | None, HostAnswer | None]  # before and after; None: it goes on


@dataclass(frozen=True, slots=True)
class HostOutcome:
    """Before and after. ``why``: what is not known on which it depends. ``guessed``: as if the connection had not been
    sent to a failsafe port and translated.
    """

    before: HostAnswer
    after: HostAnswer
    why: str = ""
    guessed: bool = False


class StageOutcomes:
    """``before`` and ``after`` of the same host endpoints, and judges of them."""

    def __init__(self, facts: KnownHosts, before: Wanted, after: Wanted, judges: tuple[Judge, Judge]) -> None:
        self._facts, self._states, self._judges = facts, (before, after), judges
        self._known = before.hosts.keys() & after.hosts.keys()
        self._same = lru_cache(None)(self._is_same)

    def outcomes(self, asked: AskedFlow, way: HostWay) -> Iterator[HostOutcome]:
        """What may have become of it on this way, and would become of it."""
        chains: dict[tuple[str, str], list[PassedStage]] = {}
        for stage in way:
            if stage.key in self._known:
                chains.setdefault((stage.node, stage.direction), []).append(stage)
        each = [self._of_chain(asked, chain) for chain in chains.values()]
        for ends in product(*(found for found, _ in each)):
            why = "; ".join(dict.fromkeys(why for _, why in each if why))
            before, after = (_together(one[which] for one in ends) for which in (0, 1))
            yield HostOutcome(before, after, why, asked.sent is None and any(one.reach in _EARLY for one in way))

    def _of_chain(self, asked: AskedFlow, stages: list[PassedStage]) -> tuple[list[BothAnswers], str]:
        """Of one direction at one node: the first stage that decides is the last."""
        states: dict[BothAnswers, None] = {(None, None): None}
        why = ""
        for stage in stages:
            if all(was is not None and now is not None for was, now in states):
                break
            answers, unknown = self._of_stage(asked, stage)
            why = why or unknown
            states = dict.fromkeys((was or answer[0], now or answer[1]) for was, now in states for answer in answers)
        return list(states), why

    def _of_stage(self, asked: AskedFlow, stage: PassedStage) -> tuple[list[BothAnswers], str]:
        nothing: list[BothAnswers] = [(None, None)]
        hosts = self._states[0].hosts
        if stage.reach == "raw" and hosts[stage.key].interface == ALL_INTERFACES:
            return nothing, ""
        everywhere = stage.everywhere if stage.everywhere in self._known else None
        before, after = (asked_host(state, stage.key, everywhere, stage.reach) for state in self._states)
        tiers = [self._tiers(which, key, stage) for which, key in enumerate((before, after))]
        if stage.reach != "own" and not any(tiers):
            return nothing, ""
        same = before == after and self._same(before, stage)
        is_early, is_guessed = stage.reach in _EARLY, False
        destination, first = asked.destination, asked.first
        if is_early and asked.sent is not None:
            destination = asked.sent[0]
            first = asked.sent[1] if asked.protocol in WITH_PORTS else first
        elif is_early and self._asks_destination((before, after), stage):
            return _either(_any_answer(stage), same=same), _TRANSLATED.format(_STAGES[stage.reach])
        elif is_early:
            is_guessed = True  # whatever the destination is, but for failsafe ports: nothing is translated from those
        packet = _packet(asked, destination, 0 if is_guessed else first)
        felix = self._facts.views[stage.node].felix
        if stage.reach != "forward" and is_open(stage.reach, stage.direction, felix, packet):
            return nothing, ""
        found: list[list[HostAnswer | None]] = []
        why = ""
        for which, key in enumerate((before, after)):
            cell = self._judges[which].cell(
                self._judges[which].of_host(key, stage.reach, stage.direction),
                asked.source,
                destination,
                asked.protocol,
            )
            if not tiers[which] and stage.reach != "own":
                found.append([None])
            elif asked.second >= 0:
                found.append([_answer(cell.find(first, asked.second), stage, key)])
            elif isinstance(cell, AskedEachTime):
                found.append([one for one, _ in _any_answer(stage)])
                why = PORTS
            else:
                plane = plane_of(asked.protocol, 4 if len(asked.source) == 4 else 6)
                answers = dict.fromkeys(_answer(judged, stage, key) for _, judged in cell.across(first, plane))
                found.append(list(answers))
                why = why or (PORTS if len(answers) > 1 else "")
        if same:
            return [(one, one) for one in found[0]], why
        return [(was, now) for was in found[0] for now in found[1]], why

    # -- what is asked ------------------------------------------------------------------------------------------------

    def _tiers(self, which: int, key: ResourceKey, stage: PassedStage) -> tuple[WantedTier, ...]:
        state = self._states[which]
        return state.host_classes[state.hosts[key].class_id].tiers(stage.reach, stage.direction == "ingress")

    def _policies(self, which: int, key: ResourceKey, stage: PassedStage) -> list[PolicyId]:
        found = [policy for tier in self._tiers(which, key, stage) for policy in tier.policies]
        state = self._states[which]
        return found + list(state.host_classes[state.hosts[key].class_id].profiles if stage.reach == "own" else ())

    def _is_same(self, key: ResourceKey, stage: PassedStage) -> bool:
        """Whether nothing that the stage decides by has changed."""
        contents = []
        for which, state in enumerate(self._states):
            policies = [state.policies[policy] for policy in self._policies(which, key, stage)]
            sets = {name for policy in policies for rule in policy.rules() for name in rule.set_ids()}
            contents.append((self._tiers(which, key, stage), policies, {name: state.sets[name] for name in sets}))
        return contents[0] == contents[1]

    def _asks_destination(self, keys: tuple[ResourceKey, ResourceKey], stage: PassedStage) -> bool:
        for which, key in enumerate(keys):
            versions = [self._states[which].policies[policy] for policy in self._policies(which, key, stage)]
            sets, nets = names_of(versions, stage.direction).of_side(source=False)
            rules = [rule for one in versions for rule in one.rules()]
            if sets or nets or any(rule.destination.ports or rule.destination.not_ports for rule in rules):
                return True
        return False


def _packet(asked: AskedFlow, destination: Packed, first: int) -> Packet:
    """An unknown source port is one that no service has."""
    ends = ip_address(asked.source), ip_address(destination)
    if asked.protocol in WITH_PORTS:
        return Packet(*ends, asked.protocol, max(asked.second, 0), first)
    icmp = (first, asked.second) if asked.protocol in ICMP.values() else (0, 0)
    return Packet(*ends, asked.protocol, 0, 0, icmp)


def _any_answer(stage: PassedStage) -> list[BothAnswers]:
    early = stage.reach in _EARLY
    passes = HostAnswer(False, untracked=stage.reach == "raw", early=early)
    return [(None, None), (passes, passes), (HostAnswer(True, early=early), HostAnswer(True, early=early))]


def _either(found: list[BothAnswers], *, same: bool) -> list[BothAnswers]:
    return found if same else [(was, now) for was, _ in found for _, now in found]


def _answer(judged: JudgedPacket, stage: PassedStage, key: ResourceKey) -> HostAnswer | None:
    decision = judged.decision
    if decision is None:
        return None
    at = f"HostEndpoint {key.name} ({_STAGES[stage.reach]})"
    is_denied = decision.verdict == "Deny"
    return HostAnswer(is_denied, decision, at, stage.reach == "raw" and not is_denied, stage.reach in _EARLY)


def _together(answers: Iterable[HostAnswer | None]) -> HostAnswer:
    """Of all directions: what denies, else the last that decided."""
    found = HostAnswer(False)
    untracked = False
    for one in answers:
        if one is None:
            continue
        untracked = untracked or one.untracked
        if one.denied:
            return one
        found = one
    return found._replace(untracked=untracked)
