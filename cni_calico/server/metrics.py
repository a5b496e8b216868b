"""The resident server's numbers, in Prometheus' text format; the agent exports them with its own.

Rule: counting costs a few dict operations under one lock, so it is always on.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence

BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class CniMetrics:
    """Counters of calls, their latencies, the queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._queue_max = 0
        self._refused = 0
        self._declined = 0
        self._in_flight = 0

    def queued(self, length: int) -> None:
        """Called with the number of waiting connections, whenever one more arrives."""
        if length > self._queue_max:
            self._queue_max = length

    def refused(self) -> None:
        with self._lock:
            self._refused += 1

    def declined(self) -> None:
        with self._lock:
            self._declined += 1

    def begun(self, calls: int) -> None:
        """Count calls that workers have begun; -1 for one that ended."""
        with self._lock:
            self._in_flight += calls

    def served(self, command: str, exit_code: int, seconds: float) -> None:
        """Count one answered call; ``seconds`` from the connection to the answer."""
        command = command if command.isalpha() and len(command) < 10 else "other"
        with self._lock:
            self._calls[command, "ok" if exit_code == 0 else "error"] += 1
            buckets = self._buckets.setdefault(command, [0] * (len(BUCKETS_S) + 1))
            buckets[sum(seconds > limit for limit in BUCKETS_S)] += 1
            self._seconds[command] += seconds  # type: ignore[assignment]

    def render(self, others: Sequence[str], waiting: int) -> str:
        """Everything as text, ``others`` last; ``waiting`` is the number of connections waiting now."""
        with self._lock:
            lines = [
                f'calico_cni_requests_total{{verb="{verb}",result="{result}"}} {count}'
                for (verb, result), count in sorted(self._calls.items())
            ]
            lines.append(f"calico_cni_refused_total {self._refused}")
            lines.append(f"calico_cni_declined_total {self._declined}")
            lines.append(f"calico_cni_in_flight {self._in_flight}")
            lines.append(f"calico_cni_queue {waiting}")
            lines.append(f"calico_cni_queue_max {self._queue_max}")
            for verb, buckets in sorted(self._buckets.items()):
                lines += _histogram("calico_cni_request_seconds", f'verb="{verb}"', buckets, self._seconds[verb])
        return "\n".join([*lines, *others]) + "\n"


def render_sizes(name: str, labels: str, sizes: Sequence[int]) -> list[str]:
    """The number of batches of each size."""
    given = labels + "," if labels else ""
    return [f'{name}{{{given}size="{size}"}} {count}' for size, count in enumerate(sizes) if count]


def _histogram(name: str, labels: str, buckets: list[int], total: float) -> list[str]:
    lines, cumulative = [], 0
    for limit, count in zip((*BUCKETS_S, "+Inf"), buckets, strict=True):
        cumulative += count
        lines.append(f'{name}_bucket{{{labels},le="{limit}"}} {cumulative}')
    return [*lines, f"{name}_sum{{{labels}}} {total:.6f}", f"{name}_count{{{labels}}} {cumulative}"]
