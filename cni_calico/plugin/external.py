"""A pod's interface made by an external data plane (``dataplane_options``) in place of the kernel's veth.

Rule: the kernel's configuration is not changed here; addresses, record and undo are the same as for other attachments.
The data plane's answer is validated before it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.cni.dataplane import ExternalDataplane
from cni_calico.deadline import Deadline
from cni_calico.errors import NOT_AVAILABLE, CalicoError, DataplaneFailed, NotReady
from cni_calico.model.names import valid_ifname
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.addresses import UNDO_TIMEOUT_S
from cni_calico.plugin.network.plan import DEFAULT_V4, DEFAULT_V6, PodPlan


def add_interface(task: Task, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the host interface's name and the pod's MAC. Raises DataplaneFailed, also for an unusable answer."""
    from cni_calico.cnidataplane import client

    name, mac = client.add_interface(_socket(task), fields, task.deadline)
    if not valid_ifname(name):
        raise DataplaneFailed(
            f"cannot use the data plane's answer: host_interface_name {client.short(name)!r} is not an interface name"
        )
    return name, parse_mac(mac)


def remove_interface(task: Task) -> None:
    """The namespace's path is sent as "" in GC and for a container whose namespace is gone, as upstream's DEL does.

    Raises DataplaneFailed.
    """
    from cni_calico.cnidataplane import client

    fields = {
        "interface_name": task.call.ifname,
        "netns": task.call.netns,
        "dataplane_options": dict(_dataplane(task).options),
    }
    client.remove_interface(_socket(task), fields, task.deadline)


def give_back(task: Task) -> None:
    """Undo an ADD whatever its outcome: the data plane may have made the interface although we got no answer. Never
    fails: the runtime's DEL does the same again.
    """
    try:
        remove_interface(task.until(Deadline.after(UNDO_TIMEOUT_S)))
    except CalicoError as e:
        task.log.error(f"while undoing: {e.message}")


def require_listening(task: Task) -> None:
    """For STATUS: raises NotReady with code 50 if nothing listens on the socket, because then no ADD can succeed."""
    from cni_calico.cnidataplane import client

    try:
        client.require_listening(_socket(task), task.deadline)
    except DataplaneFailed as e:
        failure = NotReady(f"cannot add a container: {e.message}", details=e.details)
        failure.code = NOT_AVAILABLE
        raise failure from e


def _dataplane(task: Task) -> ExternalDataplane:
    assert task.conf.dataplane is not None
    return task.conf.dataplane


def _socket(task: Task) -> str:
    """The socket's path as this process reaches it."""
    return task.services.files.path(_dataplane(task).socket)


def plan_add(
    task: Task,
    plan: PodPlan,
    record: WorkloadEndpoint,
    gateways: Mapping[Address, str],
    annotations: Mapping[str, str],
) -> Mapping[str, Any]:
    """PURE: the fields of AddRequest. ``gateways``: by address, those that an IPAM plugin named."""
    return {
        "interface_name": plan.pod_ifname,
        "netns": task.call.netns,
        "desired_host_interface_name": plan.host_ifname,
        "settings": {"allow_ip_forwarding": plan.allow_ip_forwarding, "mtu": plan.mtu},
        "container_ips": [
            {"address": f"{address}/{address.max_prefixlen}", "gateway": gateways.get(address, "")}
            for address in plan.addresses
        ],
        "container_routes": plan_routes(plan),
        "workload": {
            "name": record.metadata.name,
            "namespace": record.metadata.namespace,
            "labels": dict(record.metadata.labels),
            "annotations": dict(annotations),
            "endpoint": record.endpoint,
            "node": record.node,
            "orchestrator": record.orchestrator,
            "pod": record.pod,
            "ports": [
                {
                    "name": port.name,
                    "protocol": str(port.protocol),
                    "port": port.port,
                    "host_port": port.host_port,
                    "host_ip": port.host_ip,
                }
                for port in record.ports
            ],
        },
        "dataplane_options": dict(_dataplane(task).options),
    }


def plan_routes(plan: PodPlan) -> list[str]:
    """PURE: an IPAM plugin's own routes; without any (or in addition, with include_default_routes) the default routes
    of both families, whichever families the pod has, because upstream passes these on.
    """
    default = () if plan.extra_routes and not plan.include_default_routes else (DEFAULT_V4, DEFAULT_V6)
    return list(dict.fromkeys(map(str, (*plan.extra_routes, *default))))


def parse_mac(text: str) -> str:
    """The six bytes of a MAC. Raises DataplaneFailed."""
    try:
        mac = bytes.fromhex(text.replace(":", "").replace("-", ""))
    except ValueError:
        mac = b""
    if len(mac) != 6:
        from cni_calico.cnidataplane.client import short

        raise DataplaneFailed(f"cannot use the data plane's answer: container_mac {short(text)!r} is not a MAC address")
    return mac.hex(":")
