"""PURE: the members of every set that a rule in force names.

Rule: the output is the difference since the last flush (counted.py). Nothing is computed for a set that no rule in
force names. A large network set that goes, or gets other labels, does so in portions (moving.py).

How many members there are is the product of two texts, of selectors and of what they select, so there may be no memory
for them (``admits``): then a set is not made (NoRoom), and a namespace's network set waits, as it was or absent.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.counted import CountedSet, Member
from cni_calico.policy.labels import LabelIndex, LabelSet
from cni_calico.policy.members import members_from, members_of_slice
from cni_calico.policy.moving import AT_ONCE, ItemsOfSets, MovingItems, labels_of, members_of
from cni_calico.policy.records import Labelled, ServiceMembers
from cni_calico.policy.sources import NodeSource, PortSource, ServiceSource, SetSource
from cni_calico.policy.steps import Steps, finish
from cni_calico.policy.wanted import Members, SetChange

AdmitsMembers = Callable[[int], bool]
_LAST = object()
NETWORK_SET, NODE = "NetworkSet", "Node"
NETWORK_SETS = ("GlobalNetworkSet", NETWORK_SET)
_ASKED_EVERY = 2000  # members
_LOOKED_AT_ONCE = 40_000  # networks that a flush looks at: some 20 ms
_EACH_CHANGE = 4  # a network that comes or goes costs as much as so many that are looked at


class NoRoom(Exception):
    """There is no memory for a set's members."""


@dataclass(frozen=True, slots=True)
class SetChanges:
    made: Mapping[str, Members]
    changed: Mapping[str, SetChange]
    removed: frozenset[str]


class Sets:
    """``need`` and ``release`` count the rules that name a set; the other methods note what may be a member.

    ``admits``: whether there is memory for so many members more than at the last flush. ``made``: all that were ever
    added.
    ``waiting``: the namespaces' network sets for whose members there is none, and their number.
    """

    def __init__(self) -> None:
        self.admits: AdmitsMembers = lambda members: True
        self.made = 0
        self.waiting: dict[ResourceKey, int] = {}
        self._flushed_at = self._asked_at = 0  # of ``made``
        self._freed = 0  # networks that namespaces' network sets have fewer
        self._needs: dict[str, int] = {}
        self._services = 0  # of them, those of services
        self._of_nodes = 0  # and of nodes
        self._sources: dict[str, SetSource] = {}
        self._unsettled: dict[str, None] = {}  # ids whose need began or ended, and nothing has followed from it yet
        self._making: dict[str, Steps[None]] = {}  # sets that do not have all their members yet: the steps left
        self._sets: dict[str, CountedSet] = {}
        self._changed: dict[str, None] = {}
        self._index: LabelIndex[ResourceKey, str] = LabelIndex(self._on_match)
        self._index_of_nodes: LabelIndex[ResourceKey, str] = LabelIndex(self._on_match)
        self._items: dict[ResourceKey, Labelled] = {}
        self._moving = MovingItems(ItemsOfSets(self._items, self._put, self._rename, self._count_own))
        self._slices: dict[ResourceKey, ServiceMembers] = {}
        self._slices_of: dict[tuple[str, str], set[ResourceKey]] = {}
        self._service_sets: dict[tuple[str, str], set[str]] = {}

    # -- who names them -----------------------------------------------------------------------------------------------

    def need(self, source: SetSource) -> None:
        count = self._needs.get(source.id, 0)
        self._needs[source.id] = count + 1
        if not count:
            self._sources[source.id] = source
            self._services += isinstance(source, ServiceSource)
            self._of_nodes += isinstance(source, NodeSource)
            self._unsettled[source.id] = None

    def release(self, set_id: str) -> None:
        self._needs[set_id] -= 1
        if not self._needs[set_id]:
            del self._needs[set_id]
            self._services -= isinstance(self._sources[set_id], ServiceSource)
            self._of_nodes -= isinstance(self._sources[set_id], NodeSource)
            self._unsettled[set_id] = None

    def making(self, set_id: str) -> Steps[None]:
        """Make a set that is needed, a part of it at each step; each flush reports what it has so far. Raises NoRoom:
        what is made so far stays until nobody needs it.
        """
        if set_id not in self._sets and set_id in self._needs:
            self._begin(self._sources[set_id])
        while set_id in self._making:
            if next(self._making[set_id], _LAST) is _LAST:
                self._making.pop(set_id, None)
            if self.made - self._asked_at >= _ASKED_EVERY:
                self._asked_at = self.made
                if not self.admits(self.coming):
                    raise NoRoom
            yield

    def complete(self, set_id: str, *, bounded: bool) -> None:
        """A rule reads it from now on. ``bounded``: raises NoRoom, as ``making``."""
        if bounded:
            finish(self.making(set_id))
            return
        if set_id not in self._sets:
            self._begin(self._sources[set_id])
        for _ in self._making.pop(set_id, ()):
            pass

    @property
    def coming(self) -> int:
        """The members that were added since the last flush."""
        return self.made - self._flushed_at

    @property
    def is_behind(self) -> bool:
        """Whether the last flush has left something to the next."""
        return bool(self._unsettled) or bool(self._moving) or bool(self._changed)

    @property
    def services(self) -> int:
        """How many sources in force have their members from services."""
        return self._services

    @property
    def selectors(self) -> int:
        """How many sources in force select endpoints and network sets by their labels."""
        return len(self._needs) - self._services - self._of_nodes

    @property
    def nodes(self) -> int:
        """How many sources in force select nodes."""
        return self._of_nodes

    # -- who may be a member ------------------------------------------------------------------------------------------

    def set_item(self, key: ResourceKey, item: Labelled | None) -> None:
        before = self._items.get(key)
        if self.waiting:
            self.waiting.pop(key, None)
        is_moving = bool(self._moving) and key in self._moving
        if item == (self._moving.wanted(key) if is_moving else before):
            return
        if item is None and before is not None:
            self._freed += _size(before)
        if item is not None and self._has_to_wait(key, before, item):
            return
        if is_moving or self._has_to_move(key, before, item):
            self._moving.begin(key, item)
        else:
            self._put(key, item)

    def _put(self, key: ResourceKey, item: Labelled | None) -> None:
        before, index = self._items.get(key), self._index_for(key)
        if before is not None and item is not None and labels_of(before) == labels_of(item):
            self._exchange(key, before, item)
            return
        if before is not None:
            label_set = index.label_set(key)
            for set_id in () if label_set is None else label_set.matches:
                self._remove(set_id, before)
        if item is None:
            self._items.pop(key, None)
            index.remove_item(key)
            return
        index.remove_item(key)
        label_set = index.set_item(key, item.labels, item.profiles)
        # one copy of the labels for all that share them
        self._items[key] = item.with_labels(label_set.own, label_set.profiles)
        for set_id in label_set.matches:
            self._add(set_id, item)

    def _index_for(self, key: ResourceKey) -> LabelIndex[ResourceKey, str]:
        """No selector of workloads matches a node, nor one of nodes anything else."""
        return self._index_of_nodes if key.kind == NODE else self._index

    def _has_to_move(self, key: ResourceKey, before: Labelled | None, item: Labelled | None) -> bool:
        """Whether it is a network set that gets other labels or goes, with too many members to do so at once."""
        if (
            key.kind not in NETWORK_SETS
            or before is None
            or (item is not None and labels_of(before) == labels_of(item))
        ):
            return False
        least = _size(before) + (0 if item is None else _size(item))
        if least * len(self._needs) <= AT_ONCE:
            return False
        members = _size(before) * self.count_matches(key, before)
        return members + (0 if item is None else _size(item) * self.count_matches(key, item)) > AT_ONCE

    def _rename(self, key: ResourceKey, to: ResourceKey) -> None:
        item = self._items.pop(key)
        self._index.set_item(to, item.labels, item.profiles)
        self._index.remove_item(key)
        self._items[to] = item

    def _count_own(self, key: ResourceKey) -> int:
        label_set = self._index.label_set(key)
        return 0 if label_set is None else len(label_set.matches)

    def _has_to_wait(self, key: ResourceKey, before: Labelled | None, item: Labelled) -> bool:
        """Whether it is a namespace's network set for whose members there is no memory; then it is held back."""
        if key.kind != NETWORK_SET or not key.namespace:
            return False
        same = before is not None and labels_of(before) == labels_of(item)
        growth = _size(item) - (_size(before) if same and before is not None else 0)
        if growth < 0:
            self._freed -= growth
        members = growth * (1 + self.count_matches(key, item))  # once more for the record
        if members <= 0 or self.coming + members < _ASKED_EVERY or self.admits(self.coming + members):
            return False
        self.waiting[key] = members
        return True

    def count_matches(self, key: ResourceKey, item: Labelled) -> int:
        """The sets that an item with these labels is a member of, or would be."""
        found = self._index.label_set(key)
        if found is not None and (found.own, found.profiles) == labels_of(item):
            return len(found.matches)
        probe = key._replace(name=f"{key.name}\0")  # no record has such a name
        count = len(self._index.set_item(probe, item.labels, item.profiles).matches)
        self._index.remove_item(probe)
        return count

    def take_freed(self) -> bool:
        """Whether network sets have become much smaller since the last call that said so."""
        found = self._freed >= _ASKED_EVERY
        if found:
            self._freed = 0
        return found

    def next_waiting(self) -> ResourceKey | None:
        """The one with the fewest members, if there is memory for it."""
        key = min(self.waiting, key=lambda key: (self.waiting[key], str(key)), default=None)
        return key if key is not None and self.admits(self.coming + self.waiting[key]) else None

    def is_blind(self, namespace: str) -> bool:
        """Whether a network set of it is not known as it is stored."""
        return any(key.namespace == namespace for key in self.waiting)

    def _exchange(self, key: ResourceKey, before: Labelled, item: Labelled) -> None:
        """The labels stay."""
        label_set = self._index_for(key).label_set(key)
        assert label_set is not None
        self._items[key] = replace(item, labels=label_set.own, profiles=label_set.profiles)
        old, new = members_of(before).keys(), members_of(item).keys()
        nets_gone, nets_added = old - new, new - old
        for set_id in label_set.matches:
            found = self._sets[set_id]
            gone: Collection[Member] = nets_gone
            added: Collection[Member] = nets_added
            if isinstance(found.source, PortSource):
                ports_before, ports = set(members_from(found.source, before)), set(members_from(found.source, item))
                gone, added = ports_before - ports, ports - ports_before
            found.discard(gone)
            found.add(added)
            self.made += len(added)
            self._changed[set_id] = None

    def held(self, key: ResourceKey) -> Labelled | ServiceMembers | None:
        """The newest record that counts, or will once it has moved."""
        if key in self._moving:
            return self._moving.wanted(key)
        return self._items.get(key) or self._slices.get(key)

    def keys(self) -> set[ResourceKey]:
        """Of everything that ``held`` knows."""
        return {*self._items, *self._slices, *self._moving}

    def set_profile(self, name: str, labels: Mapping[str, str] | None) -> None:
        self._index.set_profile(name, labels)

    def set_slice(self, key: ResourceKey, members: ServiceMembers | None) -> None:
        before = self._slices.pop(key, None)
        if before is not None:
            service = before.namespace, before.name
            self._slices_of[service].discard(key)
            if not self._slices_of[service]:
                del self._slices_of[service]
            for set_id in self._service_sets.get(service, ()):
                found = self._sets[set_id]
                found.discard(members_of_slice(found.source, before))
                self._changed[set_id] = None
        if members is None:
            return
        service = members.namespace, members.name
        self._slices[key] = members
        self._slices_of.setdefault(service, set()).add(key)
        for set_id in self._service_sets.get(service, ()):
            found = self._sets[set_id]
            found.add(members_of_slice(found.source, members))
            self._changed[set_id] = None

    def _on_match(self, set_id: str, label_set: LabelSet[ResourceKey, str], matches: bool) -> None:
        if set_id not in self._sets:  # the set is removed as a whole
            return
        change = self._add if matches else self._remove
        for key in label_set.items:
            change(set_id, self._items[key])

    def _add(self, set_id: str, item: Labelled) -> None:
        found = self._sets[set_id]
        members = members_from(found.source, item)
        found.add(members)
        self.made += len(members)
        self._changed[set_id] = None

    def _remove(self, set_id: str, item: Labelled) -> None:
        found = self._sets[set_id]
        found.discard(members_from(found.source, item))
        self._changed[set_id] = None

    # -- out ----------------------------------------------------------------------------------------------------------

    def flush(self, most_removed: int | None = None) -> SetChanges:
        """``most_removed``: how many sets to remove at most; the others are left to the next flush, as is what large
        network sets that go or get other labels have besides their first portion, and the networks that have come
        and gone of sets, once enough were looked at.
        """
        self._moving.step(None if most_removed is None else AT_ONCE)
        removed: set[str] = set()
        for set_id in tuple(self._unsettled):
            if set_id in self._needs:
                if set_id not in self._sets:
                    self.complete(set_id, bounded=False)
            elif len(removed) == most_removed:
                continue
            else:
                if set_id in self._sets:
                    removed.add(set_id)
                    self._unmake(set_id)
                del self._sources[set_id]
            del self._unsettled[set_id]
        made, changed, looked_at = {}, {}, 0
        for set_id in tuple(self._changed):
            found = self._sets[set_id]
            takes_nets = most_removed is None or found.is_new or looked_at < _LOOKED_AT_ONCE
            before = found.looked_at
            change = found.take_change(nets=takes_nets)
            looked_at += found.looked_at - before
            looked_at += _EACH_CHANGE * (len(change.added.nets) + len(change.removed.nets))
            if found.is_new:
                found.is_new = False
                made[set_id] = change.added
            elif change.added or change.removed:
                changed[set_id] = change
            if not found.is_behind:
                del self._changed[set_id]
        self._flushed_at = self._asked_at = self.made
        return SetChanges(made, changed, frozenset(removed))

    def all_members(self) -> dict[str, Members]:
        """Call it right after a flush."""
        return {set_id: found.members() for set_id, found in self._sets.items()}

    def _begin(self, source: SetSource) -> None:
        found = self._sets[source.id] = CountedSet(source)
        self._changed[source.id] = None
        if not isinstance(source, ServiceSource):
            index = self._index_of_nodes if isinstance(source, NodeSource) else self._index
            self._making[source.id] = index.adding(source.id, source.selector)
            return
        service = source.namespace, source.name
        self._service_sets.setdefault(service, set()).add(source.id)
        for key in self._slices_of.get(service, ()):
            found.add(members_of_slice(source, self._slices[key]))

    def _unmake(self, set_id: str) -> None:
        source = self._sets.pop(set_id).source
        self._making.pop(set_id, None)
        if isinstance(source, ServiceSource):
            named = self._service_sets[source.namespace, source.name]
            named.discard(set_id)
            if not named:
                del self._service_sets[source.namespace, source.name]
        else:
            index = self._index_of_nodes if isinstance(source, NodeSource) else self._index
            index.remove_selector(set_id)
        self._changed.pop(set_id, None)


def _size(item: Labelled) -> int:
    return len(item.addresses) + len(item.nets)
