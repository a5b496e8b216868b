"""What real dockerd asks of its drivers, row by row: containers that start, end and move, and dockerd's own ends.

Rule: a row is what happens and the calls that follow, recorded between dockerd and the driver; IDs, addresses and the
like are replaced by numbers in their order, so that two records of one release are equal.

    python -m tests.netns.docker.calls RELEASE...    writes tests/golden/docker/RELEASE.json
"""

from __future__ import annotations

import json
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from tests.deadlines import until
from tests.netns.docker.machine import IMAGE, Machine, bare_machine

GOLDEN = ROOT / "tests" / "golden" / "docker"
BEHIND = "/run/docker/behind"  # the driver's sockets
Call = tuple[str, Any]
_REPLACED = {
    r"[0-9a-f]{64}": "{:064x}",
    r"[\w/.-]*/netns/[0-9a-f]{12}": "/run/docker/netns/{:012x}",
    r"10\.65\.0\.\d+(?=/32|\")": "10.65.0.{}",
    r"fd00:65::[0-9a-f:]+": "fd00:65::{:x}",
    r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}": "02:00:00:00:00:{:02x}",
}
KEEP = ("sleep", "1000")


class Recording:
    """Rows of calls, as the recorder writes them."""

    def __init__(self, box: Machine) -> None:
        self.box = box
        self.rows: dict[str, list[Call]] = {}
        self._log, self._refusals = box.root / "calls", box.root / "refusals"
        self._seen = 0

    def start(self) -> None:
        self.box.start_driver(CALICO_DOCKER_PLUGIN_DIR=BEHIND)
        command = (sys.executable, "-m", "tests.netns.docker.recorder")
        self.box.start("recorder", *command, "/run/docker/plugins", BEHIND, str(self._log), str(self._refusals))
        until(self._log.exists, "the recorder listens")

    def calls(self) -> list[Call]:
        """Since the last row."""
        lines = self._log.read_text().splitlines()[self._seen :]
        return [(call, ordered(body)) for call, body, _ in map(json.loads, lines)]

    def row(self, name: str, act: Callable[[], object], *, last: str = "") -> None:
        """``last``: a call that comes when ``act`` has returned already."""
        act()
        if last:
            until(lambda: last in [call for call, _ in self.calls()], f"{name}: {last}")
        self.rows[name] = self.calls()
        self._seen += len(self.rows[name])

    def refused(self, name: str, call: str, *arguments: str) -> None:
        """A container's start at which this call fails."""
        self._refusals.write_text(call)
        self.row(name, lambda: self.box.refused("run", "--name", "fails", *arguments, IMAGE, "true"))
        self._refusals.unlink()
        self.box.docker("rm", "fails")
        assert not self.calls()

    def normal(self) -> dict[str, list[Call]]:
        """With numbers in the place of what differs from record to record."""
        text, numbers = json.dumps(self.rows), dict[str, dict[str, int]]()
        for pattern, shape in _REPLACED.items():
            known = numbers.setdefault(pattern, {})

            def number(found: re.Match[str], known: dict[str, int] = known, shape: str = shape) -> str:
                return shape.format(known.setdefault(found[0], len(known) + 1))

            text = re.sub(pattern, number, text)
        return {row: [(call, body) for call, body in calls] for row, calls in json.loads(text).items()}


def ordered(body: Any) -> Any:
    """Ports come in any order."""
    options = body.get("Options") if isinstance(body, dict) else None
    for key in ("com.docker.network.portmap", "com.docker.network.endpoint.exposedports"):
        if options and key in options:
            options[key] = sorted(options[key], key=json.dumps)
    return body


def record(box: Machine) -> dict[str, list[Call]]:
    """Every row of the driver's specification, on a machine whose dockerd and driver have not been started."""
    recording = Recording(box)
    docker, row = box.docker, recording.row
    recording.start()
    box.start_docker()
    box.import_image()
    box.lab.put("IPPool", "pool6", {"cidr": "fd00:65::/112", "blockSize": 122, "nodeSelector": "all()"})
    row("create network", lambda: box.network("web", "-o", "mtu=1400"))
    row("create network of two families", lambda: box.network("zwei", "--ipv6"))
    row("create network with a subnet", lambda: box.network("own", "--subnet", "10.65.0.0/24"))
    row("remove network", lambda: docker("network", "rm", "own"))
    row("create", lambda: docker("create", "--init=false", "--name", "one", "--network", "web", IMAGE, *KEEP))
    row("start", lambda: docker("start", "one"))
    row("rename", lambda: docker("rename", "one", "first"))
    row("restart", lambda: docker("restart", "-t", "0", "first"))
    row("connect", lambda: docker("network", "connect", "zwei", "first"))
    row("disconnect", lambda: docker("network", "disconnect", "zwei", "first"))
    row("kill", lambda: docker("kill", "first"), last="IpamDriver.ReleaseAddress")
    row("start again", lambda: docker("start", "first"))
    row("stop", lambda: docker("stop", "-t", "0", "first"))
    row("remove", lambda: docker("rm", "first"))
    ends = ("run", "--rm", "--name", "brief", "--init=false", "--network", "zwei", IMAGE, "true")
    row("run until it exits, two families", lambda: docker(*ends), last="IpamDriver.ReleaseAddress")
    publish = ("-p", "8080:80", "-p", "9000-9001:9000-9001/udp", "-p", "127.0.0.1:70:7", "-p", "7", "--expose", "5")
    again = ("--restart", "always", "--label", "a=b")
    row("run with ports", lambda: box.run("two", "web", *publish, *again))
    for call in ("IpamDriver.RequestAddress", "NetworkDriver.CreateEndpoint", "NetworkDriver.Join"):
        recording.refused(f"{call} fails", call, "--network", "web")
    external = "NetworkDriver.ProgramExternalConnectivity"
    recording.refused(f"{external} fails", external, "--network", "web", "-p", "81:80")

    def stop_and_start(*options: str) -> None:
        box.end("dockerd")
        box.start_docker(*options)

    row("dockerd stopped and started", lambda: stop_and_start("--live-restore"))
    row("dockerd with live-restore stopped and started", lambda: stop_and_start("--live-restore"))
    # 29 fails here, in dockerd, because the default route moves
    row("connect after live-restore", lambda: docker("network", "connect", "zwei", "two", check=False))
    row("remove after live-restore", lambda: docker("rm", "-f", "two"))
    box.end("dockerd")
    box.start_docker()
    box.run("three", "web", "--restart", "always")
    recording.row("run", lambda: None)

    def kill_and_start() -> None:
        box.kill_docker()
        box.start_docker()

    row("dockerd killed and started", kill_and_start)
    docker("rm", "-f", "three")
    return recording.normal()


@contextmanager
def recorded_machine(root: Path, release: str) -> Iterator[Machine]:
    with bare_machine(root, release) as box:
        yield box
        box.end("recorder", signal.SIGKILL)


def without_questions(calls: list[Call]) -> list[Call]:
    """What has effects: the rest only asks what the driver is, or comes when Docker likes."""
    asks = ("Activate", "GetCapabilities", "GetDefaultAddressSpaces", "GwAllocCheck", "EndpointOperInfo")
    return [(call, body) for call, body in calls if not call.endswith(asks)]


def golden(release: str) -> dict[str, list[Call]]:
    rows = json.loads((GOLDEN / f"{release}.json").read_text())
    return {row: [(call, body) for call, body in calls] for row, calls in rows.items()}


def main(*releases: str) -> None:
    GOLDEN.mkdir(exist_ok=True)
    for release in releases:
        with tempfile.TemporaryDirectory() as root, recorded_machine(Path(root), release) as box:
            lines = [
                f"{json.dumps(row)}: [\n" + ",\n".join(f" {json.dumps(call)}" for call in calls) + "\n]"
                for row, calls in record(box).items()
            ]
            (GOLDEN / f"{release}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
