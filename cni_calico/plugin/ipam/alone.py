"""For calico-ipam by itself: decides which interface owns an address that names none (calico learns this from its
records).

Rule: endpoints are read only if there is such an address: upstream's, or an older version's. A DEL whose container has
no endpoint takes its interface for the only one, unless the handle has another interface's address, or the runtime
remembers another interface, or says which addresses this one has.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any

from cni_calico.cni.netconf import NetConf
from cni_calico.cni.result import parse_result
from cni_calico.errors import InvalidConfig
from cni_calico.ipam.share import Share
from cni_calico.model.resources import Address
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam.addresses import FIRST_IFNAME, plan_share

RESULTS = "/var/lib/cni/results"  # where libcni keeps what each ADD returned, until the DEL


def find_share(task: Task) -> Share:
    """The calling interface's part of what the container's handle holds."""
    call = task.call

    def claim(unnamed: frozenset[Address], named_others: bool) -> Collection[Address]:
        from cni_calico.plugin.ipam.gc import read_endpoints

        found = read_endpoints(task.fresh_store, task.read_nodename(for_ipam=True), task.deadline).endpoints
        own, others = _previous_addresses(task.conf), set[Address]()
        first_known = is_known = False
        for endpoint in found:
            if endpoint.container_id == call.container_id:
                recorded = own if endpoint.endpoint == call.ifname else others
                recorded.update(network.network_address for network in endpoint.ip_networks)
                first_known |= endpoint.endpoint == FIRST_IFNAME and bool(endpoint.ip_networks)
                is_known = True
        others |= _remembered_addresses(call.container_id, call.ifname)
        says_nothing = not (is_known or own or named_others)
        if says_nothing and call.command == "DEL" and _may_be_one_interfaces(unnamed - others):
            first_known = True
        share = plan_share(call.ifname, own, others - own, first_known=first_known)
        return share.claim(unnamed, named_others)

    return Share(call.ifname, claim)


def _may_be_one_interfaces(addresses: Collection[Address]) -> bool:
    """An interface has at most one address of a family, so more of them belong to several."""
    return len({address.version for address in addresses}) == len(addresses)


def _remembered_addresses(container_id: str, ifname: str) -> set[Address]:
    """The addresses of the container's other interfaces, in any network, as the runtime's libcni remembers them."""
    found: set[Address] = set()
    for document in _remembered(f"-{container_id}-"):
        try:
            if document.get("containerId") == container_id and document.get("ifName") != ifname:
                found |= _addresses_of(document.get("result"))
        except AttributeError:
            continue
    return found


def containers_of_other_networks(network: str) -> set[str]:
    """The containers that the runtime's libcni remembers in another network: a handle may be theirs that names none."""
    documents = (document for document in _remembered() if isinstance(document, dict))
    return {str(one.get("containerId")) for one in documents if one.get("networkName") != network}


def _remembered(part: str = "") -> Iterator[Any]:
    """What libcni has kept, of the files with this part in their names."""
    import json

    for name in os.listdir(RESULTS) if os.path.isdir(RESULTS) else ():
        if part in name:
            with suppress(OSError, ValueError), open(f"{RESULTS}/{name}", "rb") as file:
                yield json.loads(file.read())


def _previous_addresses(conf: NetConf) -> set[Address]:
    """The addresses that this interface has according to the runtime: the result of the ADD."""
    return _addresses_of(conf.prev_result)


def _addresses_of(result: Mapping[str, object] | None) -> set[Address]:
    try:
        return {ip.address.ip for ip in parse_result(result or {}).ips}
    except InvalidConfig:
        return set()
