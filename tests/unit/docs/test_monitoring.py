"""manifests/monitoring: the rules are sound, each alert is tried, and nothing asks for a metric that nobody has."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[3]
RULES = ROOT / "manifests" / "monitoring" / "rules.yaml"
TRIED = ROOT / "tests" / "golden" / "monitoring" / "alerts.yaml"
METRIC = re.compile(r"\b(?:calico|felix|process)_\w+")


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


def test_each_metric_exists() -> None:
    """It is named in the sources, but for what belongs to every process."""
    sources = "\n".join(path.read_text() for path in (ROOT / "cni_calico").rglob("*.py"))
    asked = {name for rule in rules() for name in METRIC.findall(rule["expr"])} - {"process_resident_memory_bytes"}
    missing = {
        name for name in asked if not re.search(rf"\b{re.sub('(_bucket|_total)$', '', name)}(_total)?\b", sources)
    }
    assert asked and missing == set()


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
