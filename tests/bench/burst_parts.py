"""What a burst of served ADDs takes of the processors, and whose it is, beside ptp's, round by round.

    .venv/bin/python tests/bench/burst_parts.py [--rounds 10] [--calls 32] [--bin DIR]      as root; a minute

The frozen executables on the embedded store and on etcd. Per ADD: the time of the whole burst divided by its calls, and
the CPU of each process in that time (the kernel's count): the resident server, etcd, the executables that are called,
this bench, which starts them. With etcd the transactions that it took, by its own count. Median of the rounds; the
first one is not counted. Where the server's CPU is nearly all of the time, its one interpreter is what ADDs wait for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cni_calico.kernel import netns
from tests.bench import contest
from tests.bench.bench_cni import spawn
from tests.bench.table import NODES
from tests.e2e.host import Node
from tests.netns.namespaces import namespace

TICKS_MS = 1000 / os.sysconf("SC_CLK_TCK")
PARTS = ("time", "server", "etcd", "executables", "bench", "transactions")
Figures = dict[str, float]


def cpu_ms(pid: int) -> float:
    """User and system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICKS_MS


def pid_of(url: str) -> int:
    """The etcd that listens there."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/etcd") and url.encode() in words:
            return int(path.parent.name)
    raise SystemExit(f"no etcd listens on {url}")


def transactions(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("etcd_server_proposals_committed_total ")))


def all_at_once(node: Node, who: contest.Contestant, verb: str, round_: int, pods: list[str]) -> tuple[float, float]:
    """(ms until the last has answered, ms of CPU of the executables)."""
    conf = json.loads(who.conf.read_text())
    plugin = {**conf["plugins"][0], "name": conf["name"], "cniVersion": conf["cniVersion"]}
    path, stdin = str(who.directory / plugin["type"]), json.dumps(plugin).encode()

    def call(number: int) -> float:
        container = hashlib.sha256(f"{round_} {number}".encode()).hexdigest()  # interfaces have the first digits
        environ = node.env(verb, container, pods[number], "eth0", "")
        environ["CNI_PATH"] = str(who.directory)
        done = spawn(path, [path], environ, stdin)
        if done.rc:
            raise SystemExit(f"{who.name}: {verb} failed: {done.out!r} {done.err!r}")
        return float(done.user + done.sys)

    with ThreadPoolExecutor(len(pods)) as pool:
        begun = time.perf_counter()
        spent = sum(pool.map(call, range(len(pods))))
        return 1000 * (time.perf_counter() - begun), spent


def measure(kind: str, rounds: int, calls: int, directory: Path) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = {"ours": [], "ptp": []}
    with ExitStack() as stack:
        node = stack.enter_context(NODES[kind]())
        pods = [stack.enter_context(namespace(f"burst{number}")).path for number in range(calls)]
        mine = contest.ours(node)
        who = [contest.Contestant(mine.name, directory, mine.conf), contest.references(node.root)[0]]
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        netns.enter(os.open(node.host.path, os.O_RDONLY))  # the threads of the pool are started in it
        stack.callback(netns.enter, here)
        program = (str(directory / "calico-node"), "-cni-server")
        server = stack.enter_context(node.server(program=program)).pid
        url = node.datastore.etcd_endpoints[0] if kind == "etcd" else ""
        etcd = pid_of(url) if url else 0
        for round_ in range(rounds + 1):
            for each in who:
                before = cpu_ms(server), cpu_ms(etcd) if etcd else 0.0, 1000 * time.process_time()
                count = transactions(url) if url else 0.0
                wall, executables = all_at_once(node, each, "ADD", round_, pods)
                after = cpu_ms(server), cpu_ms(etcd) if etcd else 0.0, 1000 * time.process_time()
                spent = [(now - then) / calls for now, then in zip(after, before, strict=True)]
                count = (transactions(url) - count) / calls if url else 0.0
                if round_:
                    values = (wall / calls, spent[0], spent[1], executables / calls, spent[2], count)
                    found[each.name].append(dict(zip(PARTS, values, strict=True)))
                all_at_once(node, each, "DEL", round_, pods)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--calls", type=int, default=32)
    parser.add_argument("--bin", type=Path, default=contest.BIN)
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}\n\n| ms of an ADD | {' | '.join(PARTS)} |")
    print("|---" * (len(PARTS) + 1) + "|")
    for kind in NODES:
        for name, rounds in measure(kind, options.rounds, options.calls, options.bin.resolve()).items():
            cells = (f"{statistics.median(one[part] for one in rounds):.2f}" for part in PARTS)
            print(f"| {kind}, {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
