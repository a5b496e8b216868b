"""The resident server's numbers, in Prometheus' text format; the agent exports them with its own.

Rule: counting costs a few dict operations under one lock, so it is always on.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from cni_calico import BUILD, __version__
from cni_calico.cni.answer import Answer
from cni_calico.daemon.exposition import Exposition
from cni_calico.server.backends import Backend

BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)


class CniMetrics:
    """Counters of calls, their latencies, the queue."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str]] = Counter()
        self._errors: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._queue_max = 0
        self._refused = 0
        self._declined = 0
        self._in_flight = 0

    def queued(self, length: int) -> None:
        """Note the number of waiting connections, whenever one more has arrived."""
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

    def served(self, command: str, answer: Answer, seconds: float) -> None:
        """Count one answered call; ``seconds`` from the connection to the answer."""
        command = command if command.isalpha() and len(command) < 10 else "other"
        code = _code_of(answer) if answer.exit_code else None
        with self._lock:
            self._calls[command, "ok" if code is None else "error"] += 1
            if code is not None:
                self._errors[command, code] += 1
            buckets = self._buckets.setdefault(command, [0] * (len(BUCKETS_S) + 1))
            buckets[sum(seconds > limit for limit in BUCKETS_S)] += 1
            self._seconds[command] += seconds

    def render(self, others: Callable[[Exposition], None], waiting: int) -> str:
        """All metrics as text, with those that ``others`` adds last; ``waiting`` is the number of connections waiting
        now.
        """
        page = Exposition()
        with self._lock:
            page.declare("calico_cni_requests_total", "counter", "CNI calls answered.")
            for (verb, result), count in sorted(self._calls.items()):
                page.count("calico_cni_requests_total", "", count, verb=verb, result=result)
            page.declare("calico_cni_errors_total", "counter", "CNI calls that failed, by error code.")
            for (verb, code), count in sorted(self._errors.items()):
                page.count("calico_cni_errors_total", "", count, verb=verb, code=code)
            page.count(
                "calico_cni_refused_total",
                "Connections refused: the caller is not root, or speaks another protocol.",
                self._refused,
            )
            page.count("calico_cni_declined_total", "Calls left to the caller's own process.", self._declined)
            page.gauge("calico_cni_in_flight", "CNI calls being served now.", self._in_flight)
            page.gauge("calico_cni_queue", "CNI calls waiting now.", waiting)
            page.gauge("calico_cni_queue_max", "The most CNI calls that ever waited.", self._queue_max)
            meaning = "From a call's arrival to its answer."
            page.declare("calico_cni_request_seconds", "histogram", meaning)
            for verb, buckets in sorted(self._buckets.items()):
                total = self._seconds[verb]
                page.observe("calico_cni_request_seconds", meaning, BUCKETS_S, buckets, total, verb=verb)
        page.gauge("calico_cni_build_info", "1; the label says which version serves.", 1, version=__version__ + BUILD)
        others(page)
        return page.render()


def count_sizes(page: Exposition, name: str, meaning: str, sizes: Sequence[int], **labels: object) -> None:
    """The number of batches of each size."""
    page.declare(name, "counter", meaning)
    for size, count in enumerate(sizes):
        if count:
            page.count(name, meaning, count, **labels, size=size)


def add_backends(page: Exposition, backends: Sequence[Backend], closed: int) -> None:
    """Metrics of each datastore; networks that use the same one with different credentials are added up."""
    page.gauge("calico_cni_backends", "Datastores that are open.", len(backends))
    page.count("calico_cni_backends_closed_total", "Datastores closed after their last use.", closed)
    healthy: dict[str, bool] = {}
    for backend in backends:
        identity = backend.grouped.identity
        healthy[identity] = healthy.get(identity, True) and backend.caches.healthy
    meaning = "0 while a datastore's changes cannot be followed, so that every call reads."
    page.declare("calico_cni_caches_healthy", "gauge", meaning)
    for identity, is_healthy in healthy.items():
        page.gauge("calico_cni_caches_healthy", meaning, is_healthy, datastore=identity)
    for backend in backends:
        of = {"datastore": backend.grouped.identity}
        trips, statistics = backend.grouped.round_trips, backend.allocator.statistics
        for name, meaning, value in (
            ("calico_datastore_reads_total", "Reads from the datastore.", trips.reads),
            ("calico_datastore_writes_total", "Writes to the datastore.", trips.writes),
            ("calico_ipam_fast_total", "Requests for addresses served from memory.", statistics.fast),
            ("calico_ipam_slow_total", "Requests for addresses that had to read.", statistics.slow),
            ("calico_ipam_spares_total", "Blocks claimed in advance.", backend.allocator.spares.claimed),
        ):
            page.count(name, meaning, value, **of)
        backend.add_kubernetes(page, **of)
        meaning = "Writes for requests for addresses, by how many shared one."
        count_sizes(page, "calico_ipam_batches_total", meaning, statistics.sizes, **of)
        meaning = "Requests for addresses that wait for the write under way."
        page.gauge("calico_ipam_waiting", meaning, backend.allocator.waiting, **of)
        meaning = "Writes of single records, by how many shared one."
        count_sizes(page, "calico_datastore_write_batches_total", meaning, backend.grouped.sizes, **of)


def _code_of(answer: Answer) -> int:
    """The error code of an answer; 0 if it has none."""
    try:
        return int(json.loads(answer.stdout)["code"])
    except (ValueError, KeyError, TypeError):
        return 0
