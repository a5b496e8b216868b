"""What was not recorded: how much, from when to when, and why; kept for as long as anybody may ask.

Rule: nothing is lost silently. A number that nobody can know is said to be unknown.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from cni_calico.regular import make_directories, read_regular, require_regular, write_all

NAME = "losses"
ALLOWED, DENIED, ENDS = "nflog-allowed", "nflog-denied", "destroy"
OVERRUN, RATE, AWAY = "overrun", "rate", "recorder"
_KEPT, _MOST_BYTES = 1000, 1 << 20


@dataclass(frozen=True, slots=True)
class Loss:
    """``begin``, ``end``: seconds since 1970. ``count``: reports; None: nobody knows."""

    begin: float
    end: float
    source: str
    why: str
    count: int | None


class Losses:
    def __init__(self, state_dir: str) -> None:
        self._path = f"{state_dir}/{NAME}"
        self._kept: list[Loss] = []
        try:
            for line in read_regular(self._path, _MOST_BYTES).decode("utf-8", "replace").splitlines()[-_KEPT:]:
                found = _parse(line)
                if found is not None:
                    self._kept.append(found)
        except OSError:
            pass  # there are none, or they are forgotten with the file

    def add(self, loss: Loss) -> None:
        self._kept.append(loss)
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
        lines = [loss]
        if len(self._kept) > 2 * _KEPT:
            lines = self._kept = self._kept[-_KEPT:]
            flags |= os.O_TRUNC
        try:
            make_directories(os.path.dirname(self._path), 0o700)
            fd = os.open(self._path, flags | os.O_APPEND, 0o600)
            try:
                require_regular(fd, self._path)
                write_all(fd, "".join(_render(one) for one in lines).encode())
            finally:
                os.close(fd)
        except OSError:
            pass  # it is still told by this process

    def since(self, when: float | None) -> list[Loss]:
        return [loss for loss in self._kept if when is None or loss.end >= when]


def _render(loss: Loss) -> str:
    return json.dumps([loss.begin, loss.end, loss.source, loss.why, loss.count]) + "\n"


def _parse(line: str) -> Loss | None:
    try:
        begin, end, source, why, count = json.loads(line)
        return Loss(float(begin), float(end), str(source), str(why), None if count is None else int(count))
    except (ValueError, TypeError):
        return None
