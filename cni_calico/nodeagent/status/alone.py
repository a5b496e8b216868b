"""BIRD's part without the agent, as where runit has a service for each: its status is a file of its own.

Rule: the file says what the agent's would, and goes with the process that writes it; one that was killed grows stale.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cni_calico.daemon.said import Said
from cni_calico.log import Log
from cni_calico.nodeagent.status.file import (
    CONFD_TOPICS,
    HEARTBEAT_S,
    forget_confd_status,
    write_confd_status,
)

_LOOK_S = 0.5


def tell_alone(run_dir: str, facts: Mapping[str, Any], log: Log, stopping: threading.Event) -> None:
    """Write what BIRD's part knows whenever it changes, and from time to time, until ``stopping``."""
    said, written, due = Said(log), None, 0.0
    try:
        while not stopping.is_set():
            known = {topic: facts[topic] for topic in CONFD_TOPICS if topic in facts}
            if known != written or time.monotonic() >= due:
                written, due = known, time.monotonic() + HEARTBEAT_S
                try:
                    write_confd_status(run_dir, known)
                except OSError as e:
                    written = None
                    said.say("", [f"cannot write the status of BIRD's part: {e.strerror or e}"], "error")
                else:
                    said.say("", [])
            stopping.wait(_LOOK_S)
    finally:
        with suppress(OSError):
            forget_confd_status(run_dir)
