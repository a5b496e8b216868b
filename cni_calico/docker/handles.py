"""The handles of the next addresses, which are on the disk before any of them is used.

Rule: an ID is in the file, durably, before it is given out, and stays there until the file of its address has outlived
any write that a crash of the machine could lose. So the start of a container does not wait for the disk, and what a
crash leaves assigned is found by the IDs.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from cni_calico.doing import Doing
from cni_calico.kernel.files import Files
from cni_calico.log import Log

AHEAD = 16  # so many starts for one write that is waited for
KEPT_S = 60.0  # longer than a kernel keeps what was written from the disk
_FORMAT, _ID_BYTES = 1, 16


class HandleIds:
    """``clock``: monotonic. Safe with threads."""

    def __init__(self, files: Files, path: str, log: Log, clock: Callable[[], float] = time.monotonic) -> None:
        self._files, self._path, self._log, self._clock = files, path, log, clock
        self._guard = threading.Lock()
        self._ready: deque[str] = deque()
        self._given: deque[tuple[str, float]] = deque()
        self._boot = ""

    def read(self) -> None:
        """What a former life has given out; a file that cannot be read is logged, and not used."""
        try:
            boot, ids = _parse(json.loads(self._files.read_bytes(self._path)))
        except FileNotFoundError:
            return
        except (OSError, ValueError, RecursionError) as e:
            self._log.error(f"not used, because it cannot be read: {self._path}: {e}")
            return
        now = self._clock()
        with self._guard:
            self._boot = boot
            self._given.extend((id, now) for id in ids)

    def of_another_boot(self, boot: str) -> Iterable[str]:
        """The IDs that a machine which crashed, or was switched off, may have used without a file that tells of it."""
        with self._guard:
            return [id for id, _ in self._given] if self._boot not in ("", boot) else []

    def take(self, boot: str) -> str:
        """One that nobody has had. Raises KernelError."""
        with self._guard:
            if not self._ready:
                self._announce(boot)
            id = self._ready.popleft()
            self._given.append((id, self._clock()))
            return id

    def _announce(self, boot: str) -> None:
        while self._given and self._clock() - self._given[0][1] > KEPT_S:
            self._given.popleft()
        fresh = [os.urandom(_ID_BYTES).hex() for _ in range(AHEAD)]
        document = {"format": _FORMAT, "boot": boot, "ids": [*(id for id, _ in self._given), *fresh]}
        with Doing(f"write {self._path}"):
            self._files.write_atomic(self._path, json.dumps(document, separators=(",", ":")).encode(), 0o600)
        self._boot = boot
        self._ready.extend(fresh)


def _parse(document: Any) -> tuple[str, list[str]]:
    """(boot, IDs). Raises ValueError."""
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise ValueError("its format is unknown")
    boot, ids = document.get("boot"), document.get("ids")
    if not isinstance(boot, str) or not isinstance(ids, list) or not all(map(_is_id, ids)):
        raise ValueError("a field is missing, or wrong")
    return boot, ids


def _is_id(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 2 * _ID_BYTES and set(value) <= set("0123456789abcdef")
