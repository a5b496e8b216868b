"""What encryption costs where nobody has enabled it: the agent's start and ADDs with its rooms and without them.

    .venv/bin/python -m tests.bench.encryption_off [--pairs 20] [--adds 60]      some four minutes; --pairs 0: no starts

As root. Both are these sources without the two imports that only annotations need, as they are frozen
(build/expand.py). In the second the rooms are empty modules: it is the agent from before there was encryption, but for
its parameters. A start is from nothing to a network that is applied, on an embedded datastore with a pool. ADDs (each
with its DEL) are served by running agents, one of each kind, in turns; theirs is the processor of the call's process
and of the server. Also the one question that each ADD asks. Prints medians, and the median of the ratios within a pair.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cni_calico.kernel.files import Files
from cni_calico.plugin.waits import require_guard
from tests.netns.agents import Store
from tests.netns.bird.cluster import make_lab
from tests.netns.encrypted import felix_default
from tests.netns.nodes import ROOT, Node, Pod
from tests.unit.nodeagent.fabric import pool

ONLY_TYPES = (
    "from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption\n",
    "from cni_calico.nodeagent.dataplane.encryption.guard import DesiredGuard\n",
)
QUESTION = "plugin/add.py", "    require_guard(task)\n"  # of each ADD
TYPED = ("nodeagent/dataplane/desired.py", "nodeagent/dataplane/parts/guard.py")
ROOMS = {
    "nodeagent/dataplane/encryption/families.py": """
GUARDS = ()
def is_enabled(felix): return False
def concerns(felix, own, interfaces): return False
class Off:
    enabled, name, port, mtu = False, "", 0, 0
def of_family(felix, family): return Off
""",
    "nodeagent/dataplane/parts/encryption.py": """
class Encryption:
    name = "encryption"
    def __init__(self, log, now): pass
    def wants(self, changed): return False
    def apply(self, desired, felix, deadline, done, full): pass
class AfterRoutes(Encryption):
    name = "encryption after the routes"
    def __init__(self, first): pass
""",
    "nodeagent/dataplane/parts/guard.py": """
class EncryptionGuard:
    name = "the guard of encryption"
    def __init__(self, files, required, standing): pass
    def restore(self, deadline): return ""
    def wants(self, changed): return False
    def apply(self, desired, felix, deadline, done, full): pass
""",
}


WARM = 5  # ADDs that are not counted


@dataclass
class Started(Node):
    """``tree``: where its modules are; ``pod``: for whom it is called."""

    tree: str = ""
    pod: Pod | None = None

    def _program(self, name: str, module: str) -> list[str]:
        command = [sys.executable, "-m", module]
        return ["nsenter", f"--net={self.ns.path}", "env", "--chdir", self.tree, *command]


def write_tree(tree: Path, rooms: dict[str, str]) -> None:
    shutil.copytree(ROOT / "cni_calico", tree / "cni_calico", ignore=shutil.ignore_patterns("__pycache__"))
    for name in TYPED:
        path = tree / "cni_calico" / name
        source = path.read_text()
        for line in ONLY_TYPES:
            source = source.replace(line, "")
        path.write_text(source)
    for name, source in rooms.items():
        (tree / "cni_calico" / name).write_text(source)
    if rooms:
        name, line = QUESTION
        path = tree / "cni_calico" / name
        source = path.read_text()
        assert source.count(line) == 1
        path.write_text(source.replace(line, ""))


def tree_of(parent: int) -> list[int]:
    found, todo = [], [parent]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def used_s(pid: int) -> float:
    """Of the processor, in ticks of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / 100


@contextmanager
def running(tree: Path, directory: Path) -> Iterator[Started]:
    """An agent that has applied its network."""
    with make_lab(directory) as lab:
        ns = lab.namespace("off")
        lab.plug(ns, "eth0", "0", "10.0.0.1/24")
        store = Store(directory / "store.db")
        store.put(pool("10.65.0.0/16", "Always"), felix_default())
        more = {"FELIX_HEALTHENABLED": "false", "FELIX_PROMETHEUSMETRICSENABLED": "false"}
        node = Started(ns, "n1", directory / "n1", store, more=more, tree=str(tree)).run()
        lab.stack.callback(node.end)
        node.until_applied()
        node.pod = Pod(lab.namespace("pod"), "measured")
        yield node


def start(tree: Path, directory: Path) -> tuple[float, int]:
    """Seconds of the processor until the network is applied, and kB of all of its processes together."""
    with running(tree, directory) as node:
        assert node.process is not None
        used, resident = 0.0, 0
        for pid in tree_of(node.process.pid):
            used += used_s(pid)
            resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
        return used, resident


def add_ms(node: Started, number: int) -> tuple[float, float]:
    """(wall, processor of the call's process) of an ADD; its DEL follows."""
    assert node.pod is not None
    node.pod.container = f"measured-{number}"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    node.add(node.pod)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    node.cni("DEL", node.pod)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1000, cpu * 1000


def measure_adds(trees: dict[str, Path], made: Path, count: int) -> None:
    with ExitStack() as stack:
        nodes, servers, found = {}, {}, dict[str, list[tuple[float, float]]]()
        for name, tree in trees.items():
            directory = made / f"adds-{name}"
            directory.mkdir()
            nodes[name] = node = stack.enter_context(running(tree, directory))
            assert node.process is not None
            each = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in tree_of(node.process.pid)}
            [servers[name]] = [pid for pid, words in each.items() if b"-cni-server" in words]
            found[name] = []
        for number in range(-WARM, count):
            if number == 0:
                before = {name: used_s(pid) for name, pid in servers.items()}
            for name in sorted(trees, reverse=bool(number % 2)):
                measured = add_ms(nodes[name], number + WARM)
                if number >= 0:
                    found[name].append(measured)
        served = {name: (used_s(pid) - before[name]) * 1000 / count for name, pid in servers.items()}
    for what, at in (("wall", 0), ("processor of the call", 1)):
        tell(f"ADD, {what}", "ms", {name: [one[at] for one in each] for name, each in found.items()})
    print(f"the server's processor, ADD and DEL: {served['with']:.2f} ms with, {served['without']:.2f} without")


def tell(what: str, unit: str, values: dict[str, list[float]]) -> None:
    ratios = [one / other for one, other in zip(values["with"], values["without"], strict=True)]
    medians = {name: statistics.median(each) for name, each in values.items()}
    print(
        f"{what}: {medians['with']:g} {unit} with, {medians['without']:g} without; ratio "
        f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {len(ratios)} pairs"
    )


def question_us(calls: int = 200_000) -> float:
    services = SimpleNamespace(files=Files(), state_dir="/var/lib/calico", run_dir="/var/run/calico")
    task: Any = SimpleNamespace(services=services)
    begun = time.process_time()
    for _ in range(calls):
        require_guard(task)
    return (time.process_time() - begun) / calls * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--adds", type=int, default=60)
    given = parser.parse_args()
    pairs = given.pairs
    with tempfile.TemporaryDirectory() as made:
        trees = {"with": Path(made, "with"), "without": Path(made, "without")}
        write_tree(trees["with"], {})
        write_tree(trees["without"], ROOMS)
        if given.adds:
            measure_adds(trees, Path(made), given.adds)
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in trees}
        for number in range(pairs + 1 if pairs else 0):  # the first writes what is compiled
            for name in sorted(trees, reverse=bool(number % 2)):
                directory = Path(made, f"{name}-{number}")
                directory.mkdir()
                measured = start(trees[name], directory)
                if number:
                    found[name].append(measured)
    for what, at, unit in (("start", 0, "s of the processor"), ("memory", 1, "kB")) if pairs else ():
        tell(what, unit, {name: [one[at] for one in each] for name, each in found.items()})
    print(f"what ADD asks: {question_us():.2f} us")


if __name__ == "__main__":
    main()
