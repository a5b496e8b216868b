"""manifests/monitoring: rules and queries are sound, each alert is tried, and nothing asks for a metric nobody has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from cni_calico.controllers.metrics import _LOOPS

ROOT = Path(__file__).parents[3]
RULES = ROOT / "manifests" / "monitoring" / "rules.yaml"
DASHBOARD = RULES.parent / "dashboard.json"
TRIED = ROOT / "tests" / "golden" / "monitoring" / "alerts.yaml"
# the names of the modules that name metrics
EXPORTING = {"metrics", "encryption_metrics", "flow_metrics", "policy_metrics", "ipam_metrics", "backends", "resident"}
EXPLAINED = re.compile(r"`((?:calico|felix|ipam|typha)_\w+)")
METRIC = re.compile(r"\b(?:calico|felix|ipam|process)_\w+")


def rules() -> list[dict[str, str]]:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def test_promtool_takes_them_and_each_alert_fires_as_it_should() -> None:
    for command in (["check", "rules", RULES], ["test", "rules", TRIED]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_is_tried() -> None:
    tried = {one["alertname"] for test in yaml.safe_load(TRIED.read_text())["tests"] for one in test["alert_rule_test"]}
    assert {rule["alert"] for rule in rules() if "alert" in rule} == tried


def missing(expressions: Iterable[str]) -> set[str]:
    """Metrics that no source names, except what belongs to every process."""
    sources = "\n".join(path.read_text() for path in (ROOT / "cni_calico").rglob("*.py"))
    asked = {name for expression in expressions for name in METRIC.findall(expression)}
    assert asked
    ours = {name for name in asked if not name.startswith("process_")}
    return {name for name in ours if not re.search(rf"\b{re.sub('(_bucket|_total)$', '', name)}(_total)?\b", sources)}


def test_each_metric_is_explained() -> None:
    """By its name as it is on the page: the agent's library adds _total to what it counts under our own names."""
    explained = set(EXPLAINED.findall((ROOT / "docs" / "metrics.md").read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "cni_calico").rglob("*.py") if path.stem in EXPORTING)
    named = set(re.findall(r'"((?:calico|felix|ipam|typha)_\w+)"', sources))
    named |= {f"calico_controllers_{name}" for name, *_ in _LOOPS}
    assert len(named) > 100
    assert {name for name in named if not {name, f"{name}_total"} & explained} == set()
    assert {name for name in explained if not {name, name.removesuffix("_total")} & named} == set()


def test_each_metric_of_the_rules_exists() -> None:
    assert missing(rule["expr"] for rule in rules()) == set()


def panels() -> list[dict[str, Any]]:
    return list(json.loads(DASHBOARD.read_text())["panels"])


def test_the_dashboard_is_the_one_that_is_printed() -> None:
    program = ROOT / "manifests" / "dashboard.py"
    assert subprocess.run([sys.executable, program], capture_output=True, check=True).stdout == DASHBOARD.read_bytes()


def test_the_dashboard_asks_for_metrics_that_exist(tmp_path: Path) -> None:
    """And Prometheus understands each query."""
    asked = [target["expr"] for panel in panels() for target in panel.get("targets", ())]
    assert missing(asked) == set()
    records = [{"record": f"r{n}", "expr": expression.replace("$instance", ".*")} for n, expression in enumerate(asked)]
    (tmp_path / "queries.yaml").write_text(yaml.safe_dump({"groups": [{"name": "q", "rules": records}]}))
    done = subprocess.run(["promtool", "check", "rules", tmp_path / "queries.yaml"], capture_output=True, text=True)
    assert done.returncode == 0 and f"{len(records)} rules" in done.stdout, done.stdout + done.stderr


def test_no_panel_covers_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def test_the_monitors_ask_the_ports_that_are_served() -> None:
    monitors = list(yaml.safe_load_all((RULES.parent / "podmonitor.yaml").read_text()))
    manifest = list(yaml.safe_load_all((ROOT / "manifests" / "calico.yaml").read_text()))
    labels = {
        m["metadata"]["name"]: m["spec"]["template"]["metadata"]["labels"]
        for m in manifest
        if "template" in m.get("spec", {})
    }
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        assert wanted <= labels[monitor["metadata"]["name"]].items()
    assert [m["spec"]["podMetricsEndpoints"][0]["targetPort"] for m in monitors] == [9091, 9094]
