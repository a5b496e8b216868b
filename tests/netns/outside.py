"""WireGuard outside of the kernel: wireguard-go, one process for each device.

Rule: it listens at a socket whose name is its device's, whatever namespace that is in.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deadlines import until
from tests.netns.namespaces import Namespace

PROGRAM = Path(os.environ.get("LAB_CACHE") or Path.home() / ".cache" / "cni-lab", "bin", "wireguard")


@contextmanager
def wireguard_outside(ns: Namespace, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A device in the namespace; it goes with its process."""
    command = ["nsenter", f"--net={ns.path}", str(PROGRAM), "-f", name]
    environ = {**os.environ, "WG_PROCESS_FOREGROUND": "1", "LOG_LEVEL": "error", "GOMAXPROCS": "1"}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(Path(f"/var/run/wireguard/{name}.sock").exists, f"the socket of {name}")
        yield process
    finally:
        process.terminate()
        process.wait()
