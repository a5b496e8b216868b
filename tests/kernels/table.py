"""The table of kernels in docs/node.md, printed from what was found in machines: ``python -m tests.kernels.table``.

Rule: a version, and what it lacks, is what a machine with that kernel said; tests compare the page with it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kernels.images import SERIES, Kernel, find_kernel
from tests.kernels.machine import ROOT, run

PAGE = ROOT / "docs" / "node.md"
HEAD = "| kernel | policies by | what it lacks |\n|---|---|---|\n"
LIMIT_S = 1500


def read_probe(kernel: Kernel, results: Path) -> dict[str, Any]:
    """What a machine with this kernel says. Raises AssertionError with its output."""
    done = run(kernel, "python3 -m tests.kernels.probe >/results/probe.json", results, limit_s=LIMIT_S)
    assert done.status == 0, done.output
    found: dict[str, Any] = json.loads((results / "probe.json").read_text())
    return found


def render_row(kernel: Kernel, found: Mapping[str, Any]) -> str:
    lacks = [name for name, there in found["has"].items() if not there] + list(found["notes"])
    return f"| Debian's {kernel.series} ({kernel.version}) | {found['by']} | {', '.join(lacks) or 'nothing'} |\n"


def documented_rows() -> dict[str, str]:
    """By series."""
    rows = re.findall(r"(?m)^\| Debian's (\S+) \(.*\n", PAGE.read_text())
    lines = re.findall(r"(?m)^\| Debian's \S+ \(.*\n", PAGE.read_text())
    return dict(zip(rows, lines, strict=True))


def main() -> int:
    sys.stdout.write(HEAD)
    for series in SERIES:
        kernel = find_kernel(series)
        if kernel is None:
            sys.stderr.write(f"{series}: tests/setup/kernels.sh fetches it\n")
            continue
        with tempfile.TemporaryDirectory() as directory:
            sys.stdout.write(render_row(kernel, read_probe(kernel, Path(directory) / "results")))
            sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
