"""``wrapper PROGRAM``: runs a program and restarts it when it ends with the status that asks for that.

Rule: with any other status the wrapper ends too; SIGTERM and SIGINT are passed on, and then nothing is started again.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Mapping, Sequence

from cni_calico.daemon.stopping import Stopping
from cni_calico.errors import InvalidConfig
from cni_calico.kernel.child import Child

END_S = 8.0
_LOOK_S = 0.25


def run_wrapped(command: Sequence[str], environ: Mapping[str, str], restart: int) -> int:
    """The exit status of the last run. Raises InvalidConfig, KernelError."""
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None:
        raise InvalidConfig(f"cannot run {command[0]}: there is no such program")
    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    while True:
        child = Child.start([program, *command[1:]], env=environ, output_fd=2)
        try:
            while not child.ended(_LOOK_S):
                if stopping.is_set():
                    child.stop(END_S)
            code = child.rc or 0
        finally:
            child.close()
        if code != restart or stopping.is_set():
            return 128 - code if code < 0 else code
