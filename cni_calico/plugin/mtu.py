"""The MTU of a pod's interface when the configuration leaves it open.

Rule: the configuration's number > the file that calico-node writes > the MTU of the interface that has the node's
address less the overhead of its pools' encapsulation > the MTU of the default route's interface > 1500.
"""

from __future__ import annotations

from ipaddress import ip_interface
from typing import Any

from cni_calico.cni.netconf import MTU_MAX
from cni_calico.errors import CorruptRecord, NodeNotSetUp
from cni_calico.model.documents.codec import decode_pool
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.plugin.call.task import Task

DEFAULT_MTU = 1500
MIN_MTU = 68  # RFC 791; the kernel refuses less
OVERHEAD = {"ipip": 20, "vxlan4": 50, "vxlan6": 70}


def read_mtu(task: Task, node: str) -> int:
    """The MTU to use. Raises NodeNotSetUp when require_mtu_file is set and the file is missing or wrong."""
    conf, services = task.conf, task.services
    if conf.mtu and not conf.require_mtu_file:
        return conf.mtu
    path = f"{services.state_dir}/mtu"
    try:
        mtu = int(services.files.read_text(path).strip())
        if MIN_MTU <= mtu <= MTU_MAX:
            return conf.mtu or mtu
        problem = f"{mtu} is not from {MIN_MTU} to {MTU_MAX}"
    except (OSError, ValueError) as e:
        problem = str(e)
    if conf.require_mtu_file:
        raise NodeNotSetUp(
            f"cannot read the MTU from {path}: {problem}",
            details="calico-node writes the file; or set require_mtu_file to false in the configuration",
        )
    return _mtu_of_node(task, node)


def _mtu_of_node(task: Task, node: str) -> int:
    from cni_calico.kernel.mtu import mtu_of_address, mtu_of_default_route

    deadline = task.deadline
    stored = task.store.get(ResourceKey("Node", node), deadline)
    address = _own_address(stored.value) if stored is not None else None
    mtu = mtu_of_address(address, deadline) if address is not None else 0
    base = mtu or mtu_of_default_route(deadline) or DEFAULT_MTU
    return max(base - _overhead(task), MIN_MTU)


def _own_address(document: Any) -> Any:
    for field in ("ipv4Address", "ipv6Address"):
        try:
            return ip_interface(document["spec"]["bgp"][field]).ip
        except (KeyError, TypeError, ValueError):
            continue
    return None


def _overhead(task: Task) -> int:
    largest = 0
    for item in task.store.list(ResourceList("IPPool"), task.deadline).items:
        try:
            pool = decode_pool(item.key, item.value)
        except CorruptRecord:
            continue
        if pool.ipip_mode != "Never":
            largest = max(largest, OVERHEAD["ipip"])
        if pool.vxlan_mode != "Never":
            largest = max(largest, OVERHEAD[f"vxlan{pool.cidr.version}"])
    return largest
