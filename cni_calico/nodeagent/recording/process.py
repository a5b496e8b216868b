"""The process of the recorder, as calico-node begins it.

Rule: it imports only what recording needs: it runs on every node that records, besides the agent.
"""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Mapping

from cni_calico import directories
from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import KernelError
from cni_calico.flows.groups import DENIED_ONLY, WHAT
from cni_calico.flows.recorder import DENIED_RING_BYTES, RING_BYTES, Recorder
from cni_calico.kernel.memory import expect_growth, give_back_memory
from cni_calico.log import Log, wants_json

_STDIN, _NICE = 0, 5


def record_flows(environ: Mapping[str, str]) -> int:
    """-flow-recorder, until a signal; returns the exit status. Raises CalicoError."""
    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    log = Log("info", context="flows: ", as_json=wants_json(environ))
    os.nice(_NICE)
    allowed = environ.get(WHAT) != DENIED_ONLY
    size = RING_BYTES if allowed else DENIED_RING_BYTES
    places = directories.state_dir(environ), directories.run_dir(environ)
    try:
        recorder = Recorder(*places, log, size, agent_fd=agents_end(), allowed=allowed)
    except OSError as e:
        raise KernelError(f"cannot record flows: {e}", errno=e.errno or 0) from e
    recorder.wake_for(stopping.fileno())
    log.info("recording flows" if allowed else "recording what is denied")
    give_back_memory()
    expect_growth()  # records come and go, and refer to nothing that refers to them
    try:
        while not stopping.is_set():
            recorder.step()
    finally:
        recorder.close()
    return 0


def agents_end() -> int | None:
    """The end of the agent's socket pair that was given to this process; None if none was: nothing is judged then."""
    try:
        return _STDIN if stat.S_ISSOCK(os.fstat(_STDIN).st_mode) else None
    except OSError:
        return None
