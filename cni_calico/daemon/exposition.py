"""PURE: renders metrics in Prometheus' text format, for programs that do not load its client library.

Rule: every metric has its HELP and TYPE, its samples are adjacent, and samples with the same labels are summed. Source:
the text format, version 0.0.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cni_calico.daemon.recent_times import RecentTimes


class Exposition:
    """``count`` and ``gauge`` add a sample, ``observe`` adds a histogram, ``render`` returns the text."""

    def __init__(self) -> None:
        self._meanings: dict[str, tuple[str, str]] = {}
        self._samples: dict[str, dict[str, float]] = {}

    def count(self, name: str, meaning: str, value: float, **labels: object) -> None:
        """``name`` ends in ``_total``, unless it is one of upstream's."""
        self._add(name, "counter", meaning, _labelled(name, labels), value)

    def gauge(self, name: str, meaning: str, value: float, **labels: object) -> None:
        self._add(name, "gauge", meaning, _labelled(name, labels), value)

    def observe(
        self, name: str, meaning: str, limits: Sequence[float], counts: Iterable[int], total: float, **labels: object
    ) -> None:
        """A histogram: ``counts`` has one number for each limit, and a last one for values above all limits."""
        cumulative = 0
        for limit, count in zip((*limits, "+Inf"), counts, strict=True):
            cumulative += count
            self._add(name, "histogram", meaning, _labelled(f"{name}_bucket", {**labels, "le": limit}), cumulative)
        self._add(name, "histogram", meaning, _labelled(f"{name}_sum", labels), total)
        self._add(name, "histogram", meaning, _labelled(f"{name}_count", labels), cumulative)

    def summarise(self, name: str, meaning: str, times: RecentTimes) -> None:
        """How many observations there were, their sum, and quantiles of the last ones."""
        for part, seconds in times.quantiles().items():
            self._add(name, "summary", meaning, _labelled(name, {"quantile": part}), seconds)
        count, total = times.count, times.total_s
        self._add(name, "summary", meaning, f"{name}_sum", total)
        self._add(name, "summary", meaning, f"{name}_count", count)

    def declare(self, name: str, kind: str, meaning: str) -> None:
        """Declare a metric that may have no samples yet."""
        self._meanings.setdefault(name, (kind, meaning))
        self._samples.setdefault(name, {})

    def _add(self, name: str, kind: str, meaning: str, sample: str, value: float) -> None:
        self.declare(name, kind, meaning)
        samples = self._samples[name]
        samples[sample] = samples.get(sample, 0) + value

    def render(self) -> str:
        lines = []
        for name, (kind, meaning) in self._meanings.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{sample} {_number(value)}" for sample, value in self._samples[name].items()]
        return "".join(f"{line}\n" for line in lines)


def _labelled(name: str, labels: dict[str, object]) -> str:
    if not labels:
        return name
    return name + "{" + ",".join(f'{label}="{_escaped(str(value))}"' for label, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.6f}"
