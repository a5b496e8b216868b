"""PURE: the labels that an end has had, and which of them are meant at a time.

Rule: labels count from when somebody told of them; the first ones that are known also before.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

_VERSIONS = 4  # of labels of an end, until they are in the sums' file, some seconds later
_SINCE = itemgetter(0)


class LabelsSince(NamedTuple):
    """``since``: when somebody first told of them, in microseconds since 1970; 0: before anything else is known."""

    since: int
    labels: Mapping[str, str]


LabelVersions = Sequence[LabelsSince]
"""The labels that an end had, the oldest first."""


def note_labels(told: LabelVersions, labels: Mapping[str, str], now: float) -> LabelVersions:
    """The newest few of what was told of an end, now that somebody tells of these labels; itself if it has them."""
    if told and told[-1].labels == labels:
        return told
    return *told[1 - _VERSIONS :], LabelsSince(int(now * 1e6), labels)


class LabelsMeant(NamedTuple):
    """``labels``: at the end of a time; ``changed``: they were others when it began."""

    since: int
    labels: Mapping[str, str]
    changed: bool


def labels_at(versions: LabelVersions, began: int, until: int) -> LabelsMeant | None:
    """``versions``: the first one counts also before. ``began``, ``until``: in microseconds since 1970."""
    if not versions:
        return None
    if len(versions) == 1:
        return LabelsMeant(0, versions[0].labels, False)
    first, last = (max(1, bisect_right(versions, at, key=_SINCE)) for at in (began, until))
    return LabelsMeant(*versions[last - 1], first != last)


def render_labels(labels: Mapping[str, str]) -> str:
    """Equal ones are the same text."""
    return json.dumps(labels, sort_keys=True, separators=(",", ":"))


def parse_labels(text: str) -> Mapping[str, str]:
    """Raises ValueError."""
    labels = json.loads(text)
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise ValueError("labels that are no names with texts")
    return labels
