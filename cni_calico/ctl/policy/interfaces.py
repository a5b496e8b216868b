"""PURE: the host endpoint that a connection passes on a node, as far as records tell.

Rule: an interface gets the host endpoint that the agent gives it. Records seldom say which interface has an address,
and never which one leads to other hosts. So it is assumed to be that of the host endpoint that expects the address; if
none does, of the first one that names an interface and expects no address; if there is none, one without a host
endpoint of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from cni_calico.ctl.addresses import TUNNELS, devices_of_addresses, main_addresses
from cni_calico.model.interface_patterns import is_excluded
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address, Node
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.policy.hosts import ALL_INTERFACES, HostRecord

LOOPBACK = "lo"
_LOOPBACK_ADDRESSES = (ip_address("127.0.0.1"), ip_address("::1"))


@dataclass(frozen=True, slots=True)
class NodeHosts:
    """A node's host endpoints, sorted by name, without those whose interface is excluded.

    ``main``: its addresses on the network between nodes; ``devices``: the interfaces of addresses, where they are
    known.
    """

    hosts: Mapping[ResourceKey, HostRecord]
    felix: FelixSettings
    main: tuple[Address, ...] = ()
    devices: Mapping[Address, str] = field(default_factory=dict)

    def everywhere(self) -> ResourceKey | None:
        """That of all interfaces without one of their own."""
        return next((key for key, host in self.hosts.items() if host.interface == ALL_INTERFACES), None)

    def at_interface(self, name: str, *addresses: Address) -> ResourceKey | None:
        """That of an interface; ``addresses``: those that are known of its addresses."""
        fits = (key for key, host in self.hosts.items() if host.interface == name or _is_unnamed(host, addresses))
        return next(fits, None) or self.everywhere()

    def at_address(self, address: Address) -> ResourceKey | None:
        """That of the interface that has an address of the node."""
        device = LOOPBACK if address.is_loopback else self.devices.get(address, "")
        return self._at_device(device) if device else self._likely(address) or self.everywhere()

    def at_loopback(self) -> ResourceKey | None:
        """That of the loopback interface."""
        return self._at_device(LOOPBACK)

    def at_uplink(self) -> ResourceKey | None:
        """That of the interface that leads to other hosts."""
        device = next((self.devices[address] for address in self.main if address in self.devices), "")
        if device:
            return self._at_device(device)
        others = (key for key, host in self.hosts.items() if not self._is_internal(host.interface))
        return self._likely(*self.main) or self.everywhere() or next(others, None)

    def _at_device(self, name: str) -> ResourceKey | None:
        known = _LOOPBACK_ADDRESSES if name == LOOPBACK else ()
        return self.at_interface(name, *known, *(address for address, device in self.devices.items() if device == name))

    def _likely(self, *addresses: Address) -> ResourceKey | None:
        outer = {key: host for key, host in self.hosts.items() if not self._is_internal(host.interface)}
        expecting = [key for key, host in outer.items() if _expects(host, addresses)]
        silent = [key for key, host in outer.items() if host.interface and not host.labelled.addresses]
        named = next((outer[key].interface for key in expecting or silent if outer[key].interface), "")
        return self.at_interface(named, *addresses) if named else next(iter(expecting), None)

    def _is_internal(self, interface: str) -> bool:
        """Whether no other host can be reached through an interface, except by a tunnel."""
        return interface in (ALL_INTERFACES, LOOPBACK, *TUNNELS) or interface.startswith(self.felix.interface_prefixes)


def node_hosts(
    hosts: Mapping[ResourceKey, HostRecord], name: str, record: Node | None, felix: FelixSettings
) -> NodeHosts:
    """``hosts``: those of all nodes, sorted by name; ``record``: the Node of that name, if it is known."""
    own = {
        key: host
        for key, host in hosts.items()
        if host.node == name and not (host.interface and is_excluded(host.interface, felix.interface_exclude))
    }
    if record is None:
        return NodeHosts(own, felix)
    return NodeHosts(own, felix, tuple(main_addresses(record)), dict(devices_of_addresses(record)))


def _is_unnamed(host: HostRecord, addresses: tuple[Address, ...]) -> bool:
    return not host.interface and _expects(host, addresses)


def _expects(host: HostRecord, addresses: tuple[Address, ...]) -> bool:
    return not {address.packed for address in addresses}.isdisjoint(host.labelled.addresses)
