"""For calico-ipam by itself: decides which interface owns an address that names none (calico learns this from its
records).

Rule: endpoints are read only if there is such an address: upstream's, or an older version's. A DEL whose container has
no endpoint takes its interface for the only one, unless the handle has another interface's address, or the runtime
remembers another interface, or says which addresses this one has.
"""

from __future__ import annotations

from collections.abc import Collection

from cni_calico.ipam.share import Share
from cni_calico.model.resources import Address
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.addresses import FIRST_IFNAME, plan_share
from cni_calico.plugin.ipam.remembered import addresses_elsewhere, addresses_of


def find_share(task: Task) -> Share:
    """The calling interface's part of what the container's handle holds."""
    call = task.call

    def claim(unnamed: frozenset[Address], named_others: bool) -> Collection[Address]:
        from cni_calico.plugin.ipam.gc import read_endpoints

        found = read_endpoints(task.fresh_store, task.read_nodename(for_ipam=True), task.deadline).endpoints
        own, others = addresses_of(task.conf.prev_result), set[Address]()
        first_known = is_known = False
        for endpoint in found:
            if endpoint.container_id == call.container_id:
                recorded = own if endpoint.endpoint == call.ifname else others
                recorded.update(network.network_address for network in endpoint.ip_networks)
                first_known |= endpoint.endpoint == FIRST_IFNAME and bool(endpoint.ip_networks)
                is_known = True
        others |= addresses_elsewhere(call.container_id, call.ifname)
        says_nothing = not (is_known or own or named_others)
        if says_nothing and call.command == "DEL" and _may_be_one_interfaces(unnamed - others):
            first_known = True
        share = plan_share(call.ifname, own, others - own, first_known=first_known)
        return share.claim(unnamed, named_others)

    return Share(call.ifname, claim)


def _may_be_one_interfaces(addresses: Collection[Address]) -> bool:
    """An interface has at most one address of a family, so more of them belong to several."""
    return len({address.version for address in addresses}) == len(addresses)
