"""PURE: what rules can know of an address, as a value: addresses that no rule tells apart have equal ones.

Rule: a class is exact. It is made of the sets and the rules' networks that hold the address, and of the ports that sets
have for it; it says nothing of labels, and is as new as the last changes that were taken in.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from cni_calico.model.resources import Network
from cni_calico.policy.wanted import Packed, PackedNet, PolicyId, SetChange, Wanted, WantedChanges, WantedPolicy

REMEMBERED = 20_000  # addresses whose class is kept; a flood of strangers makes all of them be forgotten
BY_RULES = ""  # in the place of a set's name: the network is one that rules name
_SHARED = 20_000  # results of adding and removing that are kept to be shared

SetPort = tuple[str, int, int]  # (set, protocol, port)
HeldName = TypeVar("HeldName", bound=Hashable)
HeldAt = TypeVar("HeldAt", bound=Hashable)


@dataclass(frozen=True)
class AddressClass:
    """``sets``: the names of those that hold the address; ``nets``: those of rules that do; ``ports``: (set, protocol,
    port) for each set "p-..." that has this address.
    """

    family: int
    sets: frozenset[str] = frozenset()
    nets: frozenset[PackedNet] = frozenset()
    ports: frozenset[SetPort] = frozenset()

    @cached_property
    def ports_of_set(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """Set -> (protocol, port), sorted."""
        found: dict[str, list[tuple[int, int]]] = {}
        for name, protocol, port in sorted(self.ports):
            found.setdefault(name, []).append((protocol, port))
        return {name: tuple(there) for name, there in found.items()}


def packed_net(net: Network) -> PackedNet:
    return net.network_address.packed, net.prefixlen


class AddressClasses:
    """``change`` takes in what changed; ``of`` answers for any address.

    A change costs what comes and goes: members of sets, and networks that rules name; sets that go as a whole cost a
    look at every address. What is kept of a set is at its members.
    """

    def __init__(self, wanted: Wanted, remembered: int = REMEMBERED) -> None:
        self._most = remembered
        self._sets_at: _Holders[Packed, str] = _Holders()
        self._ports_at: _Holders[Packed, SetPort] = _Holders()
        self._around = _HeldNetworks()
        self._nets_of: dict[PolicyId, frozenset[PackedNet]] = {}
        self._policies_with: dict[PackedNet, int] = {}
        self._remembered: dict[Packed, AddressClass] = {}
        self._interned: dict[AddressClass, AddressClass] = {}
        self.change(WantedChanges(sets_made=wanted.sets, policies=wanted.policies))

    def change(self, changes: WantedChanges) -> None:
        if changes.sets_removed:
            self._remove(changes.sets_removed)
        for name, members in changes.sets_made.items():
            self._edit(name, SetChange(added=members))
        for name, change in changes.sets_changed.items():
            self._edit(name, change)
        for policy, found in changes.policies.items():
            self._name_nets(policy, found)

    def of(self, packed: Packed) -> AddressClass:
        """Equal classes are the same object until all are forgotten."""
        known = self._remembered.get(packed)
        if known is None:
            if len(self._remembered) >= self._most:
                self._forget()
            made = self._calculate(packed)
            known = self._remembered[packed] = self._interned.setdefault(made, made)
        return known

    def _calculate(self, packed: Packed) -> AddressClass:
        sets = self._sets_at.of(packed)
        nets: set[PackedNet] = set()
        around: set[str] = set()
        for net, holders in self._around.of(packed):
            if BY_RULES in holders:
                nets.add(net)
            around |= holders
        around.discard(BY_RULES)
        family = 4 if len(packed) == 4 else 6
        return AddressClass(family, sets | around, frozenset(nets), self._ports_at.of(packed))

    def _forget(self) -> None:
        self._remembered.clear()
        self._interned.clear()

    def _remove(self, names: frozenset[str]) -> None:
        self._sets_at.remove_all(names, lambda name: name)
        self._ports_at.remove_all(names, lambda port: port[0])
        self._around.remove_all(names)
        self._forget()

    def _edit(self, name: str, change: SetChange) -> None:
        for packed in change.removed.addresses:
            self._sets_at.remove(packed, name)
        for packed in change.added.addresses:
            self._sets_at.add(packed, name)
        for packed, protocol, port in change.removed.ports:
            self._ports_at.remove(packed, (name, protocol, port))
        for packed, protocol, port in change.added.ports:
            self._ports_at.add(packed, (name, protocol, port))
        for net in change.removed.nets:
            self._around.remove(net, name)
        for net in change.added.nets:
            self._around.add(net, name)
        if change.removed.nets or change.added.nets:
            self._forget()
            return
        for members in (change.removed, change.added):
            for packed in members.addresses:
                self._remembered.pop(packed, None)
            for packed, _, _ in members.ports:
                self._remembered.pop(packed, None)

    def _name_nets(self, policy: PolicyId, found: WantedPolicy | None) -> None:
        before = self._nets_of.pop(policy, frozenset())
        now = frozenset() if found is None else _nets_named_in(found)
        if now:
            self._nets_of[policy] = now
        for net in now - before:
            self._policies_with[net] = self._policies_with.get(net, 0) + 1
            if self._policies_with[net] == 1:
                self._around.add(net, BY_RULES)
                self._forget()
        for net in before - now:
            self._policies_with[net] -= 1
            if not self._policies_with[net]:
                del self._policies_with[net]
                self._around.remove(net, BY_RULES)
                self._forget()


class _Holders(Generic[HeldAt, HeldName]):
    """What is at each place, as frozen sets, of which equal ones are mostly the same object: many addresses are in the
    same sets.
    """

    def __init__(self) -> None:
        self._at: dict[HeldAt, frozenset[HeldName]] = {}
        self._same: dict[frozenset[HeldName], frozenset[HeldName]] = {}
        self._after: dict[tuple[frozenset[HeldName], HeldName, bool], frozenset[HeldName]] = {}

    def __bool__(self) -> bool:
        return bool(self._at)

    def of(self, place: HeldAt) -> frozenset[HeldName]:
        return self._at.get(place, frozenset())

    def add(self, place: HeldAt, element: HeldName) -> None:
        self._step(place, element, adds=True)

    def remove(self, place: HeldAt, element: HeldName) -> None:
        self._step(place, element, adds=False)

    def _step(self, place: HeldAt, element: HeldName, *, adds: bool) -> None:
        before = self._at.get(place, frozenset())
        step = before, element, adds
        after = self._after.get(step)
        if after is None:
            if len(self._after) >= _SHARED:
                self._after.clear()
                self._same.clear()
            after = self._after[step] = self._shared(before | {element} if adds else before - {element})
        self._set(place, after)

    def _shared(self, elements: frozenset[HeldName]) -> frozenset[HeldName]:
        return self._same.setdefault(elements, elements)

    def _set(self, place: HeldAt, after: frozenset[HeldName]) -> None:
        if after:
            self._at[place] = after
        else:
            self._at.pop(place, None)

    def remove_all(self, names: frozenset[str], name_of: Callable[[HeldName], str]) -> None:
        """Everything of these names, wherever it is."""
        left: dict[frozenset[HeldName], frozenset[HeldName]] = {}
        for place, before in list(self._at.items()):
            after = left.get(before)
            if after is None:
                kept = frozenset(element for element in before if name_of(element) not in names)
                after = left[before] = before if len(kept) == len(before) else self._shared(kept)
            if after is not before:
                self._set(place, after)


class _HeldNetworks:
    """Who names a network, found by an address in it: one look for each length that there is."""

    def __init__(self) -> None:
        self._by_size: dict[int, dict[int, _Holders[int, str]]] = {4: {}, 16: {}}  # bytes -> length -> number

    def add(self, net: PackedNet, holder: str) -> None:
        packed, length = net
        there = self._by_size[len(packed)].setdefault(length, _Holders())
        there.add(int.from_bytes(packed, "big"), holder)

    def remove(self, net: PackedNet, holder: str) -> None:
        packed, length = net
        there = self._by_size[len(packed)][length]
        there.remove(int.from_bytes(packed, "big"), holder)
        if not there:
            del self._by_size[len(packed)][length]

    def remove_all(self, names: frozenset[str]) -> None:
        for size, lengths in self._by_size.items():
            for there in lengths.values():
                there.remove_all(names, lambda name: name)
            self._by_size[size] = {length: there for length, there in lengths.items() if there}

    def of(self, packed: Packed) -> Iterator[tuple[PackedNet, frozenset[str]]]:
        size, number = len(packed), int.from_bytes(packed, "big")
        for length, there in self._by_size[size].items():
            beginning = number >> (8 * size - length) << (8 * size - length)
            if holders := there.of(beginning):
                yield (beginning.to_bytes(size, "big"), length), holders


def _nets_named_in(policy: WantedPolicy) -> frozenset[PackedNet]:
    sides = (side for rule in policy.rules() for side in (rule.source, rule.destination))
    return frozenset(packed_net(net) for side in sides for net in (*side.nets, *side.not_nets))
