"""PURE: the rules that the agent says are in force, and who has which address under them.

Rule: between the first and the last piece of a change nothing is judged. Nothing is kept that judging does not need.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from cni_calico.flows.judging.encoding import BEGIN, DONE, STANDS_IN
from cni_calico.model.keys import ResourceKey
from cni_calico.policy.judge.cells import AskedEachTime, Cell
from cni_calico.policy.judge.trace import Judge
from cni_calico.policy.wanted import (
    Direction,
    Packed,
    PolicyReach,
    Wanted,
    WantedChanges,
    WantedHost,
    WantedPolicy,
    WantedTier,
)

_CELLS, _SPANS, _ADDRESSES, _WORK = 4_000, 40_000, 10_000, 20_000
PolicyName = tuple[str, str, str]  # kind, namespace, name
_STAGES: tuple[PolicyReach, ...] = ("own", "forward", "beforeNat", "raw")


class AskedWorkload(NamedTuple):
    """What decides about some packets of a workload; ``tiers``: all that it has in that direction."""

    cell: Cell | AskedEachTime
    tiers: tuple[WantedTier, ...]


class KnownRules:
    """``receive`` what the agent sends. ``version`` changes with each; ``changed``: when that was last, as ``now``;
    ``hosts``: the host endpoints.
    """

    def __init__(self) -> None:
        self.version = 0
        self.changed = float("-inf")
        self.ready = False
        self._forget()

    def _forget(self) -> None:
        self._judge = Judge(Wanted(), _CELLS, _SPANS, _ADDRESSES, _WORK)
        self._addresses: dict[ResourceKey, tuple[Packed, ...]] = {}
        self._at: dict[Packed, set[ResourceKey]] = {}
        self.hosts: dict[ResourceKey, WantedHost] = {}
        self._standing_in: set[PolicyName] = set()

    def receive(self, kind: str, changes: WantedChanges, now: float) -> None:
        """A message (``judging.encoding``)."""
        self.version += 1
        self.changed = now
        self.ready = kind == DONE
        if kind == BEGIN:
            self._forget()
        self._judge.change(changes)
        for name, policy in changes.policies.items():
            at = name.kind, name.namespace, name.name
            (self._standing_in.add if _stands_in(policy) else self._standing_in.discard)(at)
        for key, host in changes.hosts.items():
            if host is None:
                self.hosts.pop(key, None)
            else:
                self.hosts[key] = host
        for key, endpoint in changes.endpoints.items():
            for address in self._addresses.pop(key, ()):
                self._at[address].discard(key)
                if not self._at[address]:
                    del self._at[address]
            if endpoint is not None:
                self._addresses[key] = endpoint.addresses
                for address in endpoint.addresses:
                    self._at.setdefault(address, set()).add(key)

    def cells(
        self, source: Packed, destination: Packed, protocol: int, *, ingress: bool
    ) -> Iterator[Cell | AskedEachTime]:
        """What decides about packets between these addresses in that direction: of the workload whose address it is,
        and of each stage of this host's endpoints, because it is not known which of them a packet passes.
        """
        yield from self.cells_of_workload(source, destination, protocol, ingress=ingress)
        for reach in _STAGES:
            for group in self._judge.of_hosts(reach, "ingress" if ingress else "egress"):
                yield self._judge.cell(group, source, destination, protocol)

    def workload(self, source: Packed, destination: Packed, protocol: int, *, ingress: bool) -> AskedWorkload | None:
        """Who is asked about packets between these addresses in that direction; None if no workload of this node has
        the address, or several say that it is theirs.
        """
        keys = self._at.get(destination if ingress else source, ())
        if len(keys) != 1:
            return None
        (key,) = keys
        group = self._judge.of_workload(key, "ingress" if ingress else "egress")
        return AskedWorkload(self._judge.cell(group, source, destination, protocol), self._judge.tiers(group))

    def is_workload(self, address: Packed) -> bool:
        """Whether a workload of this node says that the address is its own."""
        return address in self._at

    def host_tiers(self, key: ResourceKey, reach: PolicyReach, direction: Direction) -> tuple[WantedTier, ...]:
        """Those of a stage of a host endpoint."""
        return self._judge.tiers(self._judge.of_host(key, reach, direction))

    def host_cell(
        self,
        key: ResourceKey,
        reach: PolicyReach,
        direction: Direction,
        source: Packed,
        destination: Packed,
        protocol: int,
    ) -> Cell | AskedEachTime:
        """What that stage decides about packets between these addresses."""
        return self._judge.cell(self._judge.of_host(key, reach, direction), source, destination, protocol)

    def cells_of_workload(
        self, source: Packed, destination: Packed, protocol: int, *, ingress: bool
    ) -> Iterator[Cell | AskedEachTime]:
        """None if no workload of this node has the address; more than one if several say that it is theirs."""
        for key in self._at.get(destination if ingress else source, ()):
            group = self._judge.of_workload(key, "ingress" if ingress else "egress")
            yield self._judge.cell(group, source, destination, protocol)

    def stands_in(self, policy: PolicyName) -> bool:
        """Whether it is not the record's own: it waits, and the kernel may have an earlier version."""
        return policy in self._standing_in


def _stands_in(policy: WantedPolicy | None) -> bool:
    return policy is not None and any(key == STANDS_IN for rule in policy.rules() for key, _ in rule.annotations)
