"""The labels that ends had when their flows were recorded: those of now, and those before that the sums' file keeps.

Rule: a flow has the labels that its end had when it began, also once the end is gone or the recorder is another one.
Labels are known from when somebody told the recorder of them; what was before the first ones that are known had these,
too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from cni_calico.flows.labels import LabelsSince, LabelVersions
from cni_calico.flows.names import EndName

_REMEMBERED = 5_000  # ends


class KeptLabels(Protocol):
    """What the file of sums does, as ``database``."""

    def labels_of(self, name: EndName) -> list[LabelsSince]: ...

    def keep_labels(self, bucket: int, name: EndName, labels: LabelsSince) -> None: ...


class LabelHistory:
    """``told``: an end's labels, as somebody tells of them and has told lately; ``since`` 0: before ``began``, which is
    when this recorder did, in microseconds since 1970.
    """

    def __init__(self, told: Callable[[EndName], LabelVersions], began: int) -> None:
        self._told, self._began = told, began
        self._kept: dict[EndName, list[LabelsSince]] = {}
        self._noted: dict[EndName, tuple[int, Mapping[str, str]]] = {}  # in which bucket they were kept last

    def forget(self) -> None:
        """What was written may not be there any more."""
        self._kept.clear()
        self._noted.clear()

    def note(self, file: KeptLabels, bucket: int, name: EndName) -> None:
        """Keep the labels of an end as long as this bucket is there. Raises as the file does."""
        told = self._told(name)
        if not told:
            return
        noted = self._noted.get(name)
        if noted is not None and noted[0] >= bucket and noted[1] is told[-1].labels:
            return
        kept = self._kept_of(file, name)
        new = self._new(kept, told)
        for one in (*kept[-1:], *new):
            file.keep_labels(bucket, name, one)
        kept += new
        if len(self._noted) >= _REMEMBERED:
            self._noted.clear()
        self._noted[name] = bucket, told[-1].labels

    def versions(self, file: KeptLabels | None, name: EndName) -> LabelVersions:
        """Raises as the file does."""
        kept = [] if file is None else self._kept_of(file, name)
        new = self._new(kept, self._told(name))
        return [*kept, *new] if new else kept

    def _new(self, kept: LabelVersions, told: LabelVersions) -> list[LabelsSince]:
        """What is told and is not kept yet."""
        if len(told) == 1 and kept and kept[-1].labels == told[0].labels:
            return []
        new = list[LabelsSince]()
        last = kept[-1] if kept else None
        for since, labels in told:
            if last is None:
                last = LabelsSince(0, labels)
            elif labels != last.labels and (since or self._began) > last.since:
                last = LabelsSince(since or self._began, labels)
            else:
                continue
            new.append(last)
        return new

    def _kept_of(self, file: KeptLabels, name: EndName) -> list[LabelsSince]:
        known = self._kept.get(name)
        if known is None:
            if len(self._kept) >= _REMEMBERED:
                self._kept.clear()
            known = self._kept[name] = file.labels_of(name)
            if known:
                known[0] = known[0]._replace(since=0)
        return known
