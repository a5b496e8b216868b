"""The agent's status, in a file that probes, ``calicoctl node status`` and metrics read.

If start-up, which runs before the agent, fails, it writes its reason into a second file. BIRD's part, if it runs
without the agent (as a service of its own), writes what it has to say into a third.

Rule: imports almost nothing, because probes are started often and have one second. Times are seconds since boot, which
all processes of the host share. A file that is missing, old or unreadable, or whose writer has ended, means: not
running.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from typing import Any

from cni_calico.kernel.held_file import HeldFile, read_held

NAME = "agent-status.json"
STARTUP_NAME = "startup-error"
CONFD_NAME = "confd-status.json"
CONFD_TOPICS = ("bgp", "bgp_problems", "bgp_unmet", "bgp_ends", "bird")
HEARTBEAT_S = 5.0
STALE_S = 60.0  # a full resync of a large node, on a busy host
STARTING_S = 30.0  # what a start that nothing hinders ends within
POLICING_STALE_S = 120.0  # twice as long as the policy engine waits for the kernel
LOCKED = "locked"  # the writer holds a lock on the file as long as it lives; agents before that did not say so
ENDED = "writer_ended"  # added to what was read
# by this process, by path: the file, and when it was first written
_written: dict[str, HeldFile] = {}
_begun: dict[str, float] = {}


def since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def path_in(run_dir: str) -> str:
    return f"{run_dir}/{NAME}"


def write_status(run_dir: str, fields: Mapping[str, Any]) -> None:
    """Replace the file; a crash in between leaves the old one. Raises OSError."""
    _write(path_in(run_dir), fields)


def write_confd_status(run_dir: str, fields: Mapping[str, Any]) -> None:
    """``fields``: those of CONFD_TOPICS that there are. Raises OSError."""
    _write(f"{run_dir}/{CONFD_NAME}", fields)


def forget_confd_status(run_dir: str) -> None:
    """Raises OSError."""
    _forget(f"{run_dir}/{CONFD_NAME}")


def _write(target: str, fields: Mapping[str, Any]) -> None:
    now = since_boot()
    file = _written.setdefault(target, HeldFile(target))
    begun = _begun.setdefault(target, now)
    file.write(json.dumps({**fields, "pid": os.getpid(), "begun": begun, "updated": now, LOCKED: True}).encode())


def forget_status(run_dir: str) -> None:
    """What an agent wrote that has ended. Raises OSError."""
    _forget(path_in(run_dir))


def _forget(target: str) -> None:
    _begun.pop(target, None)
    _written.pop(target, HeldFile(target)).remove()


def write_startup_error(run_dir: str, text: str) -> None:
    """Record why start-up fails; "" clears it. Raises OSError."""
    target = f"{run_dir}/{STARTUP_NAME}"
    if text:
        from cni_calico.regular import make_directories  # not for probes, which only read

        make_directories(run_dir, 0o755)
        _replace(target, text.encode())
    elif os.path.exists(target):
        os.unlink(target)


def _replace(target: str, data: bytes) -> None:
    from cni_calico.kernel.files import Files  # probes only read

    Files().write_atomic(target, data, 0o644, durable=False)


def read_status(run_dir: str) -> dict[str, Any]:
    """The fields, {} if there are none; "startup_error" is why start-up failed the last time. BIRD's part, while it
    runs without the agent, adds what it says.
    """
    fields = _read_written(path_in(run_dir))
    confd = _read_written(f"{run_dir}/{CONFD_NAME}")
    if ENDED not in confd and -1 <= since_boot() - _number(confd.get("updated")) < STALE_S:
        fields = {**{topic: confd[topic] for topic in CONFD_TOPICS if topic in confd}, **fields}
    failing = _read(f"{run_dir}/{STARTUP_NAME}").decode(errors="replace")
    return {**fields, **({"startup_error": failing} if failing else {})}


def _read_written(path: str) -> dict[str, Any]:
    """The fields of a status; with ENDED if its writer has ended."""
    try:
        data, lives = read_held(path)
    except OSError:
        return {}
    fields = _parse(data)
    return {**fields, ENDED: True} if fields.get(LOCKED) and not lives else fields


def _parse(data: bytes) -> dict[str, Any]:
    """{} for what is no object."""
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _read(path: str) -> bytes:
    """Empty if it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def why_not_live(fields: Mapping[str, Any], now: float) -> str:
    """Why the agent is not alive, "" if it is."""
    if "updated" not in fields:
        failing = fields.get("startup_error")
        return "the agent has not started: " + (f"start-up fails: {failing}" if failing else "it has written no status")
    age = now - _number(fields.get("updated"))
    if fields.get(ENDED):
        return f"the agent has ended: what it reported last is {max(0.0, age):.0f} s old"
    if not -1 <= age < STALE_S:
        return f"the agent last gave a sign of life {age:.0f} s ago"
    stalled_s = _number(fields.get("policing_stalled_s"))
    if stalled_s >= POLICING_STALE_S:
        return f"the policy engine has been stuck at the same step for {stalled_s:.0f} s"
    return ""


def why_not_ready(fields: Mapping[str, Any], now: float) -> str:
    """Why this node cannot take workloads now, "" if it can."""
    why = why_not_live(fields, now)
    if why:
        return why
    if fields.get("startup_error"):
        return f"start-up fails: {fields['startup_error']}"
    if not fields.get("synced"):
        error = fields.get("datastore_error")
        return "the agent has not applied the network yet" + (f": {error}" if error else "")
    if fields.get("datastore_error"):
        return f"the datastore is out of sync: {fields['datastore_error']}"
    return "; ".join(unmet_needs(fields))


def why_not_started(fields: Mapping[str, Any], now: float) -> str:
    """Why a start goes on, "" once it has ended: the agent is ready, or has lived for STARTING_S and waits for what may
    never come.
    """
    starting = now - _number(fields.get("begun")) < STARTING_S
    return why_not_ready(fields, now) if starting else why_not_live(fields, now)


def unmet_needs(fields: Mapping[str, Any]) -> list[str]:
    """What workloads of this node need now and lack: a tunnel, BIRD, a packet filter, policies in force."""
    needs = [str(text) for topic in ("unmet", "bgp_unmet", "aws_unmet") for text in fields.get(topic) or ()]
    policing = fields.get("policing")
    if isinstance(policing, dict) and not policing.get("ready"):
        needs.append(str(policing.get("sentence")))
    return needs


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else -1e9
