"""What runs in the machines: pytest on files whose tests name a feature of the kernel, or are for stock kernels, too.

Rule: a lane is one machine. Every file with a test that has the marker ``kernel`` or ``stock`` is in one; with ``slow``
its slow tests run too. A ``quick`` lane has tests that are not slow: ./test.sh runs those on one kernel. A test with
the marker ``once`` runs on that one kernel, whatever else runs: nothing in it depends on the kernel that the test that
the marker names does not prove on each.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conftest import SUMMARY
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
    "packets": Lane(
        (
            "tests/netns/policing/test_protocols.py",
            "tests/netns/policing/test_netpol_sctp.py",
            "tests/netns/policing/test_flowtables.py",
            "tests/netns/policing/test_netem.py",
            "tests/netns/policing/test_ipvs.py",
            "tests/netns/policing/test_queue.py",
            "tests/netns/policing/test_small_kernels.py",
            "tests/netns/bird/test_ipip.py",
        ),
        quick=True,
        upgrades=True,
    ),
    "tunnels": Lane(
        (
            "tests/netns/agent/test_switch.py",
            "tests/netns/agent/test_ipip.py",
            "tests/netns/agent/test_strangers.py",
            "tests/netns/test_verdicts.py",
            "tests/netns/flows/test_decisions.py",
            "tests/netns/flows/test_full_table.py",
        ),
        memory_mib=4096,
    ),
    "encryption": Lane(
        (
            "tests/contract/test_wireguard.py",
            "tests/netns/encryption/test_pair.py",
            "tests/netns/encryption/test_mandatory.py",
            "tests/netns/encryption/test_many_peers.py",
            "tests/netns/encryption/test_mandatory_nodes.py",
            "tests/netns/encryption/test_datastore.py",
            "tests/netns/encryption/test_seen.py",
            "tests/netns/encryption/test_changes.py",
            "tests/netns/encryption/test_ways.py",
            "tests/netns/encryption/test_sizes.py",
        )
    ),
}
LIMIT_S = 3400  # of this host, which others may keep busy
_MARKED = re.compile(r"pytest\.mark\.(?:kernel\(|stock\b)")
_ONCE = re.compile(r"pytest\.mark\.once\b(?:\(\"([^\"]*)\"\))?")


def marked_files() -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.parent != Path(__file__).parent and _MARKED.search(path.read_text())
    }


def files_once() -> dict[str, set[str]]:
    """Of the lanes' files those with a test that runs on one kernel: what their markers name."""
    files = [name for lane in LANES.values() for name in lane.files]
    found = {name: set(_ONCE.findall((ROOT / name).read_text())) for name in files}
    return {name: proofs for name, proofs in found.items() if proofs}


@dataclass(frozen=True)
class Results:
    """``passed`` has the ids of tests; ``skipped`` why they were, by id; ``said``: what they record for the end of a
    run.
    """

    outcome: Outcome
    passed: tuple[str, ...]
    failed: tuple[str, ...]
    skipped: Mapping[str, str]
    said: tuple[str, ...]


def run_lane(kernel: Kernel, name: str, results: Path, *, slow: bool, once: bool = True) -> Results:
    """``once``: with the tests that need to run on one kernel only."""
    lane = LANES[name]
    words = ["PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "python3", "-m", "pytest", "-p", "pytest_timeout"]
    words += ["-q", "-m", f"'(kernel or stock){'' if once else ' and not once'}'"]
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
    return read_reports(done, results / "reports")


def read_reports(done: Outcome, path: Path) -> Results:
    """Of a test's reports one counts: of its call, or of what kept it from being called."""
    found: dict[str, list[str]] = {"passed": [], "failed": []}
    skipped: dict[str, str] = {}
    said: list[str] = []
    for line in path.read_text().splitlines() if path.exists() else ():
        report: dict[str, Any] = json.loads(line)
        if report["outcome"] == "skipped":
            skipped[report["nodeid"]] = report["longrepr"][2].removeprefix("Skipped: ")
        elif report["when"] == "call" or report["outcome"] == "failed":
            found[report["outcome"]].append(report["nodeid"])
            said += [value for name, value in report["user_properties"] if name == SUMMARY]
    return Results(done, tuple(found["passed"]), tuple(found["failed"]), skipped, tuple(said))
