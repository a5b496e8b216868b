"""Resident memory of the server over many ADD/DEL pairs: how much, and whether it grows.

    .venv/bin/python tests/bench/memory.py [--pairs 10000] [--store local|etcd] [--frozen]     10,000 pairs: minutes

As root. Each pair is a new container of the real executable, eight at a time, in namespaces that are used again. Prints
VmRSS and VmHWM after every tenth of the pairs, and the growth from the second tenth (caches are warm) to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.kernel import netns
from tests.bench import contest
from tests.bench.bench_cni import spawn
from tests.bench.table import NODES
from tests.e2e.host import Node
from tests.netns.namespaces import Namespace, namespace

ROOT = Path(__file__).resolve().parents[2]

AT_ONCE = 8


def memory_kb(pid: int) -> tuple[int, int]:
    """(VmRSS, VmHWM)."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    found = {words[0]: int(words[1]) for words in lines if words[0] in ("VmRSS:", "VmHWM:")}
    return found["VmRSS:"], found["VmHWM:"]


@contextmanager
def frozen_server(node: Node) -> Iterator[subprocess.Popen[bytes]]:
    environ = {**os.environ, "CALICO_RUN_DIR": str(node.root / "run")}
    command = ["nsenter", f"--net={node.host.path}", str(contest.BIN / "calico-node"), "-cni-server"]
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            node.await_server(process)
            yield process
        finally:
            process.terminate()


def do_pairs(node: Node, pods: list[Namespace], first: int, count: int) -> None:
    """So many ADDs, each with its DEL. Raises RuntimeError for one that failed."""
    conf = json.loads(contest.ours(node).conf.read_text())
    stdin = json.dumps({**conf["plugins"][0], "name": conf["name"], "cniVersion": conf["cniVersion"]}).encode()
    plugin, failures = str(contest.BIN / "calico"), []

    def work(which: int) -> None:
        home = os.open(node.host.path, os.O_RDONLY)
        netns.enter(home)  # this thread, and so what it starts
        for number in range(first + which, first + count, AT_ONCE):
            for verb in ("ADD", "DEL"):
                environ = node.env(verb, f"{number:064x}", pods[which].path, "eth0", "")
                result = spawn(plugin, [plugin], environ, stdin)
                if result.rc:
                    failures.append(result.out)
        os.close(home)

    threads = [threading.Thread(target=work, args=(which,)) for which in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise RuntimeError(f"{len(failures)} calls failed, the first with {failures[0]!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--store", choices=sorted(NODES), default="local")
    parser.add_argument("--frozen", action="store_true", help="the server's executable instead of the sources")
    options = parser.parse_args()
    subprocess.run([str(ROOT / "build" / "build.sh")], check=True, stdout=subprocess.DEVNULL)
    with ExitStack() as stack:
        node = stack.enter_context(NODES[options.store]())
        pods = [stack.enter_context(namespace(f"pod{i}")) for i in range(AT_ONCE)]
        process = stack.enter_context(frozen_server(node) if options.frozen else node.server())
        print(f"server on {options.store}: pairs, VmRSS MB, VmHWM MB")
        print(f"{0:6} {memory_kb(process.pid)[0] / 1024:7.1f} {memory_kb(process.pid)[1] / 1024:7.1f}", flush=True)
        tenth, seen = max(1, options.pairs // 10), []
        for done in range(0, tenth * 10, tenth):
            do_pairs(node, pods, done, tenth)
            seen.append(memory_kb(process.pid))
            print(f"{done + tenth:6} {seen[-1][0] / 1024:7.1f} {seen[-1][1] / 1024:7.1f}", flush=True)
        print(f"growth from the second tenth to the last: {(seen[-1][0] - seen[1][0]) / 1024:.1f} MB")
        if left := node.leftovers():
            raise SystemExit(f"left over: {left}")


if __name__ == "__main__":
    main()
