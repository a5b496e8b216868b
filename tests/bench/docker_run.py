"""How long ``docker run`` takes with our network, beside Docker's bridge: taking turns, with the policy engine running.

    python -m tests.bench.docker_run [RELEASE [RUNS]]

Prints the median of each, their quotient, and how long the driver's own calls took together.
"""

from __future__ import annotations

import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

from tests.netns.docker.machine import IMAGE, Machine, docker_machine


def timed(box: Machine, network: str) -> float:
    began = time.monotonic()
    box.docker("run", "--rm", "--init=false", "--network", network, IMAGE, "true")
    return time.monotonic() - began


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
        box.network("web")
        for network in ("web", "bridge", "web"):
            timed(box, network)
        found: dict[str, list[float]] = {"bridge": [], "web": []}
        for _ in range(int(runs)):
            for network, times in found.items():
                times.append(timed(box, network))
        bridge, ours = (statistics.median(times) * 1000 for times in found.values())
        print(f"dockerd {release}: bridge {bridge:.0f} ms, calico {ours:.0f} ms, {ours / bridge:.2f} ({runs} runs)")
        box.lab.stop(signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
