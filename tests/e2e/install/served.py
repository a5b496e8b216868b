"""A fresh host of a suite of Debian, and a server at the other end of a link of 80 Mbit/s: ten megabytes a second.

Rule: what the host gets of a release it gets through that link, by the commands of the pages.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import LAB_CACHE, ROOT
from tests.e2e.systemd.machine import Machine, machine

SERVER = "http://192.0.2.1:8000"


@contextmanager
def served_host(directory: Path, suite: str, served: Path) -> Iterator[Machine]:
    """It is up, and has the keys key.pub and other.pub of ``served`` in /tmp. ``directory``: of its own."""
    subprocess.run([ROOT / "tests/setup/fresh-roots.sh", suite], check=True)
    with machine(directory, None, LAB_CACHE / f"fresh-{suite}") as made:
        made.start()
        made.until_up()
        inside = ["nsenter", f"--net={made.outside.path}"]
        slow = [*inside, "tc", "qdisc", "add", "dev", "wire", "root", "tbf", "rate", "80mbit"]
        subprocess.run([*slow, "burst", "64k", "latency", "400ms"], check=True)
        argv = [*inside, sys.executable, "-m", "http.server", "8000", "--bind", "192.0.2.1", "--directory", str(served)]
        with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
            try:
                get = f"curl -fsS --retry 30 --retry-connrefused --retry-delay 1 {SERVER}/key.pub -o /tmp/key.pub"
                made.run("sh", "-c", f"{get} && curl -fsS {SERVER}/other.pub -o /tmp/other.pub")
                yield made
            finally:
                server.terminate()


def install(host: Machine, *words: str, key: str = "key") -> subprocess.CompletedProcess[str]:
    """As the page says it: one command."""
    script = f'curl -fsS {SERVER}/install.sh | sh -s -- --from {SERVER} --key /tmp/{key}.pub "$@"'
    return host.run("sh", "-c", script, "sh", *words, check=False)
