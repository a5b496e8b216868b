"""What the agent says about itself, in a file that probes, ``calicoctl node status`` and metrics read.

Rule: imports next to nothing, because probes are started often and have a second. Times are seconds since boot, which
all processes of the host share. A file that is missing, old or unreadable means: not running.
"""

from __future__ import annotations

import json
import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "agent-status.json"
HEARTBEAT_S = 5.0
STALE_S = 60.0  # a full resync of a large node, on a busy host


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def path_in(run_dir: str) -> str:
    return f"{run_dir}/{NAME}"


def write_status(run_dir: str, fields: Mapping[str, Any]) -> None:
    """Replace the file; a crash in between leaves the old one. Raises OSError."""
    target = path_in(run_dir)
    temporary = f"{target}.{os.getpid()}.new"
    data = json.dumps({**fields, "pid": os.getpid(), "updated": since_boot()}).encode()
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, data)
    finally:
        os.close(fd)
    os.rename(temporary, target)


def read_status(run_dir: str) -> dict[str, Any]:
    """The fields, {} when there are none to be had."""
    try:
        with open(path_in(run_dir), "rb") as file:
            fields = json.loads(file.read())
    except (OSError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def why_not_live(fields: Mapping[str, Any], now: float) -> str:
    """Why the agent is not alive, "" when it is."""
    if not fields:
        return "the agent has not started: it has written no status"
    age = now - _number(fields.get("updated"))
    if not -1 <= age < STALE_S:
        return f"the agent last gave a sign of life {age:.0f} s ago"
    return ""


def why_not_ready(fields: Mapping[str, Any], now: float) -> str:
    """Why this node cannot take workloads now, "" when it can."""
    why = why_not_live(fields, now)
    if why:
        return why
    if not fields.get("synced"):
        error = fields.get("datastore_error")
        return "the agent has not applied the network yet" + (f": {error}" if error else "")
    if fields.get("datastore_error"):
        return f"the datastore is out of sync: {fields['datastore_error']}"
    return ""


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else -1e9
