"""What was not recorded: how much, from when to when, and why; kept for as long as anybody may ask.

Rule: nothing is lost silently. A number that nobody can know is said to be unknown. What is lost piece by piece is one
loss, up to a minute long, and one line of the file for some seconds; the lines are joined again when they are read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from cni_calico.kernel.files import Files
from cni_calico.regular import append_whole, make_directories, read_regular

NAME = "losses"
ALLOWED, DENIED, ENDS = "nflog-allowed", "nflog-denied", "destroy"
OVERRUN, RATE, AWAY = "overrun", "rate", "recorder"
_KEPT, _MOST_BYTES = 2000, 1 << 20
_APART_S, _LONGEST_S, _WRITE_S = 5.0, 60.0, 5.0


@dataclass(frozen=True, slots=True)
class Loss:
    """``begin``, ``end``: seconds since 1970. ``count``: reports; None: nobody knows."""

    begin: float
    end: float
    source: str
    why: str
    count: int | None


class Losses:
    """``counts``: since this one began, by source and reason; what nobody could count counts once each time."""

    def __init__(self, state_dir: str) -> None:
        self._path = f"{state_dir}/{NAME}"
        self._kept: list[Loss] = []
        self._unwritten: list[Loss] = []
        self._lines, self.counts = 0, Counter[tuple[str, str]]()
        try:
            lines = read_regular(self._path, _MOST_BYTES, follow=False).decode("utf-8", "replace").splitlines()
        except OSError:
            lines = []  # there are none, or they are forgotten with the file
        for loss in map(_parse, lines):
            if loss is not None:
                self._lines += 1
                self._kept = _joined(self._kept, loss)
        if self._lines < len(lines):
            self._lines = 2 * _KEPT  # torn: it is written anew

    def add(self, loss: Loss) -> None:
        """``flush`` writes it."""
        self.counts[loss.source, loss.why] += 1 if loss.count is None else loss.count
        self._kept = _joined(self._kept, loss)
        self._unwritten = _joined(self._unwritten, loss)

    @property
    def wait(self) -> bool:
        """Whether there are some that ``flush`` has still to write."""
        return bool(self._unwritten)

    def flush(self, now: float | None = None) -> None:
        """Write what has been lost for some seconds; None: all of it."""
        if not self._unwritten or (now is not None and 0 <= now - self._unwritten[0].begin < _WRITE_S):
            return
        anew = self._lines + len(self._unwritten) > 2 * _KEPT
        lines = self._kept if anew else self._unwritten
        try:
            if anew:
                make_directories(os.path.dirname(self._path), 0o700)
                Files().write_atomic(self._path, _render(lines), 0o600, durable=False)
            else:
                append_whole(self._path, _render(lines))
            self._lines = len(lines) + (0 if anew else self._lines)
            self._unwritten = []
        except OSError:
            pass  # it is still told by this process

    def between(self, since: float | None, until: float | None = None) -> list[Loss]:
        """Of which a part lies there."""
        after, before = since or 0.0, float("inf") if until is None else until
        return [loss for loss in self._kept if loss.end >= after and loss.begin <= before]


def _joined(kept: list[Loss], loss: Loss) -> list[Loss]:
    """With one that comes later; the newest of those that there are."""
    for at in range(len(kept) - 1, max(-1, len(kept) - 4), -1):  # three sources may lose something by turns
        one = kept[at]
        near = one.begin <= loss.begin <= one.end + _APART_S and loss.end <= one.begin + _LONGEST_S
        if (one.source, one.why) == (loss.source, loss.why) and near and loss.why != AWAY:
            count = None if one.count is None or loss.count is None else one.count + loss.count
            kept[at] = replace(one, end=max(one.end, loss.end), count=count)
            return kept
    return [*kept, loss][-_KEPT:]


def _render(losses: Iterable[Loss]) -> bytes:
    return "".join(json.dumps([one.begin, one.end, one.source, one.why, one.count]) + "\n" for one in losses).encode()


def _parse(line: str) -> Loss | None:
    try:
        begin, end, source, why, count = json.loads(line)
        return Loss(float(begin), float(end), str(source), str(why), None if count is None else int(count))
    except (ValueError, TypeError):
        return None
