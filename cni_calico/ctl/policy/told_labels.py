"""Workloads as flows tell of them, which the records do not have so: pods that are gone, or have other labels now.

Rule: what rules may ask of such a workload is known, by its flow, its namespace, or another pod of its owner; or its
flows are uncertain, with the reason. They are judged in a second round, when everybody who is needed is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from ipaddress import ip_network
from itertools import count
from typing import Any

from cni_calico.ctl.policy.flow_ends import GONE, NeedsWorkload, ToldWorkload, Uncertain
from cni_calico.ctl.policy.networks_around import NetworksAround
from cni_calico.ctl.policy.proposed import ProposedChange
from cni_calico.ctl.policy.workload_selectors import VOLATILE
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Network, Resource, WorkloadEndpoint
from cni_calico.policy.judge.classes import packed_net
from cni_calico.policy.records import POLICY_KINDS
from cni_calico.policy.wanted import Packed, Wanted

MOST_WORKLOADS, MOST_FLOWS = 10_000, 100_000
_OURS, TOLD = "projectcalico.org/", "TOLD "  # no record has such a name
_ACCOUNT = _OURS + "serviceaccount"
_NETS_AT, _PORTS_AT = ("nets", "notNets", "cidr", "except"), ("ports", "notPorts", "port")  # fields of rules and sets
_NUMBERS = re.compile(r"[0-9]+(:[0-9]+)?")
_NEAR = 1024  # addresses that are looked at for one that is as good
_PORTS = "a pod that is gone: which of its ports have names is not known"
ANOTHER_S = "a pod whose address another one has now, and a rule or a network set names just that address"
_ACCOUNTS = "a pod that is gone: its service account is not known"
MANY = "pods that are gone or have other labels now: too many of them"


@dataclass(slots=True)
class ToldLabels:
    """What the first round of a replay leaves to the second. ``networks``: that rules and sets name. ``ignored``:
    labels that no rule asks for, of which each version of a workload has another value. ``made``: the workloads of the
    second round, or why there is none; None before.
    """

    networks: Callable[[], NetworksAround[Network]]
    ignored: frozenset[str] = frozenset()
    asked: dict[ToldWorkload, None] = field(default_factory=dict)
    flows: list[Mapping[str, Any]] = field(default_factory=list)
    made: dict[ToldWorkload, ResourceKey | str] | None = None

    def has(self, record: WorkloadEndpoint, labels: Mapping[str, str]) -> bool:
        """But for what the datastore adds, which not everybody tells."""
        own = record.metadata.labels
        if own == labels:
            return True
        account = labels.get(_ACCOUNT, record.service_account)
        return self._plain(own) == self._plain(labels) and account == record.service_account

    def tells_apart(self, one: Packed, other: Packed) -> bool:
        """Whether a rule may, by the networks that have them."""
        return one != other and [*self.networks().of(one)] != [*self.networks().of(other)]

    def _plain(self, labels: Mapping[str, str]) -> dict[str, str]:
        return {n: value for n, value in labels.items() if not n.startswith(_OURS) and n not in self.ignored}

    def find(self, told: ToldWorkload) -> ResourceKey:
        """Raises NeedsWorkload in the first round; Uncertain."""
        if self.made is None:
            if told not in self.asked and len(self.asked) >= MOST_WORKLOADS:
                raise Uncertain(MANY)
            self.asked[told] = None
            raise NeedsWorkload
        found = self.made[told]
        if isinstance(found, str):
            raise Uncertain(found)
        return found

    def has_made(self, key: ResourceKey) -> bool:
        return self.made is not None and key.name.startswith(TOLD)

    def keep(self, flow: Mapping[str, Any]) -> None:
        """For the second round. Raises Uncertain."""
        if len(self.flows) >= MOST_FLOWS:
            raise Uncertain(MANY)
        self.flows.append(flow)

    def make(self, change: ProposedChange) -> tuple[Wanted, Wanted]:
        """Both states, with the workloads that were asked for, which ``change.records`` then has, too."""
        maker, made = _EndpointMaker(self, change), dict[ToldWorkload, ResourceKey | str]()
        records: dict[ResourceKey, WorkloadEndpoint] = {}
        for told in self.asked:
            try:
                record = maker.make(told)
            except Uncertain as e:
                made[told] = str(e)
                continue
            key = ResourceKey("WorkloadEndpoint", record.metadata.name, told.namespace)
            made[told], records[key] = key, record
        self.made = made
        return change.with_workloads(records)


def told_labels_for(change: ProposedChange) -> ToldLabels:
    """For a replay of the change."""
    texts = [str(one.spec) for one in _policies_of(change)]
    ignored = frozenset(name for name in VOLATILE if not any(name in text for text in texts))
    return ToldLabels(cache(lambda: _networks_in(change)), ignored)


def _networks_in(change: ProposedChange) -> NetworksAround[Network]:
    """Also those of policies that apply to nobody who is there now."""
    told = (text for name, text in _told_in(change) if name in _NETS_AT)
    return NetworksAround(
        (packed_net(net), net) for net in dict.fromkeys(net for text in told for net in _parse_net(text))
    )


def _resources_of(change: ProposedChange) -> list[Resource]:
    every = [*change.records.records.values(), *change.replaced.values()]
    return [one for one in every if isinstance(one, Resource)]


def _policies_of(change: ProposedChange) -> list[Resource]:
    return [one for one in _resources_of(change) if one.kind in POLICY_KINDS]


def _told_in(change: ProposedChange) -> Iterator[tuple[str, str]]:
    """The networks and ports of all records, as texts, each with the name of the field that has it."""
    for one in _resources_of(change):
        yield from _texts_in(one.spec)


def _texts_in(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, its in value.items():
            yield from _texts_in(its, key)
    elif isinstance(value, list | tuple):
        for its in value:
            yield from _texts_in(its, name)
    elif name in _NETS_AT or name in _PORTS_AT:
        yield name, str(value)


def _parse_net(text: str) -> Iterator[Network]:
    try:
        yield ip_network(text, strict=False)
    except ValueError:
        return  # the graph says what is wrong with it


class _EndpointMaker:
    def __init__(self, told: ToldLabels, change: ProposedChange) -> None:
        self._told = told
        self._records = change.records.records
        self._endpoints = change.records.endpoints
        states = change.before, change.after
        self._taken = {one for state in states for endpoint in state.endpoints.values() for one in endpoint.addresses}
        texts = [str(one.spec).lower() for one in _policies_of(change)]
        self._asks_for_accounts = any(word in text for text in texts for word in ("serviceaccount", "pcsa."))
        self._asks_for_ports = any(
            name in _PORTS_AT and not _NUMBERS.fullmatch(text) for name, text in _told_in(change)
        )
        self._numbers = count()

    def make(self, told: ToldWorkload) -> WorkloadEndpoint:
        """Raises Uncertain."""
        labels = dict(told.labels)
        record = None if told.like is None else self._endpoints[told.like]
        if record is None:
            record = self._of_namespace(told, labels)
        account = labels.get(_ACCOUNT, record.service_account)
        if account != record.service_account:
            profiles = [one for one in record.profiles if not one.startswith("ksa.")]
            record = replace(record, service_account=account, profiles=(*profiles, f"ksa.{told.namespace}.{account}"))
        own = {name: value for name, value in record.metadata.labels.items() if name.startswith(_OURS)}
        number = next(self._numbers)
        return replace(
            record,
            metadata=Metadata(f"{TOLD}{number}", told.namespace, labels={**own, **labels}),
            pod=told.name,
            workload="",
            container_id="",
            interface_name=f"told{number}",
            ip_networks=(ip_network(self._address(told.address)),),
            ip_nats=(),
            allow_spoofed_source_prefixes=(),
        )

    def _of_namespace(self, told: ToldWorkload, labels: Mapping[str, str]) -> WorkloadEndpoint:
        """Of a pod of whose owner nothing else is there. Raises Uncertain."""
        profiles = [f"kns.{told.namespace}"]
        account = labels.get(_ACCOUNT, "")
        if account:
            profiles.append(f"ksa.{told.namespace}.{account}")
        elif self._asks_for_accounts:
            raise Uncertain(_ACCOUNTS)
        if not told.is_pod or ResourceKey("Profile", profiles[0]) not in self._records:
            raise Uncertain(GONE)
        if self._asks_for_ports:
            raise Uncertain(_PORTS)
        own = {f"{_OURS}namespace": told.namespace, f"{_OURS}orchestrator": "k8s"}
        known = [one for one in profiles if ResourceKey("Profile", one) in self._records]
        metadata = Metadata("", told.namespace, labels=own)
        return WorkloadEndpoint(metadata, "k8s", "", "eth0", "", service_account=account, profiles=tuple(known))

    def _address(self, packed: Packed) -> Packed:
        """The workload's own, if nobody has it now; else one near it that no rule tells from it. Raises Uncertain."""
        if packed in self._taken:
            packed = self._as_good(packed)
        self._taken.add(packed)
        return packed

    def _as_good(self, packed: Packed) -> Packed:
        for other in _near(packed):
            if other not in self._taken and not self._told.tells_apart(packed, other):
                return other
        raise Uncertain(ANOTHER_S)


def _near(packed: Packed) -> Iterator[Packed]:
    number, size = int.from_bytes(packed, "big"), len(packed)
    for step in range(1, _NEAR):
        yield (number ^ step).to_bytes(size, "big")
