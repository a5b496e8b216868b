"""The ends of recorded flows: which workload of now is meant, or which address outside.

Rule: an end is found or it is uncertain, with the reason. Labels that were recorded decide where somebody knows
workloads that have them (told_labels); else a pod that is gone is as its owner's other pods, if these are alike. Whose
an address is that several say is theirs nobody knows, unless the flow has a name.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, Protocol

from cni_calico.ctl.policy.changed_rows import PROTOCOL_NAMES
from cni_calico.ctl.policy.records import workload_name
from cni_calico.flows.given_names import OF_NOW
from cni_calico.flows.names import FOLDED
from cni_calico.flows.query import PROTOCOLS
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.ports import ICMP, WITH_PORTS
from cni_calico.policy.wanted import Packed

_NUMBERS = {name: number for names in (PROTOCOL_NAMES, PROTOCOLS) for number, name in names.items()}
_SIDES = ("src", "dst")
GONE = "a pod that is gone, and has no others of its owner"
_NETWORK = "addresses that are recorded as a network or a network set"
RELABELLED = "sums of a time in which the labels of an end changed"
SHARED = "an address that several workloads or hosts say is theirs"


# what reading a line raises that is no flow
NO_FLOW = KeyError, TypeError, ValueError, AttributeError, OverflowError


class Uncertain(Exception):
    """Its text is the reason."""


class NeedsWorkload(Exception):
    """A flow can be judged once there is a workload with the labels that it tells."""


@dataclass(frozen=True, slots=True)
class ToldWorkload:
    """``like``: the workload of now that has all the rest in common with it."""

    namespace: str
    name: str
    labels: frozenset[tuple[str, str]]
    address: Packed
    is_pod: bool
    like: ResourceKey | None


class ToldEnds(Protocol):
    def has(self, record: WorkloadEndpoint, labels: Mapping[str, str]) -> bool:
        """Whether a workload's labels are those that a flow tells."""

    def tells_apart(self, one: Packed, other: Packed) -> bool:
        """Whether a rule may tell these addresses apart, by networks."""

    def find(self, told: ToldWorkload) -> ResourceKey:
        """Raises Uncertain, and NeedsWorkload."""


@dataclass(frozen=True, slots=True)
class ReplayedEnd:
    """``key``: the workload; None: an address outside. ``token``: equal for equal ones. ``is_gone``: it stands for
    another pod of its owner.
    """

    key: ResourceKey | None
    address: Packed
    token: int | Packed
    is_gone: bool = False


def has_labels_of_now(end: Mapping[str, Any], found: ReplayedEnd) -> bool:
    """Whether nobody has recorded the labels of a workload that was found."""
    return found.key is not None and (end.get("labels") is None or OF_NOW in end)


@dataclass(slots=True)
class SeenConnections:
    """``connections``: as the reporter counted that saw more of them; ``last``: when the last one was."""

    seen: dict[str, int] = field(default_factory=dict)
    last: str = ""

    def add(self, reporter: str, connections: int, last: str) -> None:
        self.seen[reporter] = self.seen.get(reporter, 0) + connections
        self.last = max(self.last, last)

    def join(self, other: SeenConnections) -> None:
        for reporter, connections in other.seen.items():
            self.add(reporter, connections, other.last)

    @property
    def connections(self) -> int:
        others = sum(number for who, number in self.seen.items() if who not in _SIDES)
        return max(self.seen.get(who, 0) for who in _SIDES) + others


class FlowEnds:
    """``endpoints``: those that there are. ``addresses``: of each workload that may be meant. ``kind``: what alike
    workloads have in common. ``told``: knows workloads with the labels that flows tell; None: labels are those of now.
    """

    def __init__(
        self,
        endpoints: Mapping[ResourceKey, WorkloadEndpoint],
        addresses: Mapping[ResourceKey, tuple[Packed, ...]],
        kind: Callable[[ResourceKey], Hashable],
        told: ToldEnds | None = None,
    ) -> None:
        self._addresses, self._kind, self._told, self._endpoints = addresses, kind, told, endpoints
        self._at: dict[Packed, ResourceKey] = {}
        self._shared: set[Packed] = set()
        for key, its in addresses.items():
            self._shared.update(address for address in its if self._at.setdefault(address, key) != key)
            if key not in endpoints:  # made for what flows tell: without a name nobody is it
                self._shared.update(its)
        self._named: dict[tuple[str, str], ResourceKey] = {}
        self._owned: dict[tuple[str, str], list[ResourceKey]] = {}
        for key, record in endpoints.items():
            if key in addresses:
                name = workload_name(key, record)
                self._named[key.namespace, name] = key
                for owner in _owners(name):
                    self._owned.setdefault((key.namespace, owner), []).append(key)
        self._ends: dict[tuple[str, str, int], ReplayedEnd] = {}
        self._tokens = 0
        self._labelled: dict[tuple[str, str, int], list[tuple[Mapping[str, str], ReplayedEnd]]] = {}

    def find(self, end: Mapping[str, Any]) -> ReplayedEnd:
        """Of an end in a document of ``calicoctl flows``. Raises Uncertain; one of NO_FLOW."""
        if end.get("kind") in FOLDED:
            raise Uncertain(_NETWORK)
        if "name" not in end:
            packed = ip_address(end["ip"]).packed
            if packed in self._shared:
                raise Uncertain(SHARED)
            return ReplayedEnd(self._at.get(packed), packed, packed)
        at = end["namespace"], end["name"], 6 if ":" in end["ip"] else 4
        if self._told is not None and end.get("relabelled"):
            raise Uncertain(RELABELLED)
        if self._told is not None and end.get("labels") is not None:
            for labels, found in self._labelled.get(at, ()):
                if labels == end["labels"]:
                    return found
            made = self._labelled_end(end, ip_address(end["ip"]).packed, self._told)
            self._labelled.setdefault(at, []).append((end["labels"], made))
            return made
        known = self._ends.get(at)
        if known is None:
            known = self._ends[at] = self._named_end(end, ip_address(end["ip"]).packed)
        return known

    def _named_end(self, end: Mapping[str, Any], packed: Packed) -> ReplayedEnd:
        there = self._named.get((end["namespace"], end["name"]))
        key = there or self._sibling(end["namespace"], end["name"])
        if key is None:
            raise Uncertain(GONE)
        address = next((one for one in self._addresses[key] if len(one) == len(packed)), None)
        if address is None:
            raise Uncertain(GONE)
        return ReplayedEnd(key, address, self._token(), there is None)

    def _labelled_end(self, end: Mapping[str, Any], packed: Packed, known: ToldEnds) -> ReplayedEnd:
        """By its labels as they were recorded."""
        namespace, name, labels = end["namespace"], end["name"], end["labels"]
        there = self._named.get((namespace, name))
        its = next((self._owned[namespace, one] for one in _owners(name) if (namespace, one) in self._owned), [])
        for key in [there] if there else its:
            address = next((one for one in self._addresses[key] if len(one) == len(packed)), None)
            if address is None or known.tells_apart(address, packed):
                continue
            if known.has(self._endpoints[key], labels):
                return ReplayedEnd(key, address, self._token(), there is None)
        like = there or next(iter(its), None)
        told = ToldWorkload(namespace, name, frozenset(labels.items()), packed, end.get("kind") == "pod", like)
        key = known.find(told)
        its_own = self._addresses[key]
        address = next((one for one in its_own if len(one) == len(packed)), its_own[0])
        return ReplayedEnd(key, address, self._token(), there is None)

    def _token(self) -> int:
        self._tokens += 1
        return self._tokens

    def _sibling(self, namespace: str, name: str) -> ResourceKey | None:
        """Another pod of the same owner, if all of them are alike."""
        for owner in _owners(name):
            its = self._owned.get((namespace, owner))
            if its:
                return its[0] if len({self._kind(key) for key in its}) == 1 else None
        return None


def _owners(name: str) -> Iterable[str]:
    """What pods of one owner have in common, the longest first: a ReplicaSet's, then a Deployment's."""
    parts = name.split("-")
    return ["-".join(parts[:-cut]) for cut in (1, 2) if len(parts) > cut]


def parse_point(flow: Mapping[str, Any], size: int) -> tuple[int, int, int]:
    """(protocol, first and second number that a cell is asked for) of a document; ``size``: bytes of an address. The
    second is -1 if it is not known, which only ports of the source are. Raises one of NO_FLOW.
    """
    name = str(flow["protocol"])
    protocol = _NUMBERS[name] if name in _NUMBERS else int(name)
    if protocol == ICMP[4 if size == 4 else 6]:
        return protocol, int(flow["icmp"]["type"]), int(flow["icmp"]["code"])
    if protocol not in WITH_PORTS:
        return protocol, 0, 0
    port = flow["source"].get("port")
    return protocol, int(flow["destination"]["port"]), -1 if port is None else int(port)
