"""PURE: what of an item is a member of a set, by where the set's members come from."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cni_calico.policy.counted import Member
from cni_calico.policy.moving import members_of
from cni_calico.policy.ports import WITH_PORTS
from cni_calico.policy.records import Labelled, ServiceMembers
from cni_calico.policy.sources import PortSource, ServiceSource, SetSource


def members_from(source: SetSource, item: Labelled) -> Collection[Member]:
    """Each once: a port may have two names, and what is exchanged is compared as a set."""
    if isinstance(source, PortSource):
        ports = (
            (port.protocol, port.port)
            for port in item.ports
            if port.name in source.ports
            and (port.protocol in WITH_PORTS if source.protocol is None else port.protocol == source.protocol)
        )
        return [(address, *port) for port in dict.fromkeys(ports) for address in dict.fromkeys(item.addresses)]
    return members_of(item)


def members_of_slice(source: SetSource, members: ServiceMembers) -> Iterable[Member]:
    if isinstance(source, ServiceSource) and source.with_ports:
        return members.ports
    return members.addresses
