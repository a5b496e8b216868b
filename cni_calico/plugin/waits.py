"""What an ADD waits for beyond its own work: readiness gates before it, the policy of its endpoint after it.

Rule: a gate that does not open is an error before anything is allocated. Policy that is late is only a warning for a
pod of Kubernetes, whose network is set up; without Kubernetes the container does not start while somebody is there who
should have put it into force. A server that cannot wait (it ends, or too many wait) undoes the call, and the caller
carries it out and waits. Neither wait exceeds the call's deadline. Source: upstream's readiness_gates and
policy_setup_timeout_seconds.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cni_calico.cni.environment import Call
from cni_calico.cni.netconf import ENDPOINT_STATUS_DIR, NetConf
from cni_calico.deadline import Deadline
from cni_calico.directories import BOOT_TABLE, ENCRYPTION_GUARD, ENCRYPTION_REQUIRED, POLICY_DECISION
from cni_calico.errors import FeatureDisabled, KernelError, NodeNotSetUp, PolicyLate, TryAgain
from cni_calico.kernel.files import Files
from cni_calico.model.resources import Address
from cni_calico.plugin.attachment import Attachment, plan_attachment
from cni_calico.plugin.call.serve import Declined
from cni_calico.plugin.call.task import Task
from cni_calico.redaction import shown_url

BGP_PEER = "bgpPeerName"  # in a status file: the BGPPeer for whose sessions the workload is a peer
GATE_PATIENCE_S = 30.0
GATE_ATTEMPT_S = 5.0
_GATE_PAUSE_S = 0.25
DEFAULT_POLICY_S = 5  # without Kubernetes
_POLICY_PAUSE_S, _FIRST_PAUSE_S = 0.02, 0.002
_SOON_S = 0.2  # an idle agent needs a tenth of it
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
    """For a pod of Kubernetes, if the configuration asks for it: wait for the file that says that the endpoint's policy
    is in force; after the timeout log a warning and continue.
    """
    conf, services = task.conf, task.services
    if not conf.policy_setup_timeout_s or not _is_kubernetes(task):
        return
    attachment = plan_attachment(task.call, conf, task.read_nodename())
    path = f"{conf.endpoint_status_dir or ENDPOINT_STATUS_DIR}/{status_file(attachment)}"
    if not _comes(task, lambda: services.files.exists(path), conf.policy_setup_timeout_s):
        services.log.warning(
            f"policy of {attachment.shown} is not known to be in force after {conf.policy_setup_timeout_s} s: "
            f"there is no {path}; the pod starts anyway"
        )


def require_guard(task: Task) -> None:
    """Raises TryAgain while encryption between nodes is mandatory, and since the host's start nothing sees to it."""
    services = task.services
    required = services.files.exists(f"{services.state_dir}/{ENCRYPTION_REQUIRED}")
    if required and not services.files.exists(f"{services.run_dir}/{ENCRYPTION_GUARD}"):
        raise TryAgain(
            "cannot set up the pod's network: encryption between nodes is mandatory, and its guard does not stand yet",
            details="calico-node makes it when it starts; calicoctl node status says why it does not",
        )


def require_policy(task: Task, attachment: Attachment, fields: Mapping[str, Any]) -> None:
    """Without Kubernetes: wait until that file says ``fields`` (see status_fields), if this node enforces policy or has
    not decided yet whether it does. A file of the container's former start has other addresses or another MAC.

    Raises PolicyLate after the timeout if calico-node runs, or if the boot table keeps the endpoint closed; if there is
    neither, nobody would ever write the file, and the container starts.
    """
    conf, files = task.conf, task.services.files
    asked_s = conf.policy_setup_timeout_s
    if asked_s == 0 or conf.dataplane is not None or _is_kubernetes(task):
        return
    run_dir = task.services.run_dir
    decision_path, boot_table = f"{run_dir}/{POLICY_DECISION}", f"{run_dir}/{BOOT_TABLE}"
    if asked_s is None and not (files.exists(decision_path) or files.exists(boot_table)):
        return
    from cni_calico.plugin.policy_decision import read_decision

    name, decision = status_file(attachment), read_decision(files, decision_path)

    def is_in_force() -> bool:
        nonlocal decision
        decision = read_decision(files, decision_path)
        directory = conf.endpoint_status_dir or decision.directory or ENDPOINT_STATUS_DIR
        return _says(files, f"{directory}/{name}", fields) or (asked_s is None and not decision.is_due)

    timeout_s = DEFAULT_POLICY_S if asked_s is None else asked_s
    if is_in_force():
        return
    with task.services.waiting() as must_end:

        def is_over() -> bool:
            if must_end():
                raise Declined(f"the server ends, and policy of {attachment.shown} is not known to be in force yet")
            return is_in_force()

        if _comes(task, is_over, timeout_s):
            return
    late = f"policy of {attachment.shown} is not known to be in force after {timeout_s} s"
    if decision.lives:
        raise PolicyLate(
            f"cannot start the container: {late}",
            details="calico-node runs on this host: 'calicoctl node status' and its log say what keeps it; "
            "policy_setup_timeout_seconds in the network configuration is how long ADD waits, 0: not at all",
        )
    if files.exists(boot_table):
        raise PolicyLate(
            f"cannot start the container: {late}, and workloads are closed since this host started",
            details="start calico-node, or open them with 'calicoctl node boot-table off'",
        )
    task.log.warning(f"{late}: calico-node does not run; the container starts anyway")


def _says(files: Files, path: str, fields: Mapping[str, Any]) -> bool:
    """What cannot be read says nothing."""
    try:
        found = json.loads(files.read_bytes(path))
        return comparable(found) == comparable(fields)
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return False


def comparable(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """An endpoint's status without what says nothing of the policy."""
    compared = {name: value for name, value in fields.items() if name != BGP_PEER}
    return {name: sorted(value) if isinstance(value, list) else value for name, value in compared.items()}


def _is_kubernetes(task: Task) -> bool:
    return task.call.args.is_kubernetes or task.conf.datastore.type == "kubernetes" or bool(task.conf.policy_type)


def _comes(task: Task, is_there: Callable[[], bool], timeout_s: float) -> bool:
    """Whether it comes true in time; some of the call's deadline is left for its answer."""
    limit = task.deadline.sooner(min(float(timeout_s), max(0.0, task.deadline.remaining_s() - _RESERVE_S)))
    soon = task.deadline.sooner(_SOON_S)
    while not is_there():
        if limit.expired():
            return False
        time.sleep(_POLICY_PAUSE_S if soon.expired() else _FIRST_PAUSE_S)
    return True


def status_file(attachment: Attachment) -> str:
    """The name of an endpoint's status file."""
    return status_file_name(attachment.orchestrator, f"{attachment.namespace}/{attachment.workload}", attachment.ifname)


def status_file_name(orchestrator: str, workload: str, endpoint: str) -> str:
    """Orchestrator, namespace/workload and interface, escaped, with spaces between."""
    return " ".join(map(_escaped, (orchestrator, workload, endpoint)))


def status_fields(interface: str, mac: str, addresses: Iterable[Address]) -> dict[str, Any]:
    """What an endpoint's status file says, as JSON; empty fields are left out. Source: upstream's files."""
    nets: dict[int, list[str]] = {4: [], 6: []}
    for address in addresses:
        nets[address.version].append(f"{address}/{address.max_prefixlen}")
    fields = {"ifaceName": interface, "mac": mac, "ipv4Nets": nets[4], "ipv6Nets": nets[6]}
    return {name: value for name, value in fields.items() if value}


def _escaped(text: str) -> str:
    """Escape as Go's url.PathEscape does. Whatever a record says is escaped: JSON may hold halves of characters."""
    try:
        encoded = text.encode("utf-8", "surrogateescape")  # a name of the system's, which need be no UTF-8
    except UnicodeEncodeError:
        encoded = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in encoded)
