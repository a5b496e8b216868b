"""Prints the Grafana dashboard: ``python manifests/dashboard.py > manifests/monitoring/dashboard.json``.

Rule: a row for each question that a person on call has, two or three graphs to answer it, and no metric that nobody has
(tests look). Written for Grafana 9 and later; the data source and the nodes are chosen on the page.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

WIDTH, HEIGHT = 24, 8
_NODE = 'instance=~"$instance"'


class Graph(NamedTuple):
    """``queries``: expression and legend; ``unit`` is Grafana's name for it."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    meaning: str = ""


def _quantile(quantile: float, metric: str, by: str = "", where: str = "") -> str:
    where = ",".join(filter(None, (_NODE, where)))
    return f"histogram_quantile({quantile}, sum by ({by}{',' if by else ''}le) (rate({metric}_bucket{{{where}}}[5m])))"


ROWS: tuple[tuple[str, tuple[Graph, ...]], ...] = (
    (
        "Is it well?",
        (
            Graph(
                "Nodes that cannot take pods",
                "none",
                ((f"count(calico_node_ready{{{_NODE}}} == 0) or vector(0)", "not ready"),),
                "'calicoctl node status' on the node says why.",
            ),
            Graph(
                "Nodes that do not follow the datastore",
                "none",
                ((f"count(calico_datastore_in_sync{{{_NODE}}} == 0) or vector(0)", "out of sync"),),
            ),
            Graph("BGP sessions", "none", ((f"sum by (state) (calico_bird_peers{{{_NODE}}})", "{{state}}"),)),
        ),
    ),
    (
        "How fast do pods get their network?",
        (
            Graph(
                "ADD",
                "s",
                (
                    (_quantile(0.5, "calico_cni_request_seconds", where='verb="ADD"'), "p50"),
                    (_quantile(0.99, "calico_cni_request_seconds", where='verb="ADD"'), "p99"),
                ),
            ),
            Graph(
                "DEL",
                "s",
                (
                    (_quantile(0.5, "calico_cni_request_seconds", where='verb="DEL"'), "p50"),
                    (_quantile(0.99, "calico_cni_request_seconds", where='verb="DEL"'), "p99"),
                ),
            ),
            Graph(
                "Calls",
                "ops",
                ((f"sum by (verb) (rate(calico_cni_requests_total{{{_NODE}}}[5m]))", "{{verb}}"),),
            ),
        ),
    ),
    (
        "What fails?",
        (
            Graph(
                "Failed calls by code",
                "ops",
                ((f"sum by (verb, code) (rate(calico_cni_errors_total{{{_NODE}}}[5m]))", "{{verb}} {{code}}"),),
                "docs/errors.md explains the codes.",
            ),
            Graph(
                "Calls that wait, and releases that are owed",
                "none",
                (
                    (f"sum(calico_cni_queue{{{_NODE}}})", "waiting"),
                    (f"sum(calico_cni_pending_dels{{{_NODE}}})", "owed"),
                ),
            ),
            Graph(
                "Data plane",
                "ops",
                (
                    (f"sum(rate(felix_int_dataplane_failures{{{_NODE}}}[5m]))", "attempts that failed"),
                    (f"sum(rate(felix_nft_errors{{{_NODE}}}[5m]))", "transactions refused"),
                ),
            ),
        ),
    ),
    (
        "Are there addresses left?",
        (
            Graph(
                "Pools, used",
                "percentunit",
                (("sum by (ippool) (ipam_allocations_in_use) / on (ippool) ipam_ippool_size", "{{ippool}}"),),
                "From calico-kube-controllers.",
            ),
            Graph("Blocks", "none", (("sum by (ippool) (ipam_blocks)", "{{ippool}}"),)),
            Graph(
                "What looks lost, and what was released",
                "none",
                (
                    ("max by (kind) (calico_janitor_candidates)", "{{kind}}: looks lost"),
                    ("sum by (kind) (increase(calico_janitor_released_total[1h]))", "{{kind}}: released in an hour"),
                ),
            ),
        ),
    ),
    (
        "Are policies in force?",
        (
            Graph(
                "From the datastore's event to the kernel",
                "s",
                (
                    (_quantile(0.5, "calico_policy_change_seconds"), "p50"),
                    (_quantile(0.99, "calico_policy_change_seconds"), "p99"),
                ),
            ),
            Graph(
                "Not in force",
                "none",
                (
                    (f"sum(calico_policies_not_enforced{{{_NODE}}})", "policies that nobody enforces"),
                    (f"sum(calico_policy_problems{{{_NODE}}})", "not in force as written"),
                    (f"sum(calico_policy_failing{{{_NODE}}})", "nodes that cannot apply changes"),
                ),
            ),
            Graph(
                "Endpoints and policies of a node",
                "none",
                (
                    (f"max(felix_active_local_endpoints{{{_NODE}}})", "endpoints"),
                    (f"max(felix_active_local_policies{{{_NODE}}})", "policies"),
                ),
            ),
        ),
    ),
    (
        "What does it cost?",
        (
            Graph(
                "Memory of an agent",
                "bytes",
                (
                    (
                        f"max(process_resident_memory_bytes{{{_NODE}}} and on (instance, job) calico_build_info)",
                        "the largest",
                    ),
                    (
                        f"avg(process_resident_memory_bytes{{{_NODE}}} and on (instance, job) calico_build_info)",
                        "mean",
                    ),
                ),
            ),
            Graph(
                "Processor of an agent",
                "percentunit",
                (
                    (
                        f"max(rate(process_cpu_seconds_total{{{_NODE}}}[5m]) and on (instance, job) calico_build_info)",
                        "the busiest",
                    ),
                ),
            ),
            Graph(
                "Round trips to the datastore",
                "ops",
                (
                    (f"sum(rate(calico_datastore_reads_total{{{_NODE}}}[5m]))", "reads"),
                    (f"sum(rate(calico_datastore_writes_total{{{_NODE}}}[5m]))", "writes"),
                ),
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The document that Grafana imports."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, graphs in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        width = WIDTH // len(graphs)
        for column, graph in enumerate(graphs):
            place = {"x": column * width, "y": y + 1, "w": width, "h": HEIGHT}
            panels.append(_panel(graph, place))
        y += 1 + HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return {
        "title": "cni-calico",
        "uid": "cni-calico",
        "tags": ["calico", "cni"],
        "schemaVersion": 37,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "1m",
        "templating": {"list": [_SOURCE, _INSTANCE]},
        "panels": panels,
    }


_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SOURCE = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
_INSTANCE = {
    "name": "instance",
    "label": "Node",
    "type": "query",
    "datasource": _DATASOURCE,
    "query": {"query": "label_values(calico_node_ready, instance)", "refId": "instances"},
    "refresh": 2,
    "multi": True,
    "includeAll": True,
    "allValue": ".*",
    "current": {"text": "All", "value": "$__all"},
}


def _panel(graph: Graph, place: dict[str, int]) -> dict[str, Any]:
    return {
        "type": "timeseries",
        "title": graph.title,
        "description": graph.meaning,
        "datasource": _DATASOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": graph.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "datasource": _DATASOURCE}
            for number, (expression, legend) in enumerate(graph.queries)
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(dashboard(), indent=2) + "\n")
