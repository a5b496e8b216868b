"""Bursts of pods on one node, ours against bridge + host-local in turn: ``python -m tests.lab.burst [--runs 3]``.

Rule: both CNIs are called in the same lab, one after the other, so that each line compares like with like. What is
measured is what others say: the pods' watch, the runtime's log, the API server's audit log.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from tests.conftest import ROOT
from tests.deadlines import until
from tests.lab import lab as labs
from tests.lab.host import BIN, run
from tests.lab.images import make_busybox
from tests.lab.lab import Lab
from tests.lab.node import Node
from tests.lab.workloads import pods

PLUGIN = "system:serviceaccount:kube-system:calico-cni-plugin"
ADD_BUDGET, DELETE_BUDGET = 3, 4
COLLECTED_S = 150  # a kubelet collects what is left of dead pods every minute, and each gets another DEL
_LINE = re.compile(r'time="([^"]+)".*?\b([0-9a-f]{64})\b')
_COLUMNS = "NAME:.metadata.name,PHASE:.status.phase,ADDRESS:.status.podIP"


@dataclass
class Measured:
    """Seconds; requests are for each pod."""

    running: float = 0
    gone: float = 0
    adds: list[float] = field(default_factory=list)
    deletes: list[float] = field(default_factory=list)
    add_requests: float = 0
    delete_requests: float = 0


class Watched:
    """What a watch on the pods has shown, with the time of each."""

    def __init__(self) -> None:
        self.running: dict[str, float] = {}
        self.deleted: dict[str, float] = {}
        self.addresses: set[str] = set()
        self.seen = 0

    def take(self, line: str) -> None:
        self.seen += 1
        event, name, phase, address = line.split()
        if event == "DELETED":
            self.deleted.setdefault(name, time.monotonic())
        elif phase == "Running" and address != "<none>":
            self.running.setdefault(name, time.monotonic())
            self.addresses.add(address)


@contextmanager
def watching(lab: Lab) -> Iterator[Watched]:
    watched = Watched()
    command = lab.plane.inside(
        BIN / "kubectl", f"--kubeconfig={lab.plane.admin}", "get", "pods", "--watch", "--output-watch-events",
        "--no-headers", "-o", f"custom-columns=EVENT:.type,{_COLUMNS.replace(':.', ':.object.')}",
    )  # fmt: skip
    process = subprocess.Popen([str(c) for c in command], stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            watched.take(line)

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        yield watched
    finally:
        process.kill()
        process.wait()
        reader.join()


def burst(lab: Lab, count: int) -> Measured:
    """Make that many pods on the first node, wait for all, delete them, wait for all to be gone."""
    node, measured = lab.nodes[0], Measured()
    log, audit = node.containerd_log.stat().st_size, len(lab.plane.audited())
    with watching(lab) as watched:
        started = time.monotonic()
        lab.kubectl("create", "-f", "-", stdin=pods(range(count), node))
        until(lambda: len(watched.running) == count, f"{count} pods Running", timeout_s=240, pause_s=0.05)
        measured.running = max(watched.running.values()) - started
        assert len(watched.addresses) == count, "an address was given twice"
        between = len(lab.plane.audited())
        started = time.monotonic()
        lab.kubectl("delete", "pods", "--all", "--wait=false")
        until(lambda: len(watched.deleted) == count, f"{count} pods gone", timeout_s=240, pause_s=0.05)
        measured.gone = max(watched.deleted.values()) - started
    if lab.bundle:
        until(lambda: not lab.leftovers(), f"nothing left over: {lab.leftovers()[:5]}", timeout_s=30, pause_s=0.1)
    measured.adds, measured.deletes = read_calls(node, log)
    assert len(measured.adds) >= count and len(measured.deletes) >= count
    adding, deleting = _requests(lab, audit, between), _requests(lab, between, None)
    measured.add_requests, measured.delete_requests = adding.total() / count, deleting.total() / count
    for what, requests, budget in (("ADD", adding, ADD_BUDGET), ("DEL", deleting, DELETE_BUDGET)):
        if requests.total() / count > budget:
            print(f"requests of {what}s:", ", ".join(f"{name} {number}" for name, number in sorted(requests.items())))
    return measured


def _requests(lab: Lab, first: int, last: int | None) -> Counter[str]:
    """The plugin's requests among the audit log's events of those numbers; its standing watches are none of a pod's."""
    events = lab.plane.audited(first)[: None if last is None else last - first]
    own = [event for event in events if event["user"]["username"] == PLUGIN and event["verb"] != "watch"]
    return Counter(f"{e['verb']} {e['objectRef']['resource']} {e['responseStatus']['code']}" for e in own)


def read_calls(node: Node, since: int) -> tuple[list[float], list[float]]:
    """Seconds of the ADDs and DELs in the runtime's log.

    An ADD lies between two lines of its own; a DEL between the sandbox's exit and the line that its network is down,
    which includes the removal of the network namespace.
    """
    begun: dict[str, datetime] = {}
    ended: dict[str, datetime] = {}
    adds, deletes = [], []
    with node.containerd_log.open() as log:
        log.seek(since)
        for line in log:
            found = _LINE.match(line)
            if not found:
                continue
            # nanoseconds are more than datetime takes
            when, sandbox = datetime.fromisoformat(found[1][:26]), found[2]
            if "begin cni setup" in line:
                begun[sandbox] = when
            elif "cni result" in line and sandbox in begun:
                adds.append((when - begun.pop(sandbox)).total_seconds())
            elif "received sandbox container exit event" in line:
                ended[sandbox] = when
            elif "TearDown network" in line and sandbox in ended:
                deletes.append((when - ended.pop(sandbox)).total_seconds())
    return adds, deletes


# -- in turn ----------------------------------------------------------------------------------------------------------


WAITING = "calico, policy waited for"


def with_wait(conflist: str) -> str:
    """Ours, whose ADD waits until the agent says that the pod's policy is in force."""
    document = json.loads(conflist)
    document["plugins"][0]["policy_setup_timeout_seconds"] = 10
    return json.dumps(document)


class Turns:
    """Switches the first node between the network configurations."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._path = lab.nodes[0].disk("/etc/cni/net.d") / "10-lab.conflist"
        labs.install_bundle(lab)
        ours = self._path.read_text()
        labs.install_bridge(lab)
        self._texts = {"calico": ours, WAITING: with_wait(ours), "bridge": self._path.read_text()}

    def use(self, cni: str) -> None:
        """Until a pod has an address of it, which is that CNI's first call too, and nothing is left of earlier pods:
        DELs with which a kubelet collects the other CNI's dead pods must not fall into this one's burst.
        """
        text = self._texts[cni]
        if self._path.read_text() != text:
            self._path.with_suffix(".new").write_text(text)
            self._path.with_suffix(".new").rename(self._path)
        prefix = "10.244." if cni == "bridge" else "10.65."
        until(lambda: self._try().startswith(prefix), f"pods by {cni}", pause_s=0.1)
        node = self._lab.nodes[0]
        until(
            lambda: not node.ctr("containers", "ls", "-q").split(),
            "dead pods collected",
            timeout_s=COLLECTED_S,
            pause_s=1,
        )

    def _try(self) -> str:
        self._lab.kubectl("apply", "-f", "-", stdin=pods([0], self._lab.nodes[0]))
        address: str = self._lab.await_pods(1)[0]["status"]["podIP"]
        self._lab.kubectl("delete", "pod", "p0")
        return address


def table(rows: dict[tuple[str, int], list[Measured]], counts: Sequence[int]) -> str:
    """Markdown: each figure's range over the runs, the ratio of their medians."""
    figures: dict[str, Callable[[Measured], float]] = {
        "all Running, s": lambda m: m.running,
        "CNI ADD p50, s": lambda m: statistics.median(m.adds),
        "CNI ADD max, s": lambda m: max(m.adds),
        "all gone, s": lambda m: m.gone,
        "CNI DEL p50, s": lambda m: statistics.median(m.deletes),
        "CNI DEL max, s": lambda m: max(m.deletes),
        "API requests per pod, ADD": lambda m: m.add_requests,
        "API requests per pod, all DELs": lambda m: m.delete_requests,
    }
    own = [cni for cni in ("calico", WAITING) if (cni, counts[0]) in rows]
    heads = []
    for count in counts:
        heads += [f"bridge, {count}", *(head for cni in own for head in (f"{cni}, {count}", "ratio"))]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for name, value in figures.items():
        cells = []
        for count in counts:
            bridge = [value(m) for m in rows["bridge", count]]
            cells.append(_range(bridge))
            for cni in own:
                ours = [value(m) for m in rows[cni, count]]
                ratio = statistics.median(ours) / statistics.median(bridge) if statistics.median(bridge) else 0
                cells += [_range(ours), f"{ratio:.2f}" if ratio else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(values: Sequence[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low}-{high}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure bursts of pods under a real kubelet.")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="+", default=[30, 60])
    parser.add_argument("--bundle", type=Path, default=ROOT / "dist" / "bin")
    parser.add_argument("--wait", action="store_true", help="ours once more, with ADDs that wait for their policy")
    options = parser.parse_args()
    rows: dict[tuple[str, int], list[Measured]] = {}
    with tempfile.TemporaryDirectory(prefix="cct-lab-images-") as directory:
        own = Path(directory) / "bundle"
        run(ROOT / "build" / "install-bundle.sh", "--plain", options.bundle, own)
        with labs.running_lab(images=[make_busybox(Path(directory))], bundle=own) as lab:
            turns = Turns(lab)
            for count in options.counts:
                for number in range(options.runs):
                    for cni in ("bridge", "calico", *((WAITING,) if options.wait else ())):
                        turns.use(cni)
                        measured = burst(lab, count)
                        rows.setdefault((cni, count), []).append(measured)
                        print(f"{count} pods, run {number + 1}, {cni}: Running {measured.running:.2f} s, "
                              f"gone {measured.gone:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
            lab.calicoctl("ipam", "check")
    print(table(rows, options.counts))


if __name__ == "__main__":
    main()
