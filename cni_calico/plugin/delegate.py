"""Other vendors' IPAM plugins (host-local, dhcp, static): found on CNI_PATH and executed as CNI specifies.

Rule: the delegate gets the network configuration and the caller's CNI_* environment; its result is parsed before it is
used, and its error is passed on with its own text.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import Result, ResultRoute, parse_result
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError, DelegateFailed, InvalidConfig
from cni_calico.kernel.plugin_calls import PluginAnswer
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.podcidr import read_pod_cidrs, render_ipam, render_ipam_placeholders, wants_pod_cidr


def find_executable(task: Task, name: str) -> str:
    """The path of a plugin's executable as the caller names it. Raises DelegateFailed."""
    from cni_calico.kernel.plugin_calls import find_plugin

    found = find_plugin(name, task.call.path, task.services.files)
    if not found:
        raise DelegateFailed(
            f'failed to find plugin "{name}" in path [{" ".join(task.call.path)}]',
            details="ipam.type names a plugin that must be installed in one of the directories of CNI_PATH",
        )
    return found


def run_delegate(task: Task, *, command: str) -> bytes:
    """Run the configuration's IPAM plugin with ``command``; its stdout. Raises DelegateFailed with its error."""
    from cni_calico.kernel.plugin_calls import call_plugin

    name, environ = task.conf.ipam.type, task.call.environ
    executable = find_executable(task, name)
    environment = {name: value for name, value in environ.items() if name == "PATH" or name.startswith("CNI_")}
    environment["CNI_ARGS"] = plan_args(environment.get("CNI_ARGS", ""))
    answer = call_plugin(executable, command, _render_document(task, command), environment, task.deadline)
    if answer.rc != 0:
        if command in ("STATUS", "GC") and f"unknown CNI_COMMAND: {command}".encode() in answer.stdout:
            task.log.debug(f"IPAM plugin {name} is older than {command}")
            return b""
        raise _failure(name, command, answer)
    return answer.stdout


def plan_args(text: str) -> str:
    """The caller's CNI_ARGS for a delegate.

    Plugins built on the reference libraries refuse arguments that they do not know, unless IgnoreUnknown is set.
    """
    pairs = list(filter(None, text.split(";")))
    if any(pair.partition("=")[0].strip() == "IgnoreUnknown" for pair in pairs):
        return text
    return ";".join(("IgnoreUnknown=1", *pairs))


def _render_document(task: Task, command: str) -> Mapping[str, Any]:
    """What the delegate reads: our configuration, with the node's podCIDR where it asks for that."""
    conf = task.conf
    if not wants_pod_cidr(conf.ipam.raw):
        return conf.raw
    if command in ("DEL", "GC"):
        return {**conf.raw, "ipam": render_ipam_placeholders(conf.ipam.raw)}
    name = conf.kubernetes_node_name or task.read_nodename()
    node = task.kubernetes.node(name, task.deadline)
    return {**conf.raw, "ipam": render_ipam(conf.ipam.raw, read_pod_cidrs(node or {}), name)}


def _failure(name: str, command: str, answer: PluginAnswer) -> DelegateFailed:
    failure = DelegateFailed(
        f"cannot {command} with IPAM plugin {name}: {answer.why}", details=f"exit status {answer.rc}"
    )
    code = answer.document.get("code")
    if code in (11, 50, 51):
        failure.code = code
    return failure


def configured_routes(conf: NetConf) -> tuple[ResultRoute, ...]:
    """The routes that host-local and static return: those of the configuration, those that can be read."""
    try:
        return parse_result({"routes": conf.ipam.raw.get("routes")}, "ipam.").routes
    except InvalidConfig:
        return ()


def assign_delegated(task: Task) -> Result:
    """ADD through the delegate. Raises DelegateFailed, also for a result without an address."""
    name, stdout = task.conf.ipam.type, run_delegate(task, command="ADD")
    try:
        result = parse_result(json.loads(stdout), f"result of {os.path.basename(name)}.")
    except ValueError as e:
        raise DelegateFailed(f"cannot use the result of IPAM plugin {name}: {e}") from e
    if not result.ips:
        raise DelegateFailed(
            f"cannot use the result of IPAM plugin {name}: it has no address",
            details="IPAM plugin returned missing IP config",
        )
    return result


def undo_delegated(task: Task, timeout_s: float) -> None:
    """DEL through the delegate after a failed ADD; a failure is only told."""
    try:
        run_delegate(task.until(Deadline.after(timeout_s)), command="DEL")
    except CalicoError as e:
        task.log.error(f"while undoing: {e.message}")
