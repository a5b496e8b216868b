"""Whom a reader means by many workloads at once: the labels that people give them, else their names.

Rule: a label stands for workloads only if every workload of the namespace that has it is among them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

from cni_calico.ctl.policy.records import PolicyRecords, workload_name
from cni_calico.ctl.policy.workload_selectors import BEST_LABELS
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Resource
from cni_calico.policy.judge.worlds import ComparedEnd
from cni_calico.policy.wanted import PackedNet

_MOST = 4
_SETS = ("NetworkSet", "GlobalNetworkSet")


@dataclass(frozen=True, slots=True)
class NamedEnds:
    """``names``: sorted, all of them. ``workloads``, ``hosts``: how many there are."""

    names: tuple[str, ...]
    workloads: int = 0
    hosts: int = 0

    @property
    def shown(self) -> str:
        more = len(self.names) - _MOST
        listed = ", ".join(self.names[:_MOST])
        return f"{listed} and {more} more" if more > 0 else listed

    @property
    def counted(self) -> str:
        counts = [(self.workloads, "workload"), (self.hosts, "host endpoint")]
        parts = [f"{number} {what}{'' if number == 1 else 's'}" for number, what in counts if number]
        return " and ".join(parts) or "outside"


class EndNames:
    """Of the records as they are."""

    def __init__(self, records: PolicyRecords) -> None:
        self._endpoints = records.endpoints
        self._group_of: dict[ResourceKey, str] = {}
        self._sizes: dict[str, int] = {}
        self._spaces: dict[str, int] = {}
        for key, record in self._endpoints.items():
            label = next((one for one in BEST_LABELS if one in record.metadata.labels), None)
            if label is not None:
                group = f"{key.namespace}/{label}={record.metadata.labels[label]}"
                self._group_of[key] = group
                self._sizes[group] = self._sizes.get(group, 0) + 1
            self._spaces[key.namespace] = self._spaces.get(key.namespace, 0) + 1
        self._sets = _named_nets(records)

    def describe(self, ends: Iterable[ComparedEnd]) -> NamedEnds:
        workloads, hosts, names = list[ResourceKey](), set[str](), set[str]()
        for end in ends:
            if not isinstance(end, ResourceKey):
                names.add(self._outside(end.example, end.around))
            elif end.kind == "HostEndpoint":
                hosts.add(f"host endpoint {end.name}")
            else:
                workloads.append(end)
        names |= hosts | self._workloads(workloads)
        return NamedEnds(tuple(sorted(names)), len(workloads), len(hosts))

    def name_of(self, key: ResourceKey) -> str:
        """One workload's."""
        record = self._endpoints.get(key)
        return f"{key.namespace}/{workload_name(key, record) if record is not None else key.name}"

    def group_of(self, key: ResourceKey) -> str:
        """The label that people give it, else its name."""
        return self._group_of.get(key) or self.name_of(key)

    def _workloads(self, keys: list[ResourceKey]) -> set[str]:
        if len(keys) > 1 and len(keys) == len(self._endpoints):
            return {"every workload"}
        spaces: dict[str, list[ResourceKey]] = {}
        for key in keys:
            spaces.setdefault(key.namespace, []).append(key)
        names: set[str] = set()
        for space, its in spaces.items():
            if len(its) > 1 and len(its) == self._spaces.get(space):
                names.add(f"{space}/*")
                continue
            groups: dict[str, list[ResourceKey]] = {}
            for key in its:
                groups.setdefault(self._group_of.get(key, ""), []).append(key)
            for group, members in groups.items():
                whole = bool(group) and len(members) == self._sizes[group]
                names |= {group} if whole else {self.name_of(key) for key in members}
        return names

    def _outside(self, example: bytes, around: PackedNet | None) -> str:
        if around is None:
            return f"other addresses (IPv{4 if len(example) == 4 else 6})"
        net = ip_network((ip_address(around[0]), around[1]))
        shown = str(net.network_address) if net.prefixlen == net.max_prefixlen else str(net)
        its = self._sets.get(around, ())
        return f"{shown} ({', '.join(its)})" if its else shown


def _named_nets(records: PolicyRecords) -> dict[PackedNet, tuple[str, ...]]:
    """Network -> the network sets that have it."""
    found: dict[PackedNet, tuple[str, ...]] = {}
    for key, record in records.records.items():
        if key.kind in _SETS and isinstance(record, Resource):
            name = f"{key.namespace}/{key.name}" if key.namespace else key.name
            for text in record.spec.get("nets") or ():
                try:
                    net = ip_network(text, strict=False)
                except ValueError:
                    continue  # the graph says what is wrong with it
                at = net.network_address.packed, net.prefixlen
                found[at] = (*found.get(at, ()), name)
    return found
