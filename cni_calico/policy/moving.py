"""PURE: large network sets that go, or get other labels, on their way in portions.

Rule: a member counts by the labels before until its portion comes, and by those after from then on: no selector that
has matched all the time ever misses it. What goes stays until all that comes is there, because a network may come for
its addresses; unless it is changed so often that this never happens. What has not moved yet is held under a key of its
own, which no record has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice

from cni_calico.model.keys import ResourceKey
from cni_calico.policy.records import Labelled
from cni_calico.policy.wanted import PackedNet

AT_ONCE = 4000  # members of sets that come and go in a step
_STEPS = 1000  # at most, however many sets a member is in
_MOST_LEFT = 4  # versions of which something is left, until the oldest goes whatever comes

NetMember = bytes | PackedNet


@dataclass(frozen=True, slots=True)
class ItemsOfSets:
    """What moves works on. ``put`` does so at once, as does ``rename``, which changes no set; ``matches``: the number
    of sets that an item is in.
    """

    held: Mapping[ResourceKey, Labelled]
    put: Callable[[ResourceKey, Labelled | None], None]
    rename: Callable[[ResourceKey, ResourceKey], None]
    matches: Callable[[ResourceKey], int]


@dataclass(slots=True)
class _Move:
    """``wanted``: what is to be held under the key in the end; ``left``: the keys that have what has not moved yet."""

    wanted: Labelled | None
    left: list[ResourceKey] = field(default_factory=list)


class MovingItems:
    """True while anything moves."""

    def __init__(self, items: ItemsOfSets) -> None:
        self._items = items
        self._moves: dict[ResourceKey, _Move] = {}
        self._numbers = count()

    def __bool__(self) -> bool:
        return bool(self._moves)

    def __iter__(self) -> Iterator[ResourceKey]:
        return iter(self._moves)

    def __contains__(self, key: ResourceKey) -> bool:
        return key in self._moves

    def wanted(self, key: ResourceKey) -> Labelled | None:
        """What an item that moves will be."""
        return self._moves[key].wanted

    def begin(self, key: ResourceKey, item: Labelled | None) -> None:
        """An item that is held gets other labels or goes, or one that moves is to be another one."""
        move = self._moves.setdefault(key, _Move(None))
        if item is not None and move.wanted is not None and labels_of(move.wanted) == labels_of(item):
            move.wanted = item
            return
        held, move.wanted = self._items.held.get(key), item
        if held is not None and members_of(held):
            left = key._replace(name=f"{key.name}\0{next(self._numbers)}")
            self._items.rename(key, left)
            move.left.append(left)
        self._items.put(key, None if item is None else replace(item, addresses=(), nets=()))

    def step(self, most: int | None) -> None:
        """Move about so many members of sets, None: everything. Each item has its turn."""
        for key in tuple(self._moves):
            move = self._moves.pop(key)
            while self._advance(key, move, most):
                if most is not None:
                    self._moves[key] = move  # behind the others
                    return

    def _advance(self, key: ResourceKey, move: _Move, most: int | None) -> bool:
        """Returns whether there is more to do."""
        held = self._items.held
        there = [one for one in (key, *move.left) if one in held]
        sizes = sum(len(members_of(held[one])) for one in there)
        every = 1 + sum(map(self._items.matches, there))
        most = sizes + len(members_of(move.wanted)) if most is None else max(1, most // every, sizes // _STEPS)
        wanted = members_of(move.wanted)
        if move.wanted is not None:
            has = members_of(held[key])
            missing = [one for one in wanted if one not in has]
            came = missing[:most]
            goes = len(missing) <= most or len(has) > 2 * len(wanted)
            gone = set(islice((one for one in has if one not in wanted), most if goes else 0))
            after = {**dict.fromkeys(one for one in has if one not in gone), **dict.fromkeys(came)}
            is_there = after.keys() == wanted.keys()
            self._items.put(key, move.wanted if is_there else with_members(move.wanted, after))
            for left in move.left:
                self._drop(left, came)
        else:
            is_there = True
        for left in move.left[:1] if is_there or len(move.left) > _MOST_LEFT else ():
            self._drop(
                left, list(islice((one for one in members_of(held[left]) if is_there or one not in wanted), most))
            )
        for left in [one for one in move.left if not members_of(held[one])]:
            self._items.put(left, None)
            move.left.remove(left)
        return not is_there or bool(move.left)

    def _drop(self, key: ResourceKey, members: Collection[NetMember]) -> None:
        item = self._items.held[key]
        has = members_of(item)
        if not has.keys().isdisjoint(members):
            without = set(members)
            self._items.put(key, with_members(item, (one for one in has if one not in without)))


def labels_of(item: Labelled) -> tuple[object, ...]:
    return item.labels, item.profiles


def members_of(item: Labelled | None) -> dict[NetMember, None]:
    """Each once, in their order."""
    return {} if item is None else dict.fromkeys((*item.addresses, *item.nets))


def with_members(item: Labelled, members: Iterable[NetMember]) -> Labelled:
    listed = tuple(members)
    addresses = tuple(one for one in listed if isinstance(one, bytes))
    return replace(item, addresses=addresses, nets=tuple(one for one in listed if not isinstance(one, bytes)))
