"""``-complete-startup`` and ``-shutdown``: tell Kubernetes when this node's network is available, and when it goes
away.

Rule: the condition NetworkUnavailable keeps ordinary pods off the node; it becomes False once the node is ready. After
five minutes it becomes False although the node is not ready, because otherwise the node might never be used; but not
while its pods would lack a tunnel, BIRD or a packet filter, because they could not reach other nodes. A part that was
not started is not waited for. A role without the right to set the condition is named once, with the rule to add.
"""

from __future__ import annotations

import threading
import time

from cni_calico.daemon.said import Said
from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_SOCKET
from cni_calico.errors import CalicoError, DatastoreForbidden
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.status import file as status
from cni_calico.nodeagent.status.probes import why_cni_missing, why_cni_silent

PATIENCE_S = 300.0
_LOOK_S = 0.5
_RETRY_S = 5.0
_FORBIDDEN_S = 60.0  # rights change rarely
_REQUEST_S = 30.0
TOPIC = "NetworkUnavailable"  # in the agent's troubles
RULE = (
    'add to the ClusterRole of calico-node: {apiGroups: [""], resources: [nodes/status], verbs: [patch]} (manifests/'
    "calico.yaml has it); until then pods stay off a node that has the condition"
)


def announce_network(context: Context, stopping: threading.Event, *, cni_server: bool = True) -> None:
    """Wait until the node is ready, then set NetworkUnavailable to False; does nothing outside of Kubernetes.

    ``cni_server``: whether one was started beside this part.
    """
    if context.kubernetes is None or context.settings.backend == "none":
        return
    limit = time.monotonic() + PATIENCE_S
    while (why := _why_not_ready(context, cni_server=cni_server)) and (
        time.monotonic() < limit or _lacks_something(context)
    ):
        if stopping.wait(_LOOK_S):
            return
    if why:
        context.log.warning(f"reporting the node as available although it is not ready: {why}")
    said = Said(context.log)
    while not stopping.is_set():
        pause_s = _RETRY_S
        try:
            context.kubernetes.set_network_unavailable(False, Deadline.after(_REQUEST_S))
        except DatastoreForbidden as e:
            pause_s, why = _FORBIDDEN_S, f"{e}; {RULE}"
        except CalicoError as e:
            why = str(e)
        else:
            context.troubles.pop(TOPIC, None)
            context.log.info("Kubernetes was told that this node's network is available")
            return
        said.say(TOPIC, [why], "error")
        context.troubles[TOPIC] = why
        stopping.wait(pause_s)


def _why_not_ready(context: Context, *, cni_server: bool) -> str:
    run_dir = context.settings.run_dir
    if context.settings.disable_felix:
        return why_cni_silent(f"{run_dir}/{CNI_SOCKET}") if cni_server else ""
    fields = status.read_status(run_dir)
    return status.why_not_ready(fields, status.since_boot()) or why_cni_missing(fields, run_dir)


def _lacks_something(context: Context) -> bool:
    return bool(status.unmet_needs(status.read_status(context.settings.run_dir)))


def announce_shutdown(context: Context) -> None:
    """Set NetworkUnavailable to True. Raises DatastoreError."""
    if context.kubernetes is not None and context.settings.backend != "none":
        context.kubernetes.set_network_unavailable(True, Deadline.after(_REQUEST_S))
