"""PURE: what ip_vs forwards (kube-proxy's mode ipvs), in our tables: it is judged like everything that is forwarded.

Rule: a packet to a service comes to INPUT, where ip_vs takes it, and goes out by OUTPUT with the address of a backend;
nothing but a mark can say there by which interface it has come in. So every packet to the host gets one, and loses it
where ip_vs has not taken it, or behind our last stage. Whether a packet is a service's is decided by ip_vs alone.
Without kube-proxy's interface none of this is there. Numbers in marks depend on the order of changes, and nothing else
does: one that was given up is not given again at once, since packets may be between the two hooks.

    input   -1   ipvs-mark      a mark for the interface: what its packets have to pass
            100  ipvs-rest      not taken: no mark; what decides about packets to the host stands behind it
    output  2    ipvs-host-in   as host-in-forward, by the mark
            3    ipvs-from      as from-workloads, by the mark
            4    ipvs-to        as to-workloads
            5    ipvs-host-out  as host-out-forward
            7    ipvs-end       no mark
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from cni_calico.netfilter.rules import (
    ACCEPT,
    DROP,
    AtInterface,
    Dispatch,
    DispatchMark,
    HasMark,
    IsTranslated,
    NftRule,
    PacketVerdict,
    SetMark,
    SetMarkTo,
    jump,
)
from cni_calico.netfilter.tables import BaseHook, NftChain, NftSet, TableId, interface_key, word_key
from cni_calico.nodeagent.policing.tables.chains import ESTABLISHED
from cni_calico.nodeagent.policing.tables.endpoints import EndpointRules
from cni_calico.nodeagent.policing.tables.hosts.stages import (
    IN_FORWARD,
    OUT,
    OUT_FORWARD,
    HostStage,
    HostView,
    dispatch_host,
    mark_rules,
    used_stages,
)
from cni_calico.nodeagent.policing.tables.naming import class_chain
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.stages import BEHIND_IPVS, TO, dispatch, from_workload
from cni_calico.nodeagent.policing.tables.touched import FILTER, GoalTables

_CAME_IN = NftSet("ipvs-by-interface", ("ifname",), verdicts=True)
_FROM = NftSet("ipvs-from-marked", ("mark",), verdicts=True)
_HOST_IN = NftSet("ipvs-host-in-marked", ("mark",), verdicts=True)
_OTHERS, _UNKNOWN, _FIRST = 1, 2, 3  # of any other interface; of a workload's that no endpoint has


class MarkedWay(NamedTuple):
    """What packets of an interface have to pass, as chains: its workload's policies, "" for none, and those of a host
    endpoint: None for those of "*", if there are any; "" for none.
    """

    workload: str
    host: str | None


_DENIED = MarkedWay("denied", None)  # as without an endpoint


class WayNumbers:
    """A number for each of the wanted ways, as long as it is wanted."""

    def __init__(self) -> None:
        self.of: dict[MarkedWay, int] = {}
        self.lacking = 0  # ways without a number, since there are too few
        self._last = 0

    def keep(self, wanted: Iterator[MarkedWay], most: int) -> None:
        """``most``: the largest number."""
        asked = dict.fromkeys(way for way in wanted if way is not _DENIED)
        self.of = {way: number for way, number in self.of.items() if way in asked and number <= most}
        taken, self.lacking = set(self.of.values()), 0
        for way in asked:
            if way not in self.of:
                number = self._next(taken, most)
                if number:
                    self.of[way] = self._last = number
                    taken.add(number)
                else:
                    self.lacking += 1

    def _next(self, taken: set[int], most: int) -> int:
        """The next one that is free behind the last that was given, 0 if none is."""
        if len(taken) > most - _FIRST:
            return 0
        number = self._last
        while True:
            number = number + 1 if _FIRST <= number < most else _FIRST
            if number not in taken:
                return number


class ServiceForwarding:
    """In ``tables``. ``render`` after any change of endpoints, host endpoints or settings."""

    def __init__(self, tables: GoalTables) -> None:
        self.numbers = WayNumbers()
        self._tables = tables
        self._there: dict[TableId, frozenset[str]] = {}  # chains; none: there is nothing

    def render(self, settings: FilterSettings, endpoints: EndpointRules, view: HostView) -> None:
        if not settings.ipvs_marks and not self._there:
            return
        ways = dict(_ways(endpoints, view)) if settings.ipvs_marks else {}
        bits = settings.ipvs_marks.bit_count()
        self.numbers.keep(iter(ways.values()), (1 << bits) - 1)
        for family, table in FILTER.items():
            if settings.ipvs_marks and (family == 4 or settings.ipv6):
                self._put(table, settings, ways, view)
            else:
                self._drop(table)

    def describe(self) -> list[str]:
        """What is not in force as it should be."""
        if not self.numbers.lacking:
            return []
        return [
            f"connections to services of {self.numbers.lacking} kinds of workloads are dropped: the mark mask has too "
            "few bits to tell these apart in kube-proxy's mode ipvs; give NftablesMarkMask more"
        ]

    def _put(self, table: TableId, settings: FilterSettings, ways: Mapping[str, MarkedWay], view: HostView) -> None:
        numbers, mask, stages = self.numbers.of, settings.ipvs_marks, used_stages(view, settings)

        def key(number: int) -> bytes:
            return word_key(spread(number, mask))

        leads = {name: jump(_mark_chain(numbers.get(way, _UNKNOWN))) for name, way in ways.items()}
        chosen = {key(n): jump(way.workload) for way, n in numbers.items() if way.workload}
        chosen[key(_UNKNOWN)] = DROP
        hosts = {key(n): jump(way.host) if way.host else ACCEPT for way, n in numbers.items() if way.host is not None}
        if IN_FORWARD not in stages:
            hosts.clear()
        for spec, verdicts in (
            (_CAME_IN, {interface_key(name): verdict for name, verdict in leads.items()}),
            (_FROM, chosen),
            (_HOST_IN, hosts),
        ):
            self._put_map(table, spec, verdicts)
        chains = list(_render(settings, stages, view))
        chains += [
            NftChain(_mark_chain(number), (NftRule((), (SetMarkTo(mask, spread(number, mask)), ACCEPT)),))
            for number in (_UNKNOWN, *numbers.values())
        ]
        for chain in chains:
            self._tables.put_chain(table, chain)
        names = frozenset(chain.name for chain in chains)
        for name in self._there.get(table, frozenset()) - names:
            self._tables.drop_chain(table, name)
        self._there[table] = names

    def _put_map(self, table: TableId, spec: NftSet, verdicts: Mapping[bytes, PacketVerdict]) -> None:
        if table not in self._there:
            self._tables.put_set(table, spec)
        for gone in self._tables.of[table].verdicts[spec.name].keys() - verdicts.keys():
            self._tables.enter_key(table, spec, gone, None)
        for key, verdict in verdicts.items():
            self._tables.enter_key(table, spec, key, verdict)

    def _drop(self, table: TableId) -> None:
        for name in self._there.pop(table, ()):
            self._tables.drop_chain(table, name)
        for spec in (_CAME_IN, _FROM, _HOST_IN):
            self._tables.drop_set(table, spec.name)


def spread(number: int, mask: int) -> int:
    """The number in the bits of ``mask``, wherever these are."""
    value = 0
    while number:
        lowest = mask & -mask
        value |= lowest if number & 1 else 0
        mask, number = mask ^ lowest, number >> 1
    return value


def _mark_chain(number: int) -> str:
    return f"ipvs-mark-{number}"


def _ways(endpoints: EndpointRules, view: HostView) -> Iterator[tuple[str, MarkedWay]]:
    """By the interface; one that is not named has no way of its own."""
    hosts: dict[str, str | None] = {name: IN_FORWARD.chain_of(one) for name, one in view.by_interface.items()}
    if view.everywhere:
        hosts.update((name, "") for name in view.excluded if name not in hosts)
    for endpoint in endpoints.all.values():
        name = endpoint.interface
        host = hosts.pop(name, None)
        denied = name in endpoints.denied
        yield name, _DENIED if denied else MarkedWay(class_chain(endpoint.class_id, ingress=False), host)
    for name, host in hosts.items():
        yield name, MarkedWay("", host)


def _render(settings: FilterSettings, stages: tuple[HostStage, ...], view: HostView) -> Iterator[NftChain]:
    mask = settings.ipvs_marks
    unmarked = NftRule((), (SetMark(mask, cleared=True),))
    own = NftRule((HasMark(mask, negated=True),), (ACCEPT,), "not forwarded by ip_vs")

    def chain(name: str, hook: str, priority: int, *rules: NftRule) -> NftChain:
        return NftChain(f"ipvs-{name}", rules, BaseHook(hook, priority))

    def mark(number: int) -> SetMarkTo:
        return SetMarkTo(mask, spread(number, mask))

    yield chain(
        "mark",
        "input",
        -1,
        unmarked,
        NftRule((AtInterface(False, "lo"),), (ACCEPT,), "the host's own"),
        NftRule((), (Dispatch(False, _CAME_IN.name),)),
        *(NftRule((from_workload(prefix),), (mark(_UNKNOWN), ACCEPT)) for prefix in settings.prefixes),
        NftRule((), (mark(_OTHERS),)),
    )
    yield chain("rest", "input", BEHIND_IPVS, unmarked)
    if IN_FORWARD in stages:
        everywhere = (jump(IN_FORWARD.chain_of(view.everywhere)),) if view.everywhere else ()
        yield chain(
            "host-in",
            "output",
            2,
            own,
            *mark_rules(IN_FORWARD, stages, settings),
            ESTABLISHED,
            NftRule((), (DispatchMark(mask, _HOST_IN.name),)),
            *(NftRule((), (verdict,)) for verdict in everywhere),
        )
    yield chain("from", "output", 3, own, ESTABLISHED, NftRule((), (DispatchMark(mask, _FROM.name),)))
    yield chain("to", "output", 4, own, *dispatch(TO, settings, is_out=True))
    if OUT_FORWARD in stages:
        yield chain("host-out", "output", 5, own, ESTABLISHED, *dispatch_host(OUT_FORWARD, view))
    decided = NftRule((HasMark(mask), IsTranslated()), (SetMark(settings.host_mark),))
    yield chain("end", "output", 7, *((decided,) if OUT in stages else ()), unmarked)
