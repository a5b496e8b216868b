"""Workloads as flows tell of them, for commands that need no verdict of theirs: by the labels that they had.

Rule: nobody is made for a judge. A workload that is there now stands for one that had the same labels
(``PresentWorkloads``); or its labels are all that counts (``LearntWorkloads``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping

from cni_calico.ctl.policy.flow_ends import ToldWorkload, Uncertain
from cni_calico.ctl.policy.told_labels import MANY, MOST_WORKLOADS, TOLD, ToldLabels
from cni_calico.ctl.policy.workload_selectors import stable_labels
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.policy.wanted import Packed

NOBODY = "a pod that is gone or has other labels now, and nobody has those that it had"


class PresentWorkloads:
    """``addresses``: of each workload that may be meant; ``told``: knows which labels are equal."""

    def __init__(
        self,
        endpoints: Mapping[ResourceKey, WorkloadEndpoint],
        addresses: Mapping[ResourceKey, tuple[Packed, ...]],
        told: ToldLabels,
    ) -> None:
        self._told, self._endpoints, self._addresses = told, endpoints, addresses
        self._of_namespace: dict[str, list[ResourceKey]] = {}
        for key in sorted(addresses.keys() & endpoints.keys(), key=str):
            self._of_namespace.setdefault(key.namespace, []).append(key)

    def has(self, record: WorkloadEndpoint, labels: Mapping[str, str]) -> bool:
        return self._told.has(record, labels)

    def tells_apart(self, one: Packed, other: Packed) -> bool:
        """Its address is that of now."""
        del one, other
        return False

    def find(self, told: ToldWorkload) -> ResourceKey:
        """One that has the labels now. Raises Uncertain."""
        labels, size = dict(told.labels), len(told.address)
        for key in self._of_namespace.get(told.namespace, ()):
            is_alike = self._told.has(self._endpoints[key], labels)
            if is_alike and any(len(one) == size for one in self._addresses[key]):
                return key
        raise Uncertain(NOBODY)


class LearntWorkloads:
    """``addresses`` gets those of workloads that flows tell of, and ``learn`` their labels, beside what is there."""

    def __init__(
        self,
        addresses: MutableMapping[ResourceKey, tuple[Packed, ...]],
        learn: Callable[[ResourceKey, ToldWorkload], None],
    ) -> None:
        self._addresses, self._learn = addresses, learn
        self._known: dict[ToldWorkload, ResourceKey] = {}

    def has(self, record: WorkloadEndpoint, labels: Mapping[str, str]) -> bool:
        return stable_labels(record.metadata.labels) == stable_labels(labels)

    def tells_apart(self, one: Packed, other: Packed) -> bool:
        """Labels are all that counts."""
        del one, other
        return False

    def find(self, told: ToldWorkload) -> ResourceKey:
        """Raises Uncertain."""
        key = self._known.get(told)
        if key is None:
            if len(self._known) >= MOST_WORKLOADS:
                raise Uncertain(MANY)
            key = self._known[told] = ResourceKey("WorkloadEndpoint", f"{TOLD}{len(self._known)}", told.namespace)
            self._addresses[key] = (told.address,)
            self._learn(key, told)
        return key
