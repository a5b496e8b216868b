"""An agent that keeps a flow recorder running, and does nothing else: for tests that kill it.

python -m tests.fakes.recording_agent ROOT
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable

from cni_calico.daemon.stopping import Stopping
from cni_calico.daemon.supervisor import own_command
from cni_calico.log import Log
from cni_calico.nodeagent.context.recording import WantedRecording
from cni_calico.nodeagent.recording import keeper

keeper._FIRST_PAUSE_S = keeper._LONGEST_PAUSE_S = 0.1  # it is killed on purpose


def main(root: str) -> None:
    def start_thread(work: Callable[[], object]) -> None:
        threading.Thread(target=work, daemon=True).start()

    log = Log("info", f"{root}/agent.log", stderr=False)
    kept = keeper.RecorderKeeper("n1", f"{root}/run", log, own_command(), os.environ, start_thread, Stopping())
    kept.use(WantedRecording("Enabled"), [])
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
