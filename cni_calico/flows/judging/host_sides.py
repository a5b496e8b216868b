"""What host endpoints decide about recorded connections, now and as it would be.

Rule: the interfaces are those that packets to the two ends take now, as the kernel says; a packet from an end is taken
to come in where packets to it go out. What cannot be judged is said, and is never taken as unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_address
from typing import NamedTuple, Protocol

from cni_calico.errors import CalicoError
from cni_calico.flows.host_parameters import HostParameters
from cni_calico.flows.judging.known import KnownRules
from cni_calico.model.interface_patterns import is_excluded
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.explain import Packet
from cni_calico.policy.failsafe import is_failsafe
from cni_calico.policy.hosts import ALL_INTERFACES
from cni_calico.policy.judge.cells import JudgedPacket, Passed
from cni_calico.policy.judge.host_path import EndPlace, PathStage, host_stages
from cni_calico.policy.judge.staged import JudgedByTiers
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.wanted import Direction, Packed, WantedTier

_LOOPBACK = "lo"
_DIRECTIONS: tuple[Direction, Direction] = ("egress", "ingress")


class WayTo(Protocol):
    """``interface``: through which packets to an address go; ``is_here``: which has it."""

    @property
    def interface(self) -> str: ...

    @property
    def is_here(self) -> bool: ...


class HostWays(Protocol):
    """Both may raise CalicoError. ``version`` is another one once answers may have changed."""

    @property
    def version(self) -> float: ...

    def addresses(self) -> Mapping[bytes, str]: ...

    def of(self, packed: bytes) -> WayTo | None: ...


class NotJudged(Exception):
    """Its text is the reason."""


class JudgedConnection(NamedTuple):
    """``first``, ``second``: what a cell is asked for; ``second`` 0 with ports: it is not known. ``asked`` and
    ``asked_port``: where it was sent, None while that is not known.
    """

    source: Packed
    destination: Packed
    protocol: int
    first: int
    second: int
    asked: Packed | None
    asked_port: int


class SideJudged(NamedTuple):
    """One side of a connection, now and with the staged policies: a workload's, or that of the stages of host endpoints
    in one direction.
    """

    ingress: bool
    was: JudgedByTiers
    would: JudgedByTiers


class HostSides:
    """``parameters``: the agent's, None while they are not known."""

    def __init__(self, ways: HostWays, parameters: Callable[[], HostParameters | None]) -> None:
        self._ways, self._parameters = ways, parameters

    @property
    def version(self) -> float:
        return self._ways.version

    def find(self, was: KnownRules, would: KnownRules, one: JudgedConnection) -> tuple[list[SideJudged], bool]:
        """(those where something decides now, or would; whether any source port gets the same). Raises NotJudged."""
        if not was.hosts and not would.hosts:
            return [], True
        parameters = self._parameters()
        if parameters is None:
            raise NotJudged("the agent has not said which ports are failsafe")
        places: list[EndPlace] = []
        interfaces: list[str] = []
        for address in (one.source, one.destination):
            place, interface = self._place(was, address)
            places.append(place)
            interfaces.append(interface)
        stages = host_stages(*places)
        if places[1] == "host" and one.asked is None:
            one = one._replace(asked=one.destination, asked_port=one.first)
        names = {"in": interfaces[0], "out": interfaces[1], "loopback": _LOOPBACK, "workloads": ""}
        found, lasts = list[SideJudged](), True
        for direction in _DIRECTIONS:
            its = [stage for stage in stages if stage.direction == direction]
            if not its:
                continue
            asked = [
                _AskedStages(known, self._interfaces(known, parameters), names, parameters, one)
                for known in (was, would)
            ]
            before, after = (each.judge(its) for each in asked)
            lasts = lasts and not any(each.asks_seconds for each in asked)
            if before.judged.decision is not None or after.judged.decision is not None:
                found.append(SideJudged(direction == "ingress", before, after))
        return found, lasts

    def _place(self, known: KnownRules, address: Packed) -> tuple[EndPlace, str]:
        if known.is_workload(address):
            return "workload", ""
        try:
            way = self._ways.of(address)
        except CalicoError as e:
            raise NotJudged(str(e)) from e
        if way is None:
            raise NotJudged("there is no route to it any more")
        return "host" if way.is_here else "elsewhere", way.interface

    def _addresses(self) -> Mapping[bytes, str]:
        try:
            return self._ways.addresses()
        except CalicoError as e:
            raise NotJudged(str(e)) from e

    def _interfaces(self, known: KnownRules, parameters: HostParameters) -> Mapping[str, ResourceKey]:
        """Which host endpoint an interface has; "*" for all others."""
        found: dict[str, ResourceKey] = {}
        at: Mapping[bytes, str] | None = None
        for key, host in sorted(known.hosts.items(), key=lambda item: item[0].name):
            names = {host.interface}
            if not host.interface:
                at = self._addresses() if at is None else at
                names = {at[address] for address in host.expected if address in at}
            for name in names:
                if name == ALL_INTERFACES or not is_excluded(name, parameters.excluded):
                    found.setdefault(name, key)
        return found


class _AskedStages:
    """One state of policy. ``names``: of the interfaces at which stages are."""

    def __init__(
        self,
        known: KnownRules,
        interfaces: Mapping[str, ResourceKey],
        names: Mapping[str, str],
        parameters: HostParameters,
        one: JudgedConnection,
    ) -> None:
        self._known, self._interfaces, self._names = known, interfaces, names
        self._parameters, self._one = parameters, one
        self.asks_seconds = False

    def judge(self, stages: list[PathStage]) -> JudgedByTiers:
        """Of one direction: the first that decides, whose tiers come first. Raises NotJudged."""
        passed: list[Passed] = []
        asked: list[WantedTier] = []
        for stage in stages:
            tiers, judged = self._stage(stage)
            asked[:0] = tiers
            # of a stage that decides nothing no tier has an end
            passed += [step for step in judged.passed if judged.decision is not None or step.policy is not None]
            if judged.decision is not None:
                return JudgedByTiers(JudgedPacket(judged.decision, tuple(passed)), tuple(asked))
        return JudgedByTiers(JudgedPacket(None, tuple(passed)), tuple(asked))

    def _stage(self, stage: PathStage) -> tuple[tuple[WantedTier, ...], JudgedPacket]:
        nothing = JudgedPacket(None)
        name = self._names[stage.at]
        excluded = bool(name) and is_excluded(name, self._parameters.excluded)
        everywhere = self._interfaces.get(ALL_INTERFACES)
        key = self._interfaces.get(name) if name else None
        if key is None and not excluded:
            key = everywhere
            if stage.reach == "raw":
                return (), nothing  # it has none at the interfaces that only "*" has
        if key is None:
            return (), nothing
        if stage.reach == "beforeNat" and everywhere is not None and not self._known.host_tiers(key, *stage[1:]):
            key = everywhere
        tiers = self._known.host_tiers(key, *stage[1:])
        if stage.reach != "own" and not tiers:
            return (), nothing
        one = self._one
        destination, first = one.destination, one.first
        if stage.direction == "ingress" and stage.reach in ("raw", "beforeNat"):
            if one.asked is None:
                raise NotJudged("it is not known yet where it was sent")
            destination = one.asked
            first = one.asked_port if one.protocol in WITH_PORTS else first
        if stage.reach != "forward" and self._is_open(stage, destination, first):
            return (), nothing
        cell = self._known.host_cell(key, *stage[1:], one.source, destination, one.protocol)
        self.asks_seconds = self.asks_seconds or cell.asks_seconds or stage.reach == "raw"
        if cell.asks_seconds and one.protocol in WITH_PORTS and not one.second:
            raise NotJudged("the source port decides, and sums have none")
        return tiers, cell.find(first, one.second)

    def _is_open(self, stage: PathStage, destination: Packed, port: int) -> bool:
        """Whether a failsafe port lets it through."""
        one, parameters = self._one, self._parameters
        ports = {_DIRECTIONS[0]: parameters.outbound, _DIRECTIONS[1]: parameters.inbound}
        if one.protocol not in WITH_PORTS:
            return False
        other = _DIRECTIONS[stage.direction == "egress"]
        packet = Packet(ip_address(one.source), ip_address(destination), one.protocol, one.second, port)
        if is_failsafe(ports[stage.direction], stage.direction, packet):
            return True
        return stage.reach == "raw" and is_failsafe(ports[other], other, packet.answer())
