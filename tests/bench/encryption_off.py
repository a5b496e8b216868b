"""What encryption costs where nobody has enabled it: the agent's start with its rooms and without them, interleaved.

    .venv/bin/python -m tests.bench.encryption_off [--pairs 20]      some four minutes

As root. Both are these sources without the two imports that only annotations need, as they are frozen
(build/expand.py). In the second the rooms are empty modules: it is the agent from before there was encryption, but for
its parameters. A start is from nothing to a network that is applied, on an embedded datastore with a pool. Also the one
question that each ADD asks. Prints medians, and the median of the ratios within a pair.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cni_calico.kernel.files import Files
from cni_calico.plugin.waits import require_guard
from tests.netns.agents import Store
from tests.netns.bird.cluster import make_lab
from tests.netns.encrypted import felix_default
from tests.netns.nodes import ROOT, Node
from tests.unit.nodeagent.fabric import pool

ONLY_TYPES = (
    "from cni_calico.nodeagent.dataplane.encryption.desired import DesiredEncryption\n",
    "from cni_calico.nodeagent.dataplane.encryption.guard import DesiredGuard\n",
)
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


@dataclass
class Started(Node):
    """``tree``: where its modules are."""

    tree: str = ""

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


def tree_of(parent: int) -> list[int]:
    found, todo = [], [parent]
    while todo:
        pid = todo.pop()
        found.append(pid)
        todo += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def start(tree: Path, directory: Path) -> tuple[float, int]:
    """Seconds of the processor until the network is applied, and kB of all of its processes together."""
    with make_lab(directory) as lab:
        ns = lab.namespace("off")
        lab.plug(ns, "eth0", "0", "10.0.0.1/24")
        store = Store(directory / "store.db")
        store.put(pool("10.65.0.0/16", "Always"), felix_default())
        more = {"FELIX_HEALTHENABLED": "false", "FELIX_PROMETHEUSMETRICSENABLED": "false"}
        node = Started(ns, "n1", directory / "n1", store, more=more, tree=str(tree)).run()
        lab.stack.callback(node.end)
        node.until_applied()
        assert node.process is not None
        used, resident = 0.0, 0
        for pid in tree_of(node.process.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            used += sum(map(int, fields[11:15])) / 100
            resident += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
        return used, resident


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
    pairs = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as made:
        trees = {"with": Path(made, "with"), "without": Path(made, "without")}
        write_tree(trees["with"], {})
        write_tree(trees["without"], ROOMS)
        found: dict[str, list[tuple[float, int]]] = {name: [] for name in trees}
        for number in range(pairs + 1):  # the first writes what is compiled
            for name in sorted(trees, reverse=bool(number % 2)):
                directory = Path(made, f"{name}-{number}")
                directory.mkdir()
                measured = start(trees[name], directory)
                if number:
                    found[name].append(measured)
    for what, at, unit in (("start", 0, "s of the processor"), ("memory", 1, "kB")):
        values = {name: [one[at] for one in each] for name, each in found.items()}
        ratios = [one / other for one, other in zip(values["with"], values["without"], strict=True)]
        medians = {name: statistics.median(each) for name, each in values.items()}
        print(
            f"{what}: {medians['with']:g} {unit} with, {medians['without']:g} without; ratio "
            f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}), {pairs} pairs"
        )
    print(f"what ADD asks: {question_us():.2f} us")


if __name__ == "__main__":
    main()
