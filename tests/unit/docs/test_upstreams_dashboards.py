"""Upstream's dashboards for Grafana over our metrics: Prometheus itself answers what their panels ask, or nothing here
has the name at all, for the reason given.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cni_calico.daemon.exposition import Exposition
from cni_calico.daemon.process_metrics import add_process_metrics
from cni_calico.nodeagent.status.metrics import Metrics
from cni_calico.nodeagent.status.numbers import Numbers
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.relay.metrics import render_relay_metrics
from cni_calico.relay.numbers import RelayNumbers, ServerNumbers, WatchCacheNumbers
from tests.conftest import ROOT
from tests.unit.nodeagent.fabric import snapshot

ASKED = Path(__file__).parents[2] / "golden" / "monitoring" / "upstreams_dashboards.yaml"
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
NAME = re.compile(r"\b(?:felix|typha|go|process)_\w+")


def agents_page(tmp_path: Path) -> str:
    numbers = Numbers()
    numbers.note_datastore(in_sync=False, error=False)
    figures = PolicyFigures(in_kernel={"4": {"chains": 1, "rules": 1, "sets": 1}}, workload_endpoints=3)
    figures.apply.observe(0.01)
    figures.calculation.observe(0.01)
    metrics = Metrics(numbers, str(tmp_path), str(tmp_path))
    metrics.snapshot = snapshot()
    metrics.policing = lambda: (Standing(), figures)
    return metrics.page()[2].decode()


def relays_page(tmp_path: Path) -> str:
    numbers = ServerNumbers()
    numbers.flush(3, 0.1, 0.1)
    numbers.lists.observe(0.1)
    text = render_relay_metrics(
        RelayNumbers(
            numbers,
            WatchCacheNumbers(),
            connections=1,
            streaming=1,
            share=1,
            sizes={"/api/v1/nodes": 5},
            raw_bytes={"/api/v1/nodes": 100},
            compressed_bytes={"/api/v1/nodes": 10},
            older={},
            troubles=0,
        )
    )
    process = Exposition()
    add_process_metrics(process)
    return text + process.render()


PAGES = {"felix": (agents_page, "felix_metrics"), "typha": (relays_page, "typha_metrics")}


def series(page: str, job: str) -> list[dict[str, str]]:
    """Each sample as Prometheus has it after some scrapes in which everything has grown."""
    found = []
    for name, labels, value in samples(page):
        inside = ",".join(filter(None, (labels, f'job="{job}"', 'instance="n1:9091"')))
        found.append({"series": f"{name}{{{inside}}}", "values": f"{int(float(value))}+1x40"})
    return found


def samples(page: str) -> list[tuple[str, str, str]]:
    """Names, labels and values; Prometheus' library for Python would add _total to upstream's names."""
    return [(name, labels, value) for name, labels, value in SAMPLE.findall(page)]


@pytest.mark.parametrize("which", PAGES)
def test_what_a_page_has_is_explained_under_its_name(tmp_path: Path, which: str) -> None:
    page = PAGES[which][0](tmp_path)
    names = set(re.findall(r"(?m)^# HELP ((?!process_|python_)\w+) ", page))
    explained = re.findall(r"`(\w+)[{`]", (ROOT / "docs" / "metrics.md").read_text())
    assert len(names) > 15 and names <= set(explained)


@pytest.mark.parametrize("which", PAGES)
def test_prometheus_answers_what_their_panels_ask(tmp_path: Path, which: str) -> None:
    make, job = PAGES[which]
    asked = yaml.safe_load(ASKED.read_text())[which]
    absent = [expression for group in asked["not here"] for expression in group["asked"]]
    # whether there is an answer is 1 or nothing: a comparison that is false for an empty vector has no sample
    tests = [
        {"expr": f"count({expression}) > bool 0", "eval_time": "9m", "exp_samples": [{"labels": "{}", "value": 1}]}
        for expression in asked["here"]
    ]
    tests += [{"expr": f"count({expression})", "eval_time": "9m", "exp_samples": []} for expression in absent]
    document = {
        "rule_files": [],
        "evaluation_interval": "15s",
        "tests": [{"interval": "15s", "input_series": series(make(tmp_path), job), "promql_expr_test": tests}],
    }
    (tmp_path / "asked.yaml").write_text(yaml.safe_dump(document))
    done = subprocess.run(["promtool", "test", "rules", tmp_path / "asked.yaml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("which", PAGES)
def test_what_is_not_here_has_no_such_name(tmp_path: Path, which: str) -> None:
    """Nothing is made up: of each expression at least one name is missing, and none of them means something else."""
    page = PAGES[which][0](tmp_path)
    there = {name for name, _, _ in samples(page)}
    groups: list[dict[str, Any]] = yaml.safe_load(ASKED.read_text())[which]["not here"]
    for group in groups:
        assert group["reason"]
        for expression in group["asked"]:
            assert not set(NAME.findall(expression)) & there, expression
