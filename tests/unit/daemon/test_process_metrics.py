"""What a process tells of itself, beside what the kernel and the client library say."""

from __future__ import annotations

import os
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector

from cni_calico.daemon.exposition import Exposition
from cni_calico.daemon.process_metrics import add_process_metrics
from cni_calico.daemon.recent_times import RECENT, RecentTimes


def told() -> dict[str, float]:
    out = Exposition()
    add_process_metrics(out)
    lines = [line.split() for line in out.render().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_the_same_names_and_values_as_the_client_librarys() -> None:
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    theirs = {sample.name: sample.value for family in registry.collect() for sample in family.samples}
    ours = told()
    assert ours.keys() == theirs.keys()
    assert abs(ours["process_start_time_seconds"] - theirs["process_start_time_seconds"]) < 2
    assert ours["process_max_fds"] == theirs["process_max_fds"]
    assert ours["process_start_time_seconds"] < time.time()
    assert ours["process_cpu_seconds_total"] >= theirs["process_cpu_seconds_total"] - 1e-6  # theirs adds two numbers


def test_an_open_file_counts(tmp_path: Path) -> None:
    before = told()["process_open_fds"]
    file = os.open(tmp_path / "file", os.O_CREAT)
    try:
        assert told()["process_open_fds"] == before + 1
    finally:
        os.close(file)


def test_quantiles_are_of_the_last_observations_and_as_many_as_each_stands_for() -> None:
    times = RecentTimes()
    assert times.quantiles() == {}
    times.observe(9.0, 10)
    for _ in range(RECENT):
        times.observe(0.5)
    assert times.quantiles() == {0.5: 0.5, 0.9: 0.5, 0.99: 0.5}  # the old one is forgotten here, but not in the sum
    assert (times.count, times.total_s) == (RECENT + 10, 90 + RECENT / 2)
    for _ in range(RECENT // 2):
        times.observe(2.0, 3)
    assert times.quantiles() == {0.5: 2.0, 0.9: 2.0, 0.99: 2.0}
