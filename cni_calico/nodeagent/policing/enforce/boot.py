"""Takes the boot table away once it is decided what may pass.

Rule: only after our own rules are in force, or no policy is due; a failure is told, and tried again, soon at first and
then less often. A table that is loaded later is not ours to judge: its loader asks whether we have decided.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress

from cni_calico.backoff import Backoff
from cni_calico.deadline import Deadline
from cni_calico.directories import BOOT_TABLE
from cni_calico.errors import CalicoError
from cni_calico.kernel.filter.boot_table import remove_boot_table
from cni_calico.log import Log

PART = "boot table"
_REMOVE_S = 60.0
_AGAIN_S, _AGAIN_LAST_S = 1.0, 30.0


class BootTable:
    """For the engine's thread. ``troubles``: where the reason why it is still there is told, under PART."""

    def __init__(
        self, run_dir: str, log: Log, troubles: dict[str, str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_dir, self._log, self._troubles, self._now = run_dir, log, troubles, now
        self._again = Backoff(_AGAIN_S, _AGAIN_LAST_S)
        self._next = float("-inf")  # infinite once it is gone

    def remove(self) -> None:
        """It is decided; may be called again and again."""
        if self._now() < self._next:
            return
        try:
            was_there = remove_boot_table(Deadline.after(_REMOVE_S))
        except CalicoError as e:
            why = f"the boot table still closes workloads: {e}; calicoctl node boot-table off removes it"
            if self._troubles.get(PART) != why:
                self._log.error(why)
            self._troubles[PART], self._next = why, self._now() + self._again.next()
            return
        self._next = float("inf")
        self._troubles.pop(PART, None)
        with suppress(OSError):  # it was never loaded, or its file could not be written
            os.unlink(f"{self._run_dir}/{BOOT_TABLE}")
        if was_there:
            self._log.info("the boot table is gone: what may pass is decided")
