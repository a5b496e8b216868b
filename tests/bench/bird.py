"""What BGP costs: snapshot, text, check, one change, one new block to the other node's kernel, a look.

    python tests/bench/bird.py          needs root and BIRD 2; prints a table

Each figure is the median of several runs. "change" is everything between a changed record and BIRD's answer.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from cni_calico.deadline import Deadline
from cni_calico.nodeagent.bgp.config.render import render_bird_config
from tests.deadlines import until
from tests.netns.bird.cluster import make_lab
from tests.unit.nodeagent.bgp.config.clusters import document, make_snapshot, node, refusal, this

POOLS = [document("IPPool", "p4", cidr="10.0.0.0/9"), document("IPPool", "p6", cidr="fd65::/48")]


def median_ms(run: Callable[[], Any], times: int = 9) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken)


def cluster(count: int, *, dual: bool = True) -> list[Any]:
    return [
        *POOLS,
        *(
            node(f"n{i}", f"172.31.{i // 250}.{i % 250 + 1}/16", f"fd31::{i + 1:x}/64" if dual else "")
            for i in range(count)
        ),
    ]


def blocks(count: int) -> list[str]:
    return [f"10.{i // 1000}.{i // 4 % 250}.{i % 4 * 64}/26" for i in range(count)]


def bench_render() -> None:
    print("nodes  families  blocks  snapshot ms  render ms  kB of text  bird -p ms")
    for count, dual, own in ((10, True, 1), (100, False, 1), (100, True, 1), (200, True, 1), (200, True, 20)):
        records = [*cluster(count, dual=dual), this("n0", blocks(own))]
        snapshot = make_snapshot(records)
        config = render_bird_config(snapshot)
        size = sum(map(len, config.files.values())) / 1024
        with tempfile.TemporaryDirectory() as name:
            checked = median_ms(partial(refusal, config.files, Path(name)), 5)
        build = median_ms(partial(make_snapshot, records))
        render = median_ms(partial(render_bird_config, snapshot))
        print(f"{count:5}  {2 if dual else 1:8}  {own:6}  {build:11.1f}  {render:9.1f}  {size:10.1f}  {checked:10.1f}")


def bench_change() -> None:
    """One node with so many configured peers; two of them are there."""
    print("\npeers  change ms  of it render ms  block to remote kernel ms  BIRD VmRSS MB")
    for count in (2, 100, 200):
        with tempfile.TemporaryDirectory() as name, make_lab(Path(name)) as lab:
            records = cluster(count, dual=False)
            for i in range(2):
                lab.node(f"n{i}", f"172.31.0.{i + 1}/16", blocks=[f"10.0.{i}.0/26"])
            lab.apply_all(records)
            first, second = lab.nodes["n0"], lab.nodes["n1"]
            until(lambda node=second: "10.0.0.0/26" in node.remote(), "convergence", 90.0)
            changes, renders, arrivals = [], [], []
            for i in range(9):
                block = f"10.1.{i}.0/26"
                first.blocks.append(block)
                with _monitor(second.ns.path) as seen:
                    start = time.perf_counter()
                    config = render_bird_config(make_snapshot([*records, this("n0", first.blocks)]))
                    renders.append((time.perf_counter() - start) * 1000)
                    first.controller.apply(config, Deadline.after(20.0))
                    changes.append((time.perf_counter() - start) * 1000)
                    arrivals.append((seen(block) - start) * 1000)
            status = Path(f"/proc/{first.pid()}/status").read_text()
            rss = int(status.split("VmRSS:")[1].split()[0]) / 1024
            print(
                f"{count:5}  {statistics.median(changes):9.1f}  {statistics.median(renders):15.1f}"
                f"  {statistics.median(arrivals):25.1f}  {rss:13.1f}"
            )


def bench_look() -> None:
    """The look for sessions that have ended: processor time of the agent and of BIRD."""
    print("\npeers  agent ms  BIRD ms")
    for count in (11, 201):
        with tempfile.TemporaryDirectory() as name, make_lab(Path(name)) as lab:
            one = lab.node("n0", "172.31.0.1/16")
            one.apply(cluster(count, dual=False))
            until(lambda n=count - 1, c=one.controller: len(c.sessions(Deadline.after(5.0))) == n, "all sessions")
            ours, birds, times = time.process_time(), _cpu_s(one.pid()), 500
            for _ in range(times):
                one.controller.sessions(Deadline.after(5.0))
            per_look = 1000 / times
            ours, birds = time.process_time() - ours, _cpu_s(one.pid()) - birds
            print(f"{count - 1:5}  {ours * per_look:8.2f}  {birds * per_look:7.2f}")


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


class _monitor:
    """``ip monitor route`` of a namespace; call it with a network for the moment it was seen."""

    def __init__(self, path: str) -> None:
        import subprocess

        self.process = subprocess.Popen(
            ["nsenter", f"--net={path}", "ip", "monitor", "route"], stdout=subprocess.PIPE, text=True
        )
        until(self._listens, "the monitor listens")

    def _listens(self) -> bool:
        """Whether the process has a netlink socket that is in a group."""
        lines = Path(f"/proc/{self.process.pid}/net/netlink").read_text().splitlines()[1:]
        sockets = [line.split() for line in lines]
        return any(words[2] == str(self.process.pid) and int(words[3], 16) for words in sockets)

    def __enter__(self) -> Callable[[str], float]:
        return self.seen

    def seen(self, network: str) -> float:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if network in line:
                return time.perf_counter()
        raise EOFError("ip monitor ended")

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


if __name__ == "__main__":
    bench_render()
    bench_change()
    bench_look()
