"""``-complete-startup`` and ``-shutdown``: tell Kubernetes when this node's network is available, and when it goes
away.

Rule: the condition NetworkUnavailable keeps ordinary pods off the node; it becomes False once the node is ready. After
five minutes it becomes False although the node is not ready, because otherwise the node might never be used; but not
while its pods would lack a tunnel, BIRD or a packet filter, because they could not reach other nodes.
"""

from __future__ import annotations

import threading
import time

from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_SOCKET
from cni_calico.errors import CalicoError
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.probes import why_cni_silent

PATIENCE_S = 300.0
_LOOK_S = 0.5
_RETRY_S = 5.0
_REQUEST_S = 30.0


def announce_network(context: Context, stopping: threading.Event) -> None:
    """Wait until the node is ready, then set NetworkUnavailable to False; does nothing outside of Kubernetes."""
    if context.kubernetes is None or context.settings.backend == "none":
        return
    limit = time.monotonic() + PATIENCE_S
    while (why := _why_not_ready(context)) and (time.monotonic() < limit or _lacks_something(context)):
        if stopping.wait(_LOOK_S):
            return
    if why:
        context.log.warning(f"reporting the node as available although it is not ready: {why}")
    while not stopping.is_set():
        try:
            context.kubernetes.set_network_unavailable(False, Deadline.after(_REQUEST_S))
        except CalicoError as e:
            context.log.error(str(e))
            stopping.wait(_RETRY_S)
            continue
        context.log.info("Kubernetes was told that this node's network is available")
        return


def _why_not_ready(context: Context) -> str:
    run_dir = context.settings.run_dir
    why = status.why_not_ready(status.read_status(run_dir), status.since_boot())
    return why or why_cni_silent(f"{run_dir}/{CNI_SOCKET}")


def _lacks_something(context: Context) -> bool:
    return bool(status.unmet_needs(status.read_status(context.settings.run_dir)))


def announce_shutdown(context: Context) -> None:
    """Set NetworkUnavailable to True. Raises DatastoreError."""
    if context.kubernetes is not None and context.settings.backend != "none":
        context.kubernetes.set_network_unavailable(True, Deadline.after(_REQUEST_S))
