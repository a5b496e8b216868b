"""What an ADD waits for beyond its own work: readiness gates before it, the policy of its endpoint after it.

Rule: a gate that does not open is an error before anything is allocated; policy that is late is only a warning, because
the pod's network is set up. Neither wait exceeds the call's deadline. Source: upstream's readiness_gates and
policy_setup_timeout_seconds.
"""

from __future__ import annotations

import time

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import NetConf
from cni_calico.deadline import Deadline
from cni_calico.errors import FeatureDisabled, KernelError, NodeNotSetUp
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.call.task import Task
from cni_calico.redaction import shown_url

GATE_PATIENCE_S = 30.0
GATE_ATTEMPT_S = 5.0
_GATE_PAUSE_S = 0.25
_POLICY_PAUSE_S = 0.02
_RESERVE_S = 2.0  # of the call's deadline, kept for its answer
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.~$&+:=@")


def require_features(call: Call, conf: NetConf) -> None:
    """Raises FeatureDisabled for a feature that only pods of Kubernetes can ask for."""
    if conf.ip_addrs_no_ipam and not call.args.is_kubernetes:
        raise FeatureDisabled(
            "requested feature is not supported for this runtime: ip_addrs_no_ipam",
            details="feature_control.ip_addrs_no_ipam is for Kubernetes only: remove it from this configuration",
        )


def await_gates(conf: NetConf, deadline: Deadline) -> None:
    """Wait until every readiness gate has answered. Raises NodeNotSetUp naming the one that has not."""
    for gate in conf.readiness_gates:
        _await_gate(gate, deadline.sooner(GATE_PATIENCE_S))


def _await_gate(gate: str, limit: Deadline) -> None:
    from cni_calico.kernel.url import read_status

    while True:
        try:
            status = read_status(gate, limit.sooner(GATE_ATTEMPT_S))
            if 200 <= status < 400:
                return
            problem = f"it answered with status {status}"
        except KernelError as e:
            problem = e.message
        if limit.remaining_s() <= _GATE_PAUSE_S:
            raise NodeNotSetUp(
                f"cannot set up the pod's network: readiness gate {shown_url(gate)} is not ready: {problem}",
                details="readiness_gates in the network configuration names what has to answer before pods start",
            )
        time.sleep(_GATE_PAUSE_S)


def await_policy(task: Task) -> None:
    """Wait for the file that says that the endpoint's policy is in force; after the timeout log a warning
    and continue.
    """
    conf, services, deadline = task.conf, task.services, task.deadline
    if not conf.policy_setup_timeout_s:
        return
    attachment = plan_attachment(task.call, conf, task.read_nodename())
    path = f"{conf.endpoint_status_dir}/{status_file(attachment)}"
    limit = deadline.sooner(min(float(conf.policy_setup_timeout_s), max(0.0, deadline.remaining_s() - _RESERVE_S)))
    while not services.files.exists(path):
        if limit.expired():
            services.log.warning(
                f"policy of {attachment.label} is not known to be in force after {conf.policy_setup_timeout_s} s: "
                f"there is no {path}; the pod starts anyway"
            )
            return
        time.sleep(_POLICY_PAUSE_S)


def status_file(attachment: Attachment) -> str:
    """The name of an endpoint's status file."""
    return status_file_name(attachment.orchestrator, f"{attachment.namespace}/{attachment.workload}", attachment.ifname)


def status_file_name(orchestrator: str, workload: str, endpoint: str) -> str:
    """Orchestrator, namespace/workload and interface, escaped, with spaces between."""
    return " ".join(map(_escaped, (orchestrator, workload, endpoint)))


def _escaped(text: str) -> str:
    """Escape as Go's url.PathEscape does. Whatever a record says is escaped: JSON may hold halves of characters."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")  # a name of the system's, which need be no UTF-8
    except UnicodeEncodeError:
        encoded = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in encoded)
