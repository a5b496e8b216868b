"""PURE: the controllers' counters in Prometheus' format."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cni_calico.controllers.counters import JanitorCounters, LoopNumbers
from cni_calico.controllers.ipam_metrics import render_ipam_metrics

_LOOPS: tuple[tuple[str, str, str, Callable[[LoopNumbers], int]], ...] = (
    ("writes_total", "counter", "Records written.", lambda loop: loop.writes),
    ("failures_total", "counter", "Tries that failed.", lambda loop: loop.failures),
    ("waiting", "gauge", "Records to be looked at.", lambda loop: loop.waiting),
    ("failing", "gauge", "Records that fail now.", lambda loop: loop.failing),
    ("blind", "gauge", "1 while it cannot read what it needs.", lambda loop: int(bool(loop.error))),
    ("left_out", "gauge", "Rules that could not be converted.", lambda loop: sum(map(len, loop.left_out.values()))),
)


def _family(name: str, kind: str, meaning: str, label: str, values: Mapping[str, float]) -> str:
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    for value, number in sorted(values.items()):
        lines.append(f'{name}{{{label}="{value}"}} {number:g}' if label else f"{name} {number:g}")
    return "\n".join(lines) + "\n"


def render_metrics(leads: bool, loops: Mapping[str, LoopNumbers], counters: JanitorCounters) -> str:
    """``loops`` by the name of the controller."""
    families = [_family("calico_controllers_leader", "gauge", "1 if these controllers lead.", "", {"": leads})]
    for name, kind, meaning, pick in _LOOPS:
        values = {controller: float(pick(loop)) for controller, loop in loops.items()}
        families.append(_family(f"calico_controllers_{name}", kind, meaning, "controller", values))
    families += [
        _family("calico_janitor_candidates", "gauge", "What may be lost.", "kind", counters.candidates),
        _family("calico_janitor_released_total", "counter", "What was released.", "kind", counters.released),
        _family("calico_janitor_failures_total", "counter", "What failed.", "", {"": counters.failures}),
    ]
    numbers = counters.ipam()
    if numbers is not None:
        families.append(render_ipam_metrics(numbers))
    return "".join(families)
