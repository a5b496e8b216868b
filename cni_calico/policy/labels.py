"""PURE: which selectors match which labels, kept up to date while both change.

Rule: selectors are matched against a set of labels, never against an endpoint: endpoints with equal labels and profiles
share one ``LabelSet``. Two indexes reduce the work: from a label to the selectors that require it, and from a label to
the label sets that have it. A selector that requires nothing positive is matched against everything; such selectors are
rare.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from cni_calico.model.selector_forms import Requirement, requirements_of
from cni_calico.model.selectors import Selector
from cni_calico.policy.steps import Steps, finish

LabelOwner = TypeVar("LabelOwner")  # the type of the items that have labels
SelectorOwner = TypeVar("SelectorOwner")  # the type of the owners of selectors
Own = frozenset[tuple[str, str]]
_NOTHING: Mapping[str, str] = {}


class LabelSet(Generic[LabelOwner, SelectorOwner]):
    """Equal labels of one or more items: their own, and those of ``profiles`` (own labels win, then the first profile).

    ``matches`` are the selectors that match. Items of different ``groups`` never share one.
    """

    __slots__ = ("group", "items", "labels", "matches", "own", "profiles")

    def __init__(self, own: Own, profiles: tuple[str, ...], group: str) -> None:
        self.group = group
        self.own = own
        self.profiles = profiles
        self.labels: Mapping[str, str] = _NOTHING
        self.items: set[LabelOwner] = set()
        self.matches: set[SelectorOwner] = set()


class LabelIndex(Generic[LabelOwner, SelectorOwner]):
    """``on_change(asked, label set, matches)`` is called whenever a selector begins or ceases to match a label set.

    When a label set is created it has no items yet, and when it is removed it has none any more.
    """

    def __init__(self, on_change: Callable[[SelectorOwner, LabelSet[LabelOwner, SelectorOwner], bool], None]) -> None:
        self._on_change = on_change
        self._sets: dict[tuple[Own, tuple[str, ...], str], LabelSet[LabelOwner, SelectorOwner]] = {}
        self._of_item: dict[LabelOwner, LabelSet[LabelOwner, SelectorOwner]] = {}
        self._profiles: dict[str, Mapping[str, str]] = {}
        self._heirs: dict[str, set[LabelSet[LabelOwner, SelectorOwner]]] = {}  # by profile
        self._having: dict[str, dict[str, set[LabelSet[LabelOwner, SelectorOwner]]]] = {}  # by label and value
        self._selectors: dict[SelectorOwner, Selector] = {}
        self._asked = _Askers[SelectorOwner]()

    # -- items --------------------------------------------------------------------------------------------------------

    def label_set(self, item: LabelOwner) -> LabelSet[LabelOwner, SelectorOwner] | None:
        return self._of_item.get(item)

    def set_item(
        self, item: LabelOwner, own: Own, profiles: tuple[str, ...], group: str = ""
    ) -> LabelSet[LabelOwner, SelectorOwner]:
        """Give the item its label set; a caller that needs the previous one must get it before.

        An item's ``group`` never changes.
        """
        before = self._of_item.get(item)
        if before is not None and before.own == own and before.profiles == profiles:
            return before
        label_set = self._sets.get((own, profiles, group)) or self._make(own, profiles, group)
        label_set.items.add(item)
        self._of_item[item] = label_set
        if before is not None:
            self._leave(item, before)
        return label_set

    def remove_item(self, item: LabelOwner) -> None:
        before = self._of_item.pop(item, None)
        if before is not None:
            self._leave(item, before)

    def _leave(self, item: LabelOwner, label_set: LabelSet[LabelOwner, SelectorOwner]) -> None:
        label_set.items.discard(item)
        if label_set.items:
            return
        del self._sets[label_set.own, label_set.profiles, label_set.group]
        self._rematch(label_set, ())
        self._unpost(label_set)
        for profile in label_set.profiles:
            heirs = self._heirs[profile]
            heirs.discard(label_set)
            if not heirs:
                del self._heirs[profile]

    def _make(self, own: Own, profiles: tuple[str, ...], group: str) -> LabelSet[LabelOwner, SelectorOwner]:
        label_set = LabelSet[LabelOwner, SelectorOwner](own, profiles, group)
        self._sets[own, profiles, group] = label_set
        for profile in dict.fromkeys(profiles):
            self._heirs.setdefault(profile, set()).add(label_set)
        self._relabel(label_set)
        return label_set

    # -- inheritance --------------------------------------------------------------------------------------------------

    def set_profile(self, name: str, labels: Mapping[str, str] | None) -> None:
        """None: there is no such profile."""
        before = self._profiles.get(name, _NOTHING)
        if labels:
            self._profiles[name] = dict(labels)
        else:
            self._profiles.pop(name, None)
        if before != (labels or _NOTHING):
            for label_set in tuple(self._heirs.get(name, ())):
                self._relabel(label_set)

    def heirs(self, profile: str) -> Collection[LabelSet[LabelOwner, SelectorOwner]]:
        """The label sets with that profile, whether the profile exists or not."""
        return self._heirs.get(profile, ())

    def _relabel(self, label_set: LabelSet[LabelOwner, SelectorOwner]) -> None:
        labels: dict[str, str] = {}
        for profile in reversed(label_set.profiles):
            labels.update(self._profiles.get(profile, _NOTHING))
        labels.update(label_set.own)
        self._unpost(label_set)
        label_set.labels = labels
        for label, value in labels.items():
            self._having.setdefault(label, {}).setdefault(value, set()).add(label_set)
        asked = self._asked.by_labels(labels)
        self._rematch(label_set, [one for one in asked if self._selectors[one].matches(labels)])

    def _unpost(self, label_set: LabelSet[LabelOwner, SelectorOwner]) -> None:
        for label, value in label_set.labels.items():
            by_value = self._having[label]
            by_value[value].discard(label_set)
            if not by_value[value]:
                del by_value[value]
                if not by_value:
                    del self._having[label]

    def _rematch(self, label_set: LabelSet[LabelOwner, SelectorOwner], matches: Iterable[SelectorOwner]) -> None:
        before, label_set.matches = label_set.matches, set(matches)
        for asked in before - label_set.matches:
            self._on_change(asked, label_set, False)
        for asked in label_set.matches - before:
            self._on_change(asked, label_set, True)

    # -- selectors ----------------------------------------------------------------------------------------------------

    def add_selector(self, asked: SelectorOwner, selector: Selector) -> None:
        """``asked`` must not have a selector yet."""
        finish(self.adding(asked, selector))

    def adding(self, asked: SelectorOwner, selector: Selector) -> Steps[None]:
        """As ``add_selector``, a label set at each step. Between the steps label sets may come, go and change, and the
        selector may be removed again.
        """
        required = requirements_of(selector)
        self._selectors[asked] = selector
        self._asked.add(asked, required)
        for label_set in self._candidates(required):
            if self._selectors.get(asked) is not selector:
                return
            key = label_set.own, label_set.profiles, label_set.group
            is_there = self._sets.get(key) is label_set
            if is_there and asked not in label_set.matches and selector.matches(label_set.labels):
                label_set.matches.add(asked)
                self._on_change(asked, label_set, True)
            yield

    def remove_selector(self, asked: SelectorOwner) -> None:
        selector = self._selectors.pop(asked, None)
        if selector is None:
            return
        required = requirements_of(selector)
        self._asked.remove(asked, required)
        for label_set in self._candidates(required):
            if asked in label_set.matches:
                label_set.matches.discard(asked)
                self._on_change(asked, label_set, False)

    def any_match(self, selector: Selector) -> bool:
        candidates = self._candidates(requirements_of(selector))
        return any(selector.matches(label_set.labels) for label_set in candidates)

    def _candidates(self, required: tuple[Requirement, ...]) -> list[LabelSet[LabelOwner, SelectorOwner]]:
        """The label sets that fulfil one of the requirements: the one that the fewest label sets fulfil."""
        if not required:
            return list(self._sets.values())
        postings = [list(self._postings(one)) for one in required]
        fewest = min(postings, key=lambda found: sum(map(len, found)))
        return [label_set for found in fewest for label_set in found]

    def _postings(self, one: Requirement) -> Iterator[set[LabelSet[LabelOwner, SelectorOwner]]]:
        by_value = self._having.get(one.label, {})
        for value in by_value if one.values is None else one.values:
            if value in by_value:
                yield by_value[value]


class _Askers(Generic[SelectorOwner]):
    """Finds the selectors that may match a set of labels, by each selector's first requirement."""

    __slots__ = ("_always", "_by_label", "_by_value")

    def __init__(self) -> None:
        self._always: dict[SelectorOwner, None] = {}
        self._by_label: dict[str, dict[SelectorOwner, None]] = {}
        self._by_value: dict[tuple[str, str], dict[SelectorOwner, None]] = {}

    def _places(
        self, required: tuple[Requirement, ...]
    ) -> Iterator[tuple[dict[Any, dict[SelectorOwner, None]], object]]:
        first = required[0]
        if first.values is None:
            yield self._by_label, first.label
        else:
            for value in first.values:
                yield self._by_value, (first.label, value)

    def add(self, asked: SelectorOwner, required: tuple[Requirement, ...]) -> None:
        if not required:
            self._always[asked] = None
            return
        for index, key in self._places(required):
            index.setdefault(key, {})[asked] = None

    def remove(self, asked: SelectorOwner, required: tuple[Requirement, ...]) -> None:
        if not required:
            self._always.pop(asked, None)
            return
        for index, key in self._places(required):
            found = index[key]
            del found[asked]
            if not found:
                del index[key]

    def by_labels(self, labels: Mapping[str, str]) -> Iterator[SelectorOwner]:
        yield from self._always
        for pair in labels.items():
            yield from self._by_value.get(pair, ())
            yield from self._by_label.get(pair[0], ())
