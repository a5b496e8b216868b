"""PURE: the base chains of one family's table, and their contents for single endpoints.

Rule: each stage is a base chain of its own on its hook, so that ``accept`` in one leads to the next; one exists only
while something needs it. Interfaces lead to their chains by maps that say ``jump``, and whatever comes back is dropped.

    forward     0     qos-forward         limits of single endpoints, established packets too
                2     from-workloads      established? accept. incoming interface -> from-CLASS. others of ours: drop
                3     to-workloads        the same for the outgoing interface -> to-CLASS; from 127.0.0.0/8: drop
                5     service-loops       to a service's address that nobody translated: drop
    input       0     qos-input           limits
                1     workloads-to-host   ICMPv6 that a link needs, then as from-workloads
                2     end-of-to-host      what policies let through to the host: DefaultEndpointToHostAction
    prerouting  -300  spoofing            to 127.0.0.0/8, or a source not routed to the interface it came by: drop
    output      0     qos-ipvs            limits, of what ip_vs forwards (hosts/ipvs.py)
                1     host-loopback       from 127.0.0.0/8 to a workload, and nobody translated the destination: drop

Where kube-proxy uses ip_vs, which takes packets at 99, 1 and 2 of input stand behind that, at 101 and 102.

Apart from that, host -> its own workload (OUTPUT) is never filtered: the kubelet's probes come that way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_network

from cni_calico.model.resources import Network
from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    RETURN,
    AddressInSet,
    ArpSenderInSet,
    AtInterface,
    ConnectionLimit,
    Dispatch,
    HasMark,
    IcmpType,
    IsArpReply,
    IsProtocol,
    IsTranslated,
    NftRule,
    RateLimit,
    Reject,
    RuleAction,
    SourceIsElsewhere,
)
from cni_calico.netfilter.tables import BaseHook, NftChain, NftSet
from cni_calico.nodeagent.policing.tables.chains import ESTABLISHED, TRACKED, drop_and_tell, recorded
from cni_calico.nodeagent.policing.tables.matches import ListSet, Match, collapsed, in_network, network_list
from cni_calico.nodeagent.policing.tables.naming import interface_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.policy.wanted import PacketLimits

FROM, TO = NftSet("from-workloads", ("ifname",), verdicts=True), NftSet("to-workloads", ("ifname",), verdicts=True)
LIMITED_FROM = NftSet("limited-from", ("ifname",), verdicts=True)
LIMITED_TO = NftSet("limited-to", ("ifname",), verdicts=True)
MAY_SPOOF = NftSet("may-spoof", ("ifname",), verdicts=True)
MAPS = (FROM, TO, LIMITED_FROM, LIMITED_TO, MAY_SPOOF)
SPOOFING = "spoofing"
SERVICE_LOOPS = "service-loops"
HOST_LOOPBACK = "host-loopback"
# comments of rules
SPOOFED = "a source that is not the workload's"
FROM_LOOPBACK, TO_LOOPBACK = "127.0.0.0/8 from a workload", "127.0.0.0/8 to a workload"
OVER_RATE, OVER_CONNECTIONS = "over the packet rate", "over the number of connections"
LIMITS = ("qos-forward", "qos-input", "qos-ipvs")
OWN_ADDRESSES = NftSet("own-addresses", ("ifname", "ipv4_addr"))

BEHIND_IPVS = 100  # it takes what comes to the host at 99

LOOPBACK = ip_network("127.0.0.0/8")
_IPV6_LINK = (130, 131, 132, 133, 135, 136)  # multicast listeners, router solicitation, neighbours
_NEIGHBOURS = (133, 134, 135, 136)
_TCP, _ICMPV6 = 6, 58


@dataclass(frozen=True, slots=True)
class Needed:
    """Which stages have something to do besides the policies.

    ``spoofing``: there are exceptions from the check of sources. ``check_sources``: this kernel can check them.
    """

    limits: bool = False
    spoofing: bool = False
    check_sources: bool = True


def from_workload(prefix: str) -> AtInterface:
    return AtInterface(False, prefix, is_prefix=True)


def to_workload(prefix: str) -> AtInterface:
    return AtInterface(True, prefix, is_prefix=True)


def through(to: NftSet, *, is_out: bool = False) -> NftRule:
    return NftRule((), (Dispatch(is_out, to.name),))


def to_host_hook(priority: int, settings: FilterSettings) -> BaseHook:
    """For what stays with the host: behind ip_vs, if that is in use."""
    return BaseHook("input", priority + BEHIND_IPVS if settings.ipvs_marks else priority)


def render_stages(family: int, settings: FilterSettings, needed: Needed) -> tuple[list[NftChain], dict[str, ListSet]]:
    """The base chains, and the lists that they look up."""
    if family == 6 and not settings.ipv6:
        return list(_without_ipv6(settings)), {}
    lists: dict[str, ListSet] = {}
    chains = [
        NftChain("from-workloads", tuple(dispatch(FROM, settings)), BaseHook("forward", 2)),
        NftChain("to-workloads", tuple(_to_workloads(family, settings)), BaseHook("forward", 3)),
        NftChain("workloads-to-host", tuple(_to_host(family, settings)), to_host_hook(1, settings)),
    ]
    if family == 4:
        local = tuple(_from_loopback(family, settings, unless_translated=True))
        chains.append(NftChain(HOST_LOOPBACK, local, BaseHook("output", 1)))
    if needed.check_sources:
        chains.append(NftChain(SPOOFING, tuple(_spoofing(family, settings, needed)), BaseHook("prerouting", -300)))
    if needed.limits:
        both = (through(LIMITED_FROM), through(LIMITED_TO, is_out=True))
        chains.append(NftChain(LIMITS[0], both, BaseHook("forward", 0)))
        chains.append(NftChain(LIMITS[1], both[:1], BaseHook("input", 0)))
        if settings.ipvs_marks:
            forwarded = NftRule((HasMark(settings.ipvs_marks),), (Dispatch(True, LIMITED_TO.name),))
            chains.append(NftChain(LIMITS[2], (forwarded,), BaseHook("output", 0)))
    if settings.to_host == "DROP":
        end = tuple(_end_of_to_host(family, settings))
        chains.append(NftChain("end-of-to-host", end, to_host_hook(2, settings)))
    networks = collapsed(settings.service_networks, family)
    if networks and settings.service_action != "Disabled":
        loops = _service_loops(networks, settings, lists)
        chains.append(NftChain(SERVICE_LOOPS, (loops,), BaseHook("forward", 5)))
    return chains, lists


def dispatch(to: NftSet, settings: FilterSettings, *, is_out: bool = False) -> Iterator[NftRule]:
    yield ESTABLISHED
    yield through(to, is_out=is_out)
    yield from _drop_all(settings, "no endpoint", is_out=is_out)


def _to_workloads(family: int, settings: FilterSettings) -> Iterator[NftRule]:
    established, *others = dispatch(TO, settings, is_out=True)
    yield from (established, *_from_loopback(family, settings), *others)


def _drop_all(settings: FilterSettings, why: str, *, is_out: bool = False) -> Iterator[NftRule]:
    for prefix in settings.prefixes:
        yield NftRule((AtInterface(is_out, prefix, is_prefix=True),), recorded(settings, why), why)


def _accept_icmpv6(kinds: Sequence[int], settings: FilterSettings, *, is_out: bool = False) -> Iterator[NftRule]:
    for kind in kinds:
        match = (IsProtocol(_ICMPV6), IcmpType(kind, kind))
        for prefix in settings.prefixes:
            yield NftRule((AtInterface(is_out, prefix, is_prefix=True), *match), (ACCEPT,))


def _to_host(family: int, settings: FilterSettings) -> Iterator[NftRule]:
    if family == 6:
        yield from _accept_icmpv6(_IPV6_LINK, settings)
    yield from dispatch(FROM, settings)


def _end_of_to_host(family: int, settings: FilterSettings) -> Iterator[NftRule]:
    """A separate chain, because what the endpoint's policies accept leaves the previous one."""
    yield ESTABLISHED
    if family == 6:
        yield from _accept_icmpv6(_IPV6_LINK, settings)
    yield from _drop_all(settings, "DefaultEndpointToHostAction")


def drop_loopback(settings: FilterSettings, *, is_source: bool) -> Iterator[NftRule]:
    """127.0.0.0/8 from a workload, as source or as destination. The byte of the address is tested first: it is the
    cheapest test, and no other packet goes on.
    """
    for prefix in settings.prefixes:
        yield drop_and_tell(settings, (*in_network(LOOPBACK, is_source), from_workload(prefix)), FROM_LOOPBACK)


def _from_loopback(family: int, settings: FilterSettings, *, unless_translated: bool = False) -> Iterator[NftRule]:
    """127.0.0.0/8 to a workload. A hook behind source translation would tell it at once, but all forwarded packets
    would pay for it. Instead: nothing that is forwarded has such a source; what the host sends to 127.0.0.1:hostPort
    has, until its source is translated, too.
    """
    local = (IsTranslated(negated=True),) if unless_translated else ()
    for prefix in settings.prefixes if family == 4 else ():
        yield drop_and_tell(settings, (*in_network(LOOPBACK, True), to_workload(prefix), *local), TO_LOOPBACK)


def _spoofing(family: int, settings: FilterSettings, needed: Needed) -> Iterator[NftRule]:
    """As a source 127.0.0.0/8 is routed to the host itself, so that it is dropped like any other forged one."""
    if family == 4:
        yield from drop_loopback(settings, is_source=False)
    if needed.spoofing:
        yield through(MAY_SPOOF)
    for prefix in settings.prefixes:
        yield drop_and_tell(settings, (from_workload(prefix), SourceIsElsewhere()), SPOOFED)


def _service_loops(networks: Sequence[Network], settings: FilterSettings, lists: dict[str, ListSet]) -> NftRule:
    match: Match = in_network(networks[0], False)
    if len(networks) > 1:
        listed = network_list(tuple(networks))
        lists[listed.spec.name] = listed
        match = (AddressInSet(False, listed.spec.name),)
    action: RuleAction = Reject() if settings.service_action == "Reject" else DROP
    return NftRule(match, recorded(settings, "service loop", action), "service loop")


def _without_ipv6(settings: FilterSettings) -> Iterator[NftChain]:
    """Nothing from, to or through workloads' interfaces, except what finds neighbours on a link."""
    why = "Ipv6Support is off"
    through = (*_drop_all(settings, why), *_drop_all(settings, why, is_out=True))
    yield NftChain("from-workloads", through, BaseHook("forward", 2))
    for name, hook, is_out in (("workloads-to-host", "input", False), ("host-to-workloads", "output", True)):
        found = _accept_icmpv6(_NEIGHBOURS, settings, is_out=is_out)
        rules = (*found, *_drop_all(settings, why, is_out=is_out))
        yield NftChain(name, rules, BaseHook(hook, 1))


# -- single endpoints -------------------------------------------------------------------------------------------------


def render_limits(beginning: str, interface: str, limits: PacketLimits, settings: FilterSettings) -> NftChain:
    """Over the rate: every packet is dropped; over the number of connections: a new connection is reset."""
    rules: list[NftRule] = []
    if limits.packet_rate is not None:
        burst = 5 if limits.packet_burst is None else limits.packet_burst
        over = (RateLimit(limits.packet_rate, 1, burst, over=True),)
        rules.append(NftRule(over, recorded(settings, OVER_RATE), OVER_RATE))
    if limits.max_connections is not None:
        rules.append(NftRule((TRACKED,), (RETURN,)))
        count = (IsProtocol(_TCP), ConnectionLimit(limits.max_connections))
        rules.append(NftRule(count, recorded(settings, OVER_CONNECTIONS, Reject(with_reset=True)), OVER_CONNECTIONS))
    return NftChain(interface_chain(beginning, interface), tuple(rules))


def render_may_spoof(interface: str, networks: Sequence[Network], family: int, settings: FilterSettings) -> NftChain:
    """The sources that this interface may use besides its own addresses, which are never 127.0.0.0/8."""
    allowed = collapsed(networks, family)
    overlaps = [network for network in allowed if family == 4 and network.overlaps(LOOPBACK)]
    inside = [network for network in overlaps if network.prefixlen >= LOOPBACK.prefixlen]
    rules = [NftRule(in_network(network, True), (ACCEPT,)) for network in allowed if network not in inside]
    if overlaps != inside:
        rules.insert(0, NftRule(in_network(LOOPBACK, True), recorded(settings, FROM_LOOPBACK), FROM_LOOPBACK))
    return NftChain(interface_chain("spoof", interface), tuple(rules))


def render_arp() -> NftChain:
    """With proxy ARP the host answers for everything, but never for a workload's own address on its own interface."""
    rule = NftRule((IsArpReply(), ArpSenderInSet(OWN_ADDRESSES.name)), (DROP,), "the workload's own address")
    return NftChain("replies", (rule,), BaseHook("output", 0))
