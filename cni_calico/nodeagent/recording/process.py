"""The process of the recorder, as calico-node begins it.

Rule: it imports only what recording needs: it runs on every node that records, besides the agent.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping

from cni_calico.daemon.stopping import Stopping
from cni_calico.flows.recorder import run
from cni_calico.log import Log, wants_json


def record_flows(environ: Mapping[str, str]) -> int:
    """-flow-recorder, until a signal. Raises CalicoError."""
    stopping = Stopping()
    stopping.on_signals(signal.SIGTERM, signal.SIGINT)
    return run(environ, stopping.is_set, Log("info", context="flows: ", as_json=wants_json(environ)))
