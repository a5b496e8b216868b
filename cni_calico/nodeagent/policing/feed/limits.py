"""Memory's limits: those of the control groups that this process is in, and the one that the setting names.

Rule: where there is no limit, nothing is measured. Limits may change while the process runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.kernel.cgroup import LimitedGroup, read_limited_groups
from cni_calico.kernel.memory import resident_bytes

SETTING = "FELIX_POLICYMEMORYLIMITMIB"
_USED_S, _LIMITS_S = 0.05, 60.0
_MIB = 1 << 20


@dataclass(slots=True)
class _MemoryLimit:
    """``base``: what was used at first, or later if that is less."""

    name: str
    limit: int
    read_used: Callable[[], int]
    base: int
    used: int


class MemoryLimits:
    """For the engine's thread, but for ``read_used`` and ``room``. True where there is a limit."""

    def __init__(
        self,
        limit_mib: int = 0,
        now: Callable[[], float] = time.monotonic,
        groups: Callable[[], tuple[LimitedGroup, ...]] = read_limited_groups,
        own_bytes: Callable[[], int] = resident_bytes,
    ) -> None:
        self._setting = limit_mib
        self._now, self._groups, self._own_bytes = now, groups, own_bytes
        self._limits: tuple[_MemoryLimit, ...] = ()
        self._used_at = self._limits_at = float("-inf")

    def __bool__(self) -> bool:
        return bool(self._limits)

    def configure(self, limit_mib: int) -> None:
        if limit_mib != self._setting:
            self._setting, self._limits_at = limit_mib, float("-inf")

    @property
    def smallest(self) -> int:
        """0 without any."""
        return min((one.limit for one in self._limits), default=0)

    def read_again(self) -> bool:
        """Read the limits if it is time to; returns whether it was."""
        if self._now() - self._limits_at < _LIMITS_S:
            return False
        self._limits_at = self._now()
        before = {one.name: one for one in self._limits}
        sources = [(f"the limit of {one.path}", one.limit_bytes, one.read_used_bytes) for one in self._groups()]
        if self._setting:
            sources.append((SETTING, self._setting * _MIB, self._own_bytes))
        found = []
        for name, limit, read_used in sources:
            used = read_used()
            base = before[name].base if name in before else used
            found.append(_MemoryLimit(name, limit, read_used, base, used))
        self._limits = tuple(found)
        return True

    def read_used(self, *, anew: bool = False) -> None:
        """What is used now, or was just before unless ``anew``."""
        now = self._now()
        if anew or now - self._used_at >= _USED_S:
            self._used_at = now
            for one in self._limits:
                one.used = one.read_used()
                one.base = min(one.base, one.used)

    def room(self, part: float, *, coming: float, reserved: int) -> float:
        """Bytes up to this part of the limit that leaves least; infinite without any. ``coming``: of what is used, what
        is not there yet; ``reserved``: what counts besides what was used at first.
        """
        return min(
            (part * one.limit - max(one.used + coming, one.base + reserved) for one in self._limits),
            default=float("inf"),
        )

    def allows(self, part: float, *, reserved: int) -> float:
        """As ``room`` if nothing were used but what was at first and what is reserved: freeing memory gives no more."""
        return min((part * one.limit - one.base - reserved for one in self._limits), default=float("inf"))

    def describe(self) -> str:
        return " and ".join(f"{one.name}, {one.limit // _MIB} MiB" for one in self._limits)
