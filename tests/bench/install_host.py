#!/usr/bin/env python3
"""How long install.sh takes on a bare host, until the plugin answers VERSION, over a link of ten megabytes a second.

    .venv/bin/python -m tests.bench.install_host RELEASE [rounds [SUITE...]]

``RELEASE``: as build/release.sh made it; a copy of it gets a signature. Suites: bookworm (default) and trixie with the
packages, bullseye with the tarball. Each round has a fresh host. The processor's seconds are those of what the command
started, without the services that it started.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.e2e.install.served import install, served_host
from tests.e2e.install.test_installer import SCRIPT, make_key, sign

VERSION = """echo '{"cniVersion":"1.0.0"}' | CNI_COMMAND=VERSION /opt/cni/bin/calico"""


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def one_round(directory: Path, suite: str, served: Path) -> str:
    directory.mkdir()
    words = ("--tarball",) if suite == "bullseye" else ()
    with served_host(directory, suite, served) as host:
        begun, used = time.monotonic(), processor_s()
        done = install(host, *words)
        assert done.returncode == 0, done
        installed = time.monotonic()
        assert '"supportedVersions"' in host.run("sh", "-c", VERSION).stdout
        answered, spent = time.monotonic(), processor_s() - used
    return f"{answered - begun:.1f} s, of that VERSION {answered - installed:.2f}; processor {spent:.1f} s"


def main() -> None:
    release = Path(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    suites = sys.argv[3:] or ["bookworm"]
    with tempfile.TemporaryDirectory() as made:
        served = Path(made) / "release"
        shutil.copytree(release, served)
        shutil.copy(SCRIPT, served)
        make_key(served, "key")
        make_key(served, "other")
        sign(served)
        for number in range(1, rounds + 1):
            for suite in suites:
                times = one_round(Path(made) / f"{suite}-{number}", suite, served)
                print(f"round {number}, {suite}: {times}; load {os.getloadavg()[0]:.1f}", flush=True)


if __name__ == "__main__":
    main()
