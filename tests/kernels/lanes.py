"""What runs in the machines: pytest on files whose tests name a feature of the kernel, or are for stock kernels, too.

Rule: a lane is one machine. Every file with a test that has the marker ``kernel`` or ``stock`` is in one; with ``slow``
its slow tests run too. ``quick`` lanes have tests that are not slow: ./test.sh runs those on one kernel.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kernels.images import Kernel
from tests.kernels.machine import ROOT, Outcome, run
from tests.netns.policing.agents import EARLIER, compile_sources, write_earlier


@dataclass(frozen=True)
class Lane:
    files: tuple[str, ...]
    quick: bool = False
    memory_mib: int = 3072
    upgrades: bool = False  # it needs the version before


LANES = {
    "switch": Lane(("tests/netns/agent/test_switch.py",), quick=True),
    "packets": Lane(
        (
            "tests/netns/policing/test_protocols.py",
            "tests/netns/policing/test_netpol_sctp.py",
            "tests/netns/policing/test_flowtables.py",
            "tests/netns/policing/test_netem.py",
            "tests/netns/policing/test_ipvs.py",
            "tests/netns/policing/test_queue.py",
            "tests/netns/policing/test_small_kernels.py",
        ),
        quick=True,
        upgrades=True,
    ),
    "ipip": Lane(("tests/netns/bird/test_ipip.py", "tests/netns/agent/test_ipip.py"), memory_mib=4096),
    "strangers": Lane(("tests/netns/agent/test_strangers.py",)),
    "verdicts": Lane(("tests/netns/test_verdicts.py",)),
}
LIMIT_S = 3400  # of this host, which others may keep busy
_MARKED = re.compile(r"pytest\.mark\.(?:kernel\(|stock\b)")


def marked_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent != Path(__file__).parent and _MARKED.search(path.read_text())
    }


def run_lane(kernel: Kernel, name: str, results: Path, *, slow: bool) -> tuple[Outcome, Counter[str], list[str]]:
    """The machine's outcome, how many tests passed, failed and were skipped, and why they were."""
    lane = LANES[name]
    words = ["python3", "-m", "pytest", "-q", "-n", "0", "-m", "'kernel or stock'"]
    words += ["--no-unexpected-skips", "--timeout", "1500", "--reports", "/results/reports", "--durations", "5"]
    words += ["--slow"] if slow else []
    with tempfile.TemporaryDirectory() as made:
        archive = Path(made, "earlier.tar")
        disks = [archive] if lane.upgrades and write_earlier(archive) else []
        if disks:
            compile_sources(archive)
            words.insert(0, f"{EARLIER}=/dev/vdb")
        command = " ".join([*words, *lane.files])
        done = run(kernel, command, results, limit_s=LIMIT_S, memory_mib=lane.memory_mib, disks=disks)
    counts, reasons = read_reports(results / "reports")
    return done, counts, reasons


def read_reports(path: Path) -> tuple[Counter[str], list[str]]:
    """Of a test's reports one counts: of its call, or of what kept it from being called."""
    import json

    counts: Counter[str] = Counter()
    reasons: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        report: dict[str, Any] = json.loads(line)
        if report["when"] == "call" or report["outcome"] != "passed":
            counts[report["outcome"]] += 1
        if report["outcome"] == "skipped":
            reasons.append(f"{report['nodeid']}: {report['longrepr'][2].removeprefix('Skipped: ')}")
    return counts, reasons
