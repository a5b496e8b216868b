"""For calico-ipam by itself: decides which interface owns an address that names none (calico learns this from its
records).

Rule: endpoints are read only if there is such an address: upstream's, or an older version's.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import parse_result
from cni_calico.errors import InvalidConfig
from cni_calico.ipam.share import Share
from cni_calico.model.resources import Address
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.addresses import FIRST_IFNAME, plan_share


def find_share(task: Task) -> Share:
    """The calling interface's part of what the container's handle holds."""
    call = task.call

    def claim(unnamed: frozenset[Address]) -> Collection[Address]:
        from cni_calico.plugin.ipam.gc import read_endpoints

        found = read_endpoints(task.fresh_store, task.read_nodename(for_ipam=True), task.deadline).endpoints
        own, others = _previous_addresses(task.conf), set[Address]()
        first_known = False
        for endpoint in found:
            if endpoint.container_id == call.container_id:
                recorded = own if endpoint.endpoint == call.ifname else others
                recorded.update(network.network_address for network in endpoint.ip_networks)
                first_known |= endpoint.endpoint == FIRST_IFNAME and bool(endpoint.ip_networks)
        return plan_share(call.ifname, own, others - own, first_known=first_known).claim(unnamed)

    return Share(call.ifname, claim)


def _previous_addresses(conf: NetConf) -> set[Address]:
    """The addresses that this interface has according to the runtime: the result of the ADD."""
    try:
        return {ip.address.ip for ip in parse_result(conf.prev_result or {}).ips}
    except InvalidConfig:
        return set()
