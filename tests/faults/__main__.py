"""Random calls by many processes while things are killed, stopped, filled and cut off; an independent judge afterwards.

    python -m tests.faults [--store local|etcd] [--mode one-shot|served] [--operations N] [--workers N] [--seed S]

Prints one JSON object: operations and faults by kind, outcomes, violations, and the seed, with which the same decisions
are taken again. The exit status is 1 when anything was violated.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from cni_calico.model.access import DatastoreConfig
from tests.e2e.host import EtcdNode, Node, etcd_in
from tests.faults.history import Operation, Verdict, judge
from tests.faults.worker import Worker
from tests.netns.namespaces import Namespace, host_namespace, namespace, until

SLOTS = 3
LONGEST_S = 6 * 3600
STORE_SIZE = 48 * 1024 * 1024


class Server:
    """A resident server that is started again whenever it ends."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        argv = ["nsenter", f"--net={self.node.host.path}", sys.executable, "-m", "cni_calico.server.run"]
        environ = {**os.environ, "CALICO_RUN_DIR": str(self.node.root / "run")}
        with (self.node.root / "server.log").open("ab") as log:
            self.process = subprocess.Popen(argv, env=environ, stderr=log, stdin=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def limit(self, *options: str) -> None:
        assert self.process is not None
        subprocess.run(["prlimit", "--pid", str(self.process.pid), *options], capture_output=True)

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()


class Faults:
    """One fault after the other, until ``stop``."""

    def __init__(self, node: Node, server: Server | None, seed: int, store: Path) -> None:
        self.node, self.server, self.store = node, server, store
        self.random = random.Random(f"{seed}/faults")
        self.counts: Counter[str] = Counter()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Faults:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        acts = [self._fill_disk]
        if self.server is not None:
            acts += [self._kill_server, self._stop_server, self._few_descriptors, self._little_memory]
        if isinstance(self.node, EtcdNode):
            acts += [self._stop_etcd, self._kill_etcd, self._drop_packets]
        while not self._ended.wait(self.random.uniform(0.2, 1.5)):
            self.random.choice(acts)()

    def _for(self, most_s: float) -> None:
        self._ended.wait(self.random.uniform(0.05, most_s))

    def _kill_server(self) -> None:
        assert self.server is not None
        self.counts["server killed"] += 1
        self.server.kill()
        self._for(1.0)
        self.server.start()

    def _stop_server(self) -> None:
        assert self.server is not None
        self.counts["server stopped"] += 1
        self.server.signal(signal.SIGSTOP)
        self._for(1.0)
        self.server.signal(signal.SIGCONT)

    def _few_descriptors(self) -> None:
        assert self.server is not None
        self.counts["server short of descriptors"] += 1
        self.server.limit("--nofile=48:16384")
        self._for(1.0)
        self.server.limit("--nofile=16384:16384")

    def _little_memory(self) -> None:
        """As much as it has now: whatever it asks for beyond that is refused."""
        assert self.server is not None and self.server.process is not None
        try:
            pages = int(Path(f"/proc/{self.server.process.pid}/statm").read_text().split()[0])
        except (OSError, IndexError):
            return
        self.counts["server short of memory"] += 1
        self.server.limit(f"--as={pages * 4096}:unlimited")
        self._for(1.0)
        self.server.limit("--as=unlimited:unlimited")

    def _fill_disk(self) -> None:
        self.counts["disk full"] += 1
        filler = self.store / "filler"
        try:
            with filler.open("wb") as f:
                while True:
                    f.write(bytes(1024 * 1024))
        except OSError:
            pass
        self._for(0.5)
        filler.unlink(missing_ok=True)

    def _etcd(self) -> Any:
        assert isinstance(self.node, EtcdNode) and self.node.etcd is not None
        return self.node.etcd

    def _stop_etcd(self) -> None:
        self.counts["etcd stopped"] += 1
        self._etcd().signal(signal.SIGSTOP)
        self._for(1.5)
        self._etcd().signal(signal.SIGCONT)

    def _kill_etcd(self) -> None:
        assert isinstance(self.node, EtcdNode)
        self.counts["etcd killed"] += 1
        self._etcd().signal(signal.SIGKILL)
        self.node.stop_etcd()
        self._for(1.0)
        self.node.start_etcd()

    def _drop_packets(self) -> None:
        self.counts["packets dropped"] += 1
        port = self._etcd().client_url.rpartition(":")[2]
        rules = f"table inet faults {{ chain in {{ type filter hook input priority 0; tcp dport {port} drop; }} }}"
        self.node.host.run("nft", rules, check=False)
        self._for(1.5)
        self.node.host.run("nft", "delete table inet faults", check=False)


def _work(node: Node, number: int, seed: int, pods: list[Namespace], output: str, operations: int) -> int:
    """In a process of its own: the faults it made and the problems it saw, as JSON beside the history."""
    pid = os.fork()
    if pid:
        return pid
    try:
        worker = Worker(node, number, seed, pods, output)
        worker.run(operations)
        Path(f"{output}.ready-{number}").touch()
        until(Path(f"{output}.drain").exists, "all faults have ended", LONGEST_S, pause_s=0.05)
        worker.drain()
        Path(f"{output}.{number}").write_text(json.dumps({"faults": worker.faults, "problems": worker.problems}))
        os._exit(0)
    except BaseException as e:
        Path(f"{output}.{number}").write_text(json.dumps({"faults": {}, "problems": [f"worker {number}: {e!r}"]}))
        os._exit(1)


def _pay(node: Node, pod: Namespace) -> list[str]:
    """What is owed is paid by calls that succeed; what is left after many of them."""
    for n in range(400):
        if not node.intents():
            break
        node.call("ADD", f"payer-{n}", pod.path)
        node.call("DEL", f"payer-{n}", pod.path)
    return [f"left over: {name}: {value}" for name, value in node.leftovers().items() if name != "files"]


def run(store: str, mode: str, operations: int, workers: int, seed: int) -> tuple[Verdict, dict[str, Any]]:
    began = time.monotonic()
    with ExitStack() as held:
        host = held.enter_context(host_namespace())
        root = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="cct-faults-")))
        disk = root / "disk"
        disk.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={STORE_SIZE}", "none", str(disk)], check=True)
        held.callback(subprocess.run, ["umount", "-l", str(disk)], capture_output=True)
        for name in ("run", "state"):
            (disk / name).mkdir()
            (root / name).symlink_to(disk / name)
        if store == "etcd":
            etcd = held.enter_context(etcd_in(host, root))
            config = DatastoreConfig("etcdv3", etcd_endpoints=(etcd.client_url,))
            node: Node = EtcdNode(host, root, config, etcd=etcd, timeout_s=150)
        else:
            node = Node(host, root, DatastoreConfig("local", path=str(disk / "datastore.db")), timeout_s=150)
        node.overrides["log_level"] = "none"
        node.apply_pools()
        pods = [[held.enter_context(namespace(f"f{w}-{s}")) for s in range(SLOTS)] for w in range(workers)]
        spare = held.enter_context(namespace("spare"))
        output = str(root / "history")
        children = [_work(node, w, seed, pods[w], output, operations // workers) for w in range(workers)]
        server = Server(node) if mode == "served" else None
        if server is not None:
            held.callback(server.stop)
        with Faults(node, server, seed, disk) as faults:
            ready = [Path(f"{output}.ready-{w}") for w in range(workers)]
            until(
                lambda: all(path.exists() or Path(f"{output}.{w}").exists() for w, path in enumerate(ready)),
                "the workers have made their calls",
                LONGEST_S,
                pause_s=0.1,
            )
        if server is not None and server.process is not None:
            node.await_server(server.process)
        Path(f"{output}.drain").touch()
        for pid in children:
            os.waitpid(pid, 0)
        history = [
            Operation(**{**entry, "addresses": tuple(entry["addresses"])})
            for entry in map(json.loads, Path(output).read_text().splitlines())
        ]
        verdict = judge(history)
        counts = Counter(faults.counts)
        for w in range(workers):
            told = json.loads(Path(f"{output}.{w}").read_text())
            counts.update(told["faults"])
            verdict.violations += told["problems"]
        verdict.violations += _pay(node, spare)
        log = root / "server.log"
        traces = log.read_text(errors="replace").split("Traceback")[1:] if log.exists() else []
        verdict.violations += [f"a trace in the server's log: {trace[:3000]}" for trace in traces[:3]]
    about = {
        "store": store,
        "mode": mode,
        "seed": seed,
        "workers": workers,
        "seconds": round(time.monotonic() - began),
        "operations": dict(verdict.operations),
        "outcomes": dict(sorted(verdict.outcomes.items())),
        "faults": dict(sorted(counts.items())),
        "violations": verdict.violations[:50],
    }
    return verdict, about


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--store", choices=("local", "etcd"), default="local")
    parser.add_argument("--mode", choices=("one-shot", "served"), default="served")
    parser.add_argument("--operations", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    asked = parser.parse_args()
    verdict, about = run(asked.store, asked.mode, asked.operations, asked.workers, asked.seed)
    print(json.dumps(about, indent=1))
    return 1 if verdict.violations else 0


if __name__ == "__main__":
    sys.exit(main())
