"""Sums up what ``python -m tests.faults --record FILE`` has written, for docs/reliability.md.

    python -m tests.faults.figures FILE...

Prints two tables: operations by datastore and way of calling, and faults by kind and datastore.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

STORES = {"local": "embedded", "etcd": "etcd", "kubernetes": "Kubernetes"}
Row = tuple[str, ...]


def main(paths: Sequence[str]) -> None:
    runs = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    print(render(("datastore", "hosts", "calls", "operations", "killed", "faults", "violations", "runs"), ways(runs)))
    print()
    stores = sorted({datastore_of(run) for run in runs})
    print(render(("fault", *stores), kinds(runs, stores)))


def datastore_of(run: dict[str, Any]) -> str:
    members = f", {run['members']} member{'s' * (run['members'] > 1)}" if run["store"] == "etcd" else ""
    return STORES[run["store"]] + members


def way_of(run: dict[str, Any]) -> Row:
    how = {"served": "served", "agent": "served by the agent", "one-shot": "one-shot"}[run["mode"]]
    how += ", power cuts" if run.get("power") else ""
    return datastore_of(run), str(run["hosts"]), how if run["bundle"] else f"{how}, from the sources"


def ways(runs: Iterable[dict[str, Any]]) -> list[Row]:
    found: dict[Row, Counter[str]] = defaultdict(Counter)
    for run in runs:
        killed = sum(count for name, count in run["outcomes"].items() if name.endswith(" killed"))
        found[way_of(run)].update(
            {
                "operations": sum(run["operations"].values()),
                "killed": killed,
                "faults": sum(run["faults"].values()),
                "violations": run["violation count"],
                "runs": 1,
            }
        )
    names = ("operations", "killed", "faults", "violations", "runs")
    return [(*way, *(f"{found[way][name]:,}" for name in names)) for way in sorted(found)]


def kinds(runs: Iterable[dict[str, Any]], stores: Sequence[str]) -> list[Row]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for run in runs:
        for name, count in run["faults"].items():
            found[name][datastore_of(run)] += count
    return [(name, *(f"{found[name][store]:,}" for store in stores)) for name in sorted(found)]


def render(head: Row, rows: Iterable[Row]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main(sys.argv[1:])
