"""What the driver's calls for one container take together, with etcd: as dockerd sees them, and of the processor.

    python -m tests.bench.docker_calls [RELEASE [RUNS [EXECUTABLE]]]

The calls of the start are RequestAddress to EndpointOperInfo, those of the end Revoke to ReleaseAddress. No policy
engine runs, so nothing waits for one. Prints also what the driver has in memory when it is idle. EXECUTABLE is, for
example, dist/bin/calico-docker; without it the driver runs from its sources.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from tests.netns.docker.calls import Recording
from tests.netns.docker.machine import IMAGE, bare_machine
from tests.netns.docker.test_etcd import ETCD, set_up, start_etcd

END = ("RevokeExternalConnectivity", "Leave", "DeleteEndpoint", "ReleaseAddress")
_TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def processor_ms(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK_MS


def resident_mib(pid: int) -> tuple[float, float]:
    """(resident, its own share of what it shares)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return found["Rss"], found["Pss"]


def main(release: str = "20.10", runs: str = "50", executable: str = "") -> None:
    with tempfile.TemporaryDirectory() as directory, bare_machine(Path(directory), release, **ETCD) as box:
        if executable:
            box.driver = (str(Path(executable).resolve()),)
        start_etcd(box)
        box.lab.host.call(set_up)
        recording = Recording(box)
        recording.start()
        box.start_docker()
        box.import_image()
        box.network("web")
        pid = box.pid_of("driver")
        for _ in range(3):
            box.docker("run", "--rm", "--init=false", "--network", "web", IMAGE, "true")
        idle = resident_mib(pid)
        begins, ends, used = [], [], processor_ms(pid)
        for _ in range(int(runs)):
            before = len((box.root / "calls").read_text().splitlines())
            box.docker("run", "--rm", "--init=false", "--network", "web", IMAGE, "true")
            calls = [json.loads(line) for line in (box.root / "calls").read_text().splitlines()[before:]]
            begins.append(sum(took for call, _, took in calls if not call.endswith(END)) * 1000)
            ends.append(sum(took for call, _, took in calls if call.endswith(END)) * 1000)
        used = (processor_ms(pid) - used) / int(runs)
        print(
            f"dockerd {release}, {runs} runs, load {os.getloadavg()[0]:.1f}: start {statistics.median(begins):.1f} ms "
            f"(least {min(begins):.1f}), end {statistics.median(ends):.1f} ms (least {min(ends):.1f}), "
            f"processor {used:.1f} ms for both; idle {idle[0]:.1f} MiB, {idle[1]:.1f} without what others share"
        )
        box.end("recorder")
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
