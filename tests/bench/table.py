"""Measures this build against the reference plugins in one run and prints the tables of BENCHMARKS.md.

    .venv/bin/python tests/bench/table.py [--runs 100] [--write]          three to five minutes
    .venv/bin/python tests/bench/table.py --other NAME DIR CONFLIST       another plugin directory as one more column

As root, on a quiet machine. Everything happens in namespaces and temporary directories of its own. ``--write`` puts the
tables between the two marks in BENCHMARKS.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.model.access import DatastoreConfig
from tests.bench import contest
from tests.bench.contest import Contestant, Figures
from tests.e2e.host import EtcdNode, Node, etcd_in
from tests.e2e.records import encode_config
from tests.netns.namespaces import Namespace, host_namespace

ROOT = Path(__file__).resolve().parents[2]

MARKS = ("<!-- table.py: begin -->", "<!-- table.py: end -->")
SIZES = (1, 100, 1000, 5000)


class Report:
    """Lines of Markdown, printed as they come."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = False

    def line(self, text: str = "") -> None:
        self.lines.append(text)
        print(text, flush=True)

    def row(self, *cells: str) -> None:
        self.line("| " + " | ".join(cells) + " |")

    @contextmanager
    def part(self, what: str) -> Iterator[None]:
        """What is no result is said, and the rest goes on."""
        try:
            yield
        except contest.NoResult as e:
            self.failed = True
            print(f"no result, {what}: {e}", file=sys.stderr, flush=True)

    def head(self, *cells: str) -> None:
        self.line()
        self.row(*cells)
        self.row(*["---"] * len(cells))


# -- where ------------------------------------------------------------------------------------------------------------


@contextmanager
def local_node() -> Iterator[Node]:
    with host_namespace() as host, tempfile.TemporaryDirectory(prefix="cct-bench-") as name:
        root = Path(name)
        yield _prepared(Node(host, root, DatastoreConfig("local", path=str(root / "datastore.db"))))


@contextmanager
def etcd_node() -> Iterator[Node]:
    with ExitStack() as stack:
        host: Namespace = stack.enter_context(host_namespace())
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cct-bench-")))
        member = stack.enter_context(etcd_in(host, root))
        config = DatastoreConfig("etcdv3", etcd_endpoints=(member.client_url,))
        yield _prepared(EtcdNode(host, root, config, nodename="node2", etcd=member))


def _prepared(node: Node) -> Node:
    (node.root / "run").mkdir(exist_ok=True)
    node.apply_pools()
    return node


NODES = {"local": local_node, "etcd": etcd_node}


def both_paths(node: Node) -> Iterator[tuple[str, int]]:
    """("one-shot", 0), then ("served", the running server's process)."""
    yield "one-shot", 0
    with node.server() as process:
        yield "served", process.pid


# -- what -------------------------------------------------------------------------------------------------------------


def one_at_a_time(report: Report, where: str, found: dict[str, dict[str, Figures]]) -> None:
    for verb, figures in found.items():
        mine = figures["ours"]
        cells = [f"{where}: {verb.upper()}"]
        cells += [f"{each.median:.1f} / {each.p99:.1f} / {each.cpu:.1f}" for each in figures.values()]
        others = [each for name, each in figures.items() if name != "ours"]
        cells += [f"{mine.median / each.median:.2f}, {mine.cpu / each.cpu:.2f}" for each in others]
        report.row(*cells, f"{mine.p99 / mine.median:.2f}")


def bursts(report: Report, where: str, found: dict[str, tuple[float, float]]) -> None:
    mine = found["ours"][0]
    cells = [f"{rate:.0f} / {p99:.0f}" for rate, p99 in found.values()]
    report.row(where, *cells, *[f"{mine / rate:.2f}" for name, (rate, _) in found.items() if name != "ours"])


def growth(report: Report, where: str, node: Node, runs: int) -> None:
    """ADD with more and more addresses on the node; P goes along, for the fuller node is measured later."""
    mine, ptp = contest.ours(node), contest.references(node.root)[0]
    filled, first = 0, None
    for size in SIZES:
        fill = [sys.executable, str(ROOT / "tests/bench/fill.py"), encode_config(node.datastore), node.nodename]
        subprocess.run(["nsenter", f"--net={node.host.path}", *fill, str(filled), str(size)], check=True)
        filled = size
        with report.part(f"{where}, {size} addresses"):
            found = [contest.in_turn(node, [mine, ptp], runs, pid)["add"] for _, pid in both_paths(node)]
            first = first or found
            cells = [
                f"{now['ours'].median:.1f} / {now['ours'].cpu:.1f} ({now['ours'].cpu / then['ours'].cpu:.2f} x)"
                for now, then in zip(found, first, strict=True)
            ]
            report.row(f"{where}, {size}", *cells, f"{found[1]['ptp'].median:.1f} / {found[1]['ptp'].cpu:.1f}")


def start(report: Report) -> None:
    names = ["calico", "calico-ipam", "ptp", "bridge"]
    paths = [
        contest.BIN / "calico",
        contest.BIN / "calico-ipam",
        contest.REFERENCE / "ptp",
        contest.REFERENCE / "bridge",
    ]
    report.head("VERSION, ms", *names)
    report.row("median", *[f"{ms:.1f}" for ms in contest.version_ms(paths)])


def memory(report: Report, node: Node, who: Sequence[Contestant]) -> None:
    report.head("peak memory of one ADD, MB", *[f"{each.name}" for each in who])
    report.row("all its processes", *[f"{contest.peak_memory_mb(node, each):.2f}" for each in who])


def measure(report: Report, runs: int, others: Sequence[Contestant]) -> None:
    start(report)
    rates: list[tuple[str, dict[str, tuple[float, float]]]] = []
    names: list[str] = []
    for kind, make in NODES.items():
        with make() as node:
            who = [contest.ours(node), *contest.references(node.root), *others]
            if not names:
                names = [each.name for each in who]
                ratios = [f"ours : {name}, wall, CPU" for name in names[1:]]
                report.head("one at a time, ms: p50 / p99 / CPU", *names, *ratios, "p99 : p50")
            for path, pid in both_paths(node):
                where = f"{kind}, {path}"
                with report.part(f"{where}, one at a time"):
                    one_at_a_time(report, where, contest.in_turn(node, who, runs, pid))
                with report.part(f"{where}, 32 at once"):
                    rates.append((where, contest.burst(node, who, rounds=3 if pid else 1)))
    report.head("32 ADDs at once: ADDs/s / p99 ms", *names, *[f"ours : {name}" for name in names[1:]])
    for where, found in rates:
        bursts(report, where, found)
    with local_node() as node, node.server(), report.part("memory"):
        memory(report, node, [contest.ours(node), *contest.references(node.root), *others])
    report.head("ADD with addresses on the node, ms: p50 / CPU", "one-shot", "served", "ptp")
    for kind, make in NODES.items():
        with make() as node:
            growth(report, kind, node, max(5, runs // 3))


def write_down(report: Report) -> None:
    path = ROOT / "BENCHMARKS.md"
    before, begin, rest = path.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not begin or not end:
        raise SystemExit(f"{path} lacks {MARKS[0]} or {MARKS[1]}")
    path.write_text("\n".join([before + begin, *report.lines, "", end]) + after)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--other", nargs=3, action="append", default=[], metavar=("NAME", "DIR", "CONFLIST"))
    parser.add_argument("--write", action="store_true", help="into BENCHMARKS.md")
    options = parser.parse_args()
    subprocess.run([str(ROOT / "build" / "build.sh")], check=True, stdout=subprocess.DEVNULL)
    report, begun = Report(), time.monotonic()
    load = os.getloadavg()[0]
    report.line(f"{time.strftime('%F', time.gmtime())}, {options.runs} runs each, {os.cpu_count()} cores,")
    kernel = platform.release().partition("-")[0]
    report.line(f"Linux {kernel}, Python {platform.python_version()}, load average at the start {load:.1f}.")
    measure(report, options.runs, [Contestant(name, Path(d), Path(conf)) for name, d, conf in options.other])
    report.line()
    report.line(
        f"It took {(time.monotonic() - begun) / 60:.0f} minutes; load average at the end {os.getloadavg()[0]:.1f}."
    )
    if report.failed:
        raise SystemExit("some parts gave no result: the machine may be too busy")
    if options.write:
        write_down(report)


if __name__ == "__main__":
    main()
