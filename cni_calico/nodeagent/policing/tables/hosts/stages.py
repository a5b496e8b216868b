"""PURE: host endpoints as base chains of one family's table, maps and chains of their classes.

Rule: a stage exists only while a host endpoint needs it. Failsafe ports, what tunnels carry between nodes, and
neighbour discovery on a link come before any policy, in the same chain or base chain: no policy is ever in force
without them.

    prerouting  -298  host-raw-in           doNotTrack, before connection tracking; not for "*"
                -150  host-before-nat       preDNAT, before anybody translates the destination; that of "*" also at
                                            interfaces to whose own host endpoint no preDNAT policy applies
    forward     1     host-in-forward       forwarded, as it comes in: applyOnForward, and nothing invalid
                4     host-out-forward      forwarded, as it goes out
                6     host-forwarded        translated and forwarded: not the host's own when it leaves
    input       3     host-in               to the host itself, but not from its workloads
    output      -298  host-raw-out          doNotTrack
                1     host-out              of the host itself, but not to its workloads
    postrouting -150  host-out-translated   the same where the destination was translated: the interface is known now

What ip_vs forwards is no packet of the host's own: ipvs.py has its stages, and host-in stands behind ip_vs, at 103.

The mark bit means that the stages of hosts have decided: doNotTrack and preDNAT policies set it when they allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    AtInterface,
    HasMark,
    IcmpType,
    IsProtocol,
    IsTranslated,
    NftRule,
    PortIn,
    SetMark,
    jump,
)
from cni_calico.netfilter.tables import BaseHook, NftChain, NftSet
from cni_calico.nodeagent.policing.tables.chains import (
    ESTABLISHED,
    ask,
    deny,
    drop_invalid,
    nothing_allowed,
    recorded,
    render_tiers,
)
from cni_calico.nodeagent.policing.tables.matches import Match, in_network
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import through, to_host_hook
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels, between_nodes
from cni_calico.policy.failsafe import FailsafePort
from cni_calico.policy.wanted import PolicyId, PolicyReach, WantedHostClass

Passes = Callable[[PolicyId, bool], bool]  # (policy, ingress): whether it may set the mark of Pass
_NEIGHBOURS, _LISTENERS = (130, 136), 143  # ICMPv6 of a link: listeners, routers, neighbours; listeners, version 2
_TCP, _ICMPV6 = 6, 58


@dataclass(frozen=True, slots=True)
class HostStage:
    """``name`` is the base chain's and the map's."""

    name: str
    hook: BaseHook
    reach: PolicyReach
    ingress: bool

    @property
    def map(self) -> NftSet:
        return NftSet(f"{self.name}-by-interface", ("ifname",), verdicts=True)

    @property
    def is_out(self) -> bool:
        """Whether the interface by which a packet goes out is asked."""
        return not self.ingress

    @property
    def what(self) -> str:
        """What it decides about, in words."""
        if self.reach == "forward":
            return f"everything forwarded that {'comes in' if self.ingress else 'goes out'}"
        but = "except failsafe ports"
        if self.reach == "own":
            return f"everything {'to' if self.ingress else 'from'} the host itself, {but},"
        return f"everything that {'comes in' if self.ingress else 'the host sends'}, {but},"

    def chain_of(self, class_id: str) -> str:
        return f"{self.name}-{class_id}"


RAW_IN = HostStage("host-raw-in", BaseHook("prerouting", -298), "raw", True)
BEFORE_NAT = HostStage("host-before-nat", BaseHook("prerouting", -150), "beforeNat", True)
IN_FORWARD = HostStage("host-in-forward", BaseHook("forward", 1), "forward", True)
IN = HostStage("host-in", BaseHook("input", 3), "own", True)
OUT_FORWARD = HostStage("host-out-forward", BaseHook("forward", 4), "forward", False)
RAW_OUT = HostStage("host-raw-out", BaseHook("output", -298), "raw", False)
OUT = HostStage("host-out", BaseHook("output", 1), "own", False)
HOST_STAGES = (RAW_IN, BEFORE_NAT, IN_FORWARD, IN, OUT_FORWARD, RAW_OUT, OUT)
_TRANSLATED, _FORWARDED = "host-out-translated", "host-forwarded"
_FAILSAFE, _FAILSAFE_RAW = "failsafe", "failsafe-raw"


@dataclass(frozen=True, slots=True)
class HostView:
    """Everything that the stages depend on. ``by_interface`` and ``everywhere``: ids of ``classes``, "" for none."""

    classes: Mapping[str, WantedHostClass] = field(default_factory=dict)
    by_interface: Mapping[str, str] = field(default_factory=dict)
    everywhere: str = ""
    excluded: tuple[str, ...] = ()
    tunnels: Tunnels = field(default_factory=Tunnels)
    denied: frozenset[PolicyId] = frozenset()  # there is no chain of theirs
    refused: frozenset[str] = frozenset()  # chains of classes that the kernel does not take as they should be

    def used(self) -> frozenset[str]:
        return frozenset((*self.by_interface.values(), *((self.everywhere,) if self.everywhere else ())))

    def asked(self, stage: HostStage, class_id: str) -> str:
        """The class that decides in a stage for an interface whose own host endpoint has this class."""
        if stage is BEFORE_NAT and self.everywhere and not self.classes[class_id].before_nat:
            return self.everywhere
        return class_id


@dataclass(slots=True)
class RenderedHosts:
    """``chains`` may hold a chain twice. ``leads``: for each map, interfaces and the chains they lead to."""

    chains: list[NftChain] = field(default_factory=list)
    leads: dict[NftSet, dict[str, str]] = field(default_factory=dict)


def render_hosts(
    family: int, view: HostView, settings: FilterSettings, passes: Passes, *, has_networks: bool
) -> RenderedHosts:
    """``has_networks``: there are networks among the nodes of this family, in a separate set."""
    done = RenderedHosts()
    stages = used_stages(view, settings)
    if not stages:
        return done
    for stage in stages:
        done.leads[stage.map] = {name: stage.chain_of(view.asked(stage, of)) for name, of in view.by_interface.items()}
        for class_id in sorted(view.used()):
            if stage.reach == "raw" and class_id not in view.by_interface.values():
                continue
            done.chains.append(_class_chain(stage, view.classes[class_id], settings, passes, view))
        nodes = between_nodes(family, view.tunnels, settings, is_source=stage.ingress, has_networks=has_networks)
        rules = tuple(_base(stage, stages, view, family, settings, tuple(nodes)))
        hook = to_host_hook(stage.hook.priority, settings) if stage is IN else stage.hook
        done.chains.append(NftChain(stage.name, rules, hook))
        if stage.reach != "forward":
            done.chains.append(_failsafe(stage, family, settings))
    done.chains += _translated(stages, view, settings)
    return done


def used_stages(view: HostView, settings: FilterSettings) -> tuple[HostStage, ...]:
    """Those that a host endpoint needs."""
    return tuple(stage for stage in HOST_STAGES if any(_speaks(stage, view, name, settings) for name in view.used()))


def _speaks(stage: HostStage, view: HostView, class_id: str, settings: FilterSettings) -> bool:
    """Whether a class needs the stage. What connection tracking calls invalid is not forwarded at any host endpoint."""
    if stage.reach == "own" or (stage.reach == "forward" and settings.drop_invalid):
        return True
    if stage.reach == "raw" and class_id not in view.by_interface.values():
        return False
    return bool(view.classes[class_id].tiers(stage.reach, stage.ingress))


# -- base chains ------------------------------------------------------------------------------------------------------


def _base(
    stage: HostStage,
    stages: tuple[HostStage, ...],
    view: HostView,
    family: int,
    settings: FilterSettings,
    nodes: tuple[Match, ...],
) -> Iterator[NftRule]:
    """``nodes``: matches of what tunnels carry between nodes."""
    if settings.ipvs_marks and stage in (RAW_OUT, OUT):
        yield NftRule((HasMark(settings.ipvs_marks),), (ACCEPT,), "forwarded by ip_vs")
    yield from mark_rules(stage, stages, settings)
    if stage.reach != "raw":
        yield ESTABLISHED
    if stage.reach in ("raw", "own"):
        yield from _not_workloads(settings, is_out=stage.is_out)
    if stage is OUT:
        yield NftRule((IsTranslated(),), (ACCEPT,), "asked when it leaves")
    if stage.reach != "forward":
        for match in nodes:
            yield NftRule(match, (ACCEPT,), "a tunnel between nodes")
        if family == 6:
            yield from _link()
        if stage.reach != "raw":
            yield NftRule(_loopback(stage, settings.health_port), (ACCEPT,), "the agent's health")
    yield from dispatch_host(stage, view)


def dispatch_host(stage: HostStage, view: HostView) -> Iterator[NftRule]:
    """By the interface."""
    yield through(stage.map, is_out=stage.is_out)
    if view.everywhere and stage.reach != "raw":
        for name in view.excluded:
            yield NftRule((AtInterface(stage.is_out, name),), (ACCEPT,), "InterfaceExclude")
        yield NftRule((), (jump(stage.chain_of(view.everywhere)),))


def mark_rules(stage: HostStage, stages: tuple[HostStage, ...], settings: FilterSettings) -> Iterator[NftRule]:
    """The first stage of a packet clears the bit, whoever set it; later stages skip packets that have it."""
    if _is_first(stage, stages):
        yield NftRule((), (SetMark(settings.host_mark, cleared=True),))
    else:
        earlier = (RAW_OUT,) if stage is OUT else (RAW_IN, BEFORE_NAT) if stage.ingress else ()
        if any(one in stages for one in earlier if one is not stage):
            yield NftRule((HasMark(settings.host_mark),), (ACCEPT,), "allowed before")


def _is_first(stage: HostStage, stages: tuple[HostStage, ...]) -> bool:
    """Whether no stage that packets pass before this one sets the bit."""
    if stage.reach == "raw":
        return True
    return (stage is BEFORE_NAT and RAW_IN not in stages) or (stage is OUT and RAW_OUT not in stages)


def _not_workloads(settings: FilterSettings, *, is_out: bool) -> Iterator[NftRule]:
    for prefix in settings.prefixes:
        yield NftRule((AtInterface(is_out, prefix, is_prefix=True),), (ACCEPT,))


def _link() -> Iterator[NftRule]:
    """Without these a node's addresses cannot be found, and failsafe ports are of no use."""
    yield NftRule((IsProtocol(_ICMPV6), IcmpType(*_NEIGHBOURS)), (ACCEPT,), "neighbours on the link")
    yield NftRule((IsProtocol(_ICMPV6), IcmpType(_LISTENERS, _LISTENERS)), (ACCEPT,), "listeners on the link")


def _loopback(stage: HostStage, port: int) -> Match:
    return AtInterface(stage.is_out, "lo"), IsProtocol(_TCP), PortIn(False, port, port)


def _translated(stages: tuple[HostStage, ...], view: HostView, settings: FilterSettings) -> Iterator[NftChain]:
    """A connection of the host's own is policed here if its destination was translated; a forwarded one is not."""
    if OUT not in stages:
        return
    forwarded = NftRule((IsTranslated(),), (SetMark(settings.host_mark),))
    yield NftChain(_FORWARDED, (forwarded,), BaseHook("forward", 6))
    only = NftRule((IsTranslated(),), (jump(f"{_TRANSLATED}-own"),))
    yield NftChain(_TRANSLATED, (only,), BaseHook("postrouting", -150))
    rules = (
        NftRule((HasMark(settings.host_mark),), (ACCEPT,), "decided before"),
        ESTABLISHED,
        *_not_workloads(settings, is_out=True),
        *dispatch_host(OUT, view),
    )
    yield NftChain(f"{_TRANSLATED}-own", rules)


# -- classes ----------------------------------------------------------------------------------------------------------


def _class_chain(
    stage: HostStage,
    wanted: WantedHostClass,
    settings: FilterSettings,
    passes: Passes,
    view: HostView,
) -> NftChain:
    name, tiers, ingress = stage.chain_of(wanted.id), wanted.tiers(stage.reach, stage.ingress), stage.ingress
    failsafe = () if stage.reach == "forward" else (NftRule((), (jump(_failsafe_name(stage)),)),)
    if name in view.refused:
        why = "the kernel refuses its rules"
        return NftChain(name, (*failsafe, NftRule((), recorded(settings, why), why)))
    if stage.reach != "own" and not tiers:
        invalid = (drop_invalid(settings),) if stage.reach == "forward" and settings.drop_invalid else ()
        return NftChain(name, (*invalid, NftRule((), (ACCEPT,), "no policy for this stage")))
    rules: list[NftRule] = []
    if settings.drop_invalid and stage.reach != "raw":
        rules.append(drop_invalid(settings))
    rules += failsafe
    drops = stage is OUT and settings.reject

    def passed(policy: PolicyId) -> bool:
        return passes(policy, ingress)

    rules += render_tiers(tiers, ingress, settings, passed, drops=drops, denied=view.denied)
    if stage.reach == "own":
        rules += [NftRule((), ask(profile, ingress, view.denied, settings, drops=drops)) for profile in wanted.profiles]
        rules.append(nothing_allowed(settings, ingress, DROP if drops else deny(settings)))
    else:
        rules.append(NftRule((), (ACCEPT,)))
    return NftChain(name, tuple(rules))


# -- failsafe ports ---------------------------------------------------------------------------------------------------


def _failsafe_name(stage: HostStage) -> str:
    beginning = _FAILSAFE_RAW if stage.reach == "raw" else _FAILSAFE
    return f"{beginning}-{'in' if stage.ingress else 'out'}"


def _failsafe(stage: HostStage, family: int, settings: FilterSettings) -> NftChain:
    """Before connection tracking the answers have to be let through, too: by their source port."""
    asked, answered = (settings.failsafe_in, settings.failsafe_out)[:: 1 if stage.ingress else -1]
    rules = list(_open_ports(asked, family, stage.ingress, is_source=False))
    if stage.reach == "raw":
        rules += _open_ports(answered, family, stage.ingress, is_source=True)
    return NftChain(_failsafe_name(stage), tuple(rules))


def _open_ports(ports: tuple[FailsafePort, ...], family: int, ingress: bool, *, is_source: bool) -> Iterator[NftRule]:
    for port in ports:
        other: Match = ()
        if port.net is not None:
            if port.net.version != family:
                continue
            other = in_network(port.net, ingress)
        yield NftRule((IsProtocol(port.protocol), PortIn(is_source, port.port, port.port), *other), (ACCEPT,))
