"""How long ``docker run`` takes with our network, beside Docker's bridges, in turn, with the policy engine running.

    python -m tests.bench.docker_run [RELEASE [RUNS]]

"bridge" is the one that is always there; "own", made by ``docker network create``, has names as ours has: Docker's name
service in the container, which the other one lacks. Prints the median of each, ours in relation to both (quotient of
medians, and median of the quotients of each turn, which other programs disturb less), and for each network how much
of the processor a run takes: of dockerd, of what dockerd starts (set-up of the container's namespace and names), and of
the driver.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.netns.docker.machine import IMAGE, Machine, docker_machine

OURS, BRIDGE, OWN = "web", "bridge", "own"
NETWORKS = (OURS, BRIDGE, OWN)
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")
Processor = tuple[float, float, float]


def timed(box: Machine, network: str) -> float:
    began = time.monotonic()
    box.docker("run", "--rm", "--init=false", "--network", network, IMAGE, "true")
    return time.monotonic() - began


def processor_ms(box: Machine) -> Processor:
    """Of dockerd, of its children that have ended, and of the driver."""
    (dockerd, children), (driver, _) = (_times(box.pid_of(name)) for name in ("dockerd", "driver"))
    return dockerd, children, driver


def _times(pid: int) -> tuple[float, float]:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, children = fields[11:13], fields[13:15]
    return sum(map(int, own)) * _TICK_MS, sum(map(int, children)) * _TICK_MS


def main(release: str = "20.10", runs: str = "50") -> None:
    with tempfile.TemporaryDirectory() as directory, docker_machine(Path(directory), release) as box:
        denied = {
            "selector": "cni-calico.io/container == 'nobody'",
            "types": ["Ingress"],
            "ingress": [{"action": "Deny"}],
        }
        box.lab.put("GlobalNetworkPolicy", "deny", denied)
        box.lab.start()
        box.lab.until_in_force()
        box.network(OURS)
        box.docker("network", "create", OWN)
        for network in (*NETWORKS, OURS):
            timed(box, network)
        took: dict[str, list[float]] = {network: [] for network in NETWORKS}
        used: dict[str, list[Processor]] = {network: [] for network in NETWORKS}
        for _ in range(int(runs)):
            for network in NETWORKS:
                before = processor_ms(box)
                took[network].append(timed(box, network) * 1000)
                pairs = zip(before, processor_ms(box), strict=True)
                dockerd, children, driver = (after - begun for begun, after in pairs)
                used[network].append((dockerd, children, driver))
        print(f"dockerd {release}, {runs} runs, load {os.getloadavg()[0]:.1f}")
        for network in NETWORKS:
            dockerd, children, driver = (statistics.mean(each) for each in zip(*used[network], strict=True))
            print(
                f"  {network}: median {statistics.median(took[network]):.0f} ms (least {min(took[network]):.0f}); "
                f"processor: dockerd {dockerd:.0f} ms, what it starts {children:.0f}, the driver {driver:.0f}"
            )
        for other in (BRIDGE, OWN):
            medians = statistics.median(took[OURS]) / statistics.median(took[other])
            turns = statistics.median(ours / theirs for ours, theirs in zip(took[OURS], took[other], strict=True))
            print(f"  {OURS} / {other}: {medians:.2f}, by turns {turns:.2f}")
        box.lab.stop(signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
