"""PURE: how much memory the policies that have been taken in need, by the estimates of sizes.py.

Rule: what is large counts as estimated; the rest of a namespace's only above what every namespace has free.
"""

from __future__ import annotations

from collections import Counter

from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.feed.shares import share_of

LARGE_BYTES, SMALL_BYTES = 2 << 20, 1 << 20


class HeldPolicies:
    """Sizes are in bytes. ``reserved``: what counts as estimated, and not as measured. True while there are any."""

    def __init__(self) -> None:
        self.sizes: dict[ResourceKey, int] = {}
        self.reserved = 0
        self._costs: Counter[str] = Counter()  # of each namespace
        self._large: Counter[str] = Counter()  # of them, those of large policies
        self._free = 0

    def __bool__(self) -> bool:
        return bool(self.sizes)

    def allow(self, free: int) -> None:
        """What every namespace has free."""
        self._free = free
        self.reserved = sum(map(self._reserved_of, self._costs))

    def hold(self, key: ResourceKey, needs: int) -> None:
        """Instead of what was held of this policy."""
        self.let_go(key)
        self.sizes[key] = needs
        self._charge(key, needs, needs)

    def let_go(self, key: ResourceKey) -> None:
        needs = self.sizes.pop(key, 0)
        self._charge(key, needs, -needs)

    def is_cheap(self, key: ResourceKey, needs: int, average: float) -> bool:
        """Whether it may have what is left to small changes. ``average``: of namespaces."""
        return needs < SMALL_BYTES and self._costs[share_of(key)] + needs <= max(average, SMALL_BYTES)

    def average(self) -> float:
        """Of the namespaces that have any."""
        return self._costs.total() / max(1, len(self._costs))

    def _reserved_of(self, namespace: str) -> int:
        large = self._large[namespace]
        return large + max(0, self._costs[namespace] - large - self._free) if namespace else large

    def _charge(self, key: ResourceKey, needs: int, by: int) -> None:
        name = share_of(key)
        self.reserved -= self._reserved_of(name)
        self._costs[name] += by
        if needs >= LARGE_BYTES:
            self._large[name] += by
        self.reserved += self._reserved_of(name)
        if not self._costs[name]:
            del self._costs[name], self._large[name]
