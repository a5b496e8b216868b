"""A child of ``calico-node run`` ends when its supervisor is gone, for whatever reason.

Rule: a supervisor that was killed cannot end its children, and the next one starts its own: two agents, perhaps of two
releases, would work on one node. The child notices the change of its parent's process number and asks itself to end, as
the supervisor would have.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping

VARIABLE = "CALICO_SUPERVISOR"  # the supervisor's process number, for its children only
_LOOK_S = 0.5


def end_with_supervisor(environ: Mapping[str, str]) -> None:
    """Start to watch; does nothing in a process that something else has started."""
    supervisor = environ.get(VARIABLE, "")
    if supervisor.isdecimal():
        threading.Thread(target=_watch, args=(int(supervisor),), name="supervisor", daemon=True).start()


def _watch(supervisor: int) -> None:
    while os.getppid() == supervisor:
        threading.Event().wait(_LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
