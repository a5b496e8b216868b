"""PURE: workloads as people mean them (pods with equal labels), and the shortest selectors that select only those.

Rule: a selector that is returned selects every pod of its workload and no other one that there is.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping
from itertools import combinations

StableLabels = frozenset[tuple[str, str]]
BEST_LABELS = ("app.kubernetes.io/name", "app", "k8s-app")
# what an owner gives each of its pods, or each of its versions, and what the datastore adds
VOLATILE = (
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "job-name",
    "controller-uid",
    "batch.kubernetes.io/job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-completion-index",
)
_OURS = "projectcalico.org/"
_NAME = re.compile(r"[A-Za-z0-9_./-]{1,512}")
_MOST_TRIED, _MOST_LABELS = 12, 3  # of a workload with more labels only these are combined


def stable_labels(labels: Mapping[str, str]) -> StableLabels:
    """What pods of one workload have in common; labels that no selector can name are left out."""
    return frozenset(
        (name, value)
        for name, value in labels.items()
        if name not in VOLATILE
        and not name.startswith(_OURS)
        and _NAME.fullmatch(name)
        and value.isprintable()
        and not ("'" in value and '"' in value)
    )


def shortest_selector(wanted: StableLabels, others: Iterable[StableLabels]) -> str:
    """Selects what has all labels of ``wanted``, and nothing of ``others``, which must be another set of labels."""
    others = [one for one in others if one != wanted]
    for some in _tried(wanted):
        if not any(some <= one for one in others):
            return _selector(some)
    more = [one for one in others if wanted <= one]
    without: set[str] = set()
    for one in sorted(more, key=sorted):
        if without.isdisjoint(name for name, _ in one):
            without.add(min(name for name, _ in one - wanted))
    return _selector(wanted, without)


def _tried(wanted: StableLabels) -> Iterator[StableLabels]:
    """The fewest first, of these the best known first."""
    ranked = sorted(wanted, key=_rank)[:_MOST_TRIED]
    for count in range(1, _MOST_LABELS + 1):
        yield from map(frozenset, combinations(ranked, count))
    if len(wanted) > _MOST_LABELS:
        yield wanted


def _rank(label: tuple[str, str]) -> tuple[Hashable, ...]:
    name, _ = label
    return (BEST_LABELS.index(name) if name in BEST_LABELS else len(BEST_LABELS), name)


def _selector(labels: StableLabels, without: Iterable[str] = ()) -> str:
    parts = [f"{name} == {_quoted(value)}" for name, value in sorted(labels, key=_rank)]
    parts += [f"!has({name})" for name in sorted(without)]
    return " && ".join(parts) or "all()"


def _quoted(value: str) -> str:
    return f'"{value}"' if "'" in value else f"'{value}'"
