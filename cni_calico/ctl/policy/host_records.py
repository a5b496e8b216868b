"""Host endpoints as they are stored: which are valid, which name the same interface, and the ends that addresses and
names mean.

Rule: nothing about ways is known here (hosts.py), so a list of what is stored loads little.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from cni_calico.ctl.addresses import addresses_of_node
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.session import CommandFailed
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Address
from cni_calico.policy.hosts import ALL_INTERFACES, HostRecord
from cni_calico.policy.nodes import HOSTS

HOST_PREFIX = "hostendpoint:"  # a text that begins with this names a host endpoint instead of a workload


@dataclass(frozen=True, slots=True)
class TrafficEnd:
    """One end of the connection; ``key`` is None for an address that no workload has. ``node`` is the end's node, ""
    for an address outside; a host has a node and no key.
    """

    shown: str
    addresses: tuple[Address, ...]
    key: ResourceKey | None = None
    node: str = ""

    @property
    def is_host(self) -> bool:
        return bool(self.node) and self.key is None


class HostRecords(dict[ResourceKey, HostRecord]):
    """Sorted by name."""

    def __init__(self, found: Mapping[ResourceKey, HostRecord]) -> None:
        super().__init__(found)
        self._first: dict[tuple[str, str], ResourceKey] = {}
        for key, host in self.items():
            self._first.setdefault((host.node, host.interface), key)

    def first_on(self, node: str, interface: str) -> ResourceKey | None:
        """The first of those that name an interface of a node."""
        return self._first.get((node, interface))


def host_records(records: PolicyRecords) -> HostRecords:
    """The valid host endpoints."""
    found = {}
    for key in sorted((key for key in records.records if key.kind == HOSTS), key=lambda key: key.name):
        try:
            found[key] = records.host(key)
        except ValueError:
            continue  # the graph reports why it is not valid
    return HostRecords(found)


def host_at(records: PolicyRecords, address: Address) -> TrafficEnd | None:
    """The host that has an address according to its Node or, if none has it, to its host endpoints."""
    nodes = (name for name, node in records.nodes.items() if address in addresses_of_node(node))
    hosts = (host.node for host in host_records(records).values() if address.packed in host.labelled.addresses)
    node = next(chain(nodes, hosts), "")
    return TrafficEnd(f"host {node}", (address,), None, node) if node else None


def overruled_by(hosts: HostRecords, key: ResourceKey) -> ResourceKey | None:
    """The host endpoint that names the same interface of the same node and comes first."""
    own = hosts[key]
    first = hosts.first_on(own.node, own.interface) if own.interface else key
    return None if first == key else first


def everywhere_on(hosts: HostRecords, node: str) -> ResourceKey | None:
    """The host endpoint of a node's interfaces that have none of their own."""
    return hosts.first_on(node, ALL_INTERFACES)


def named_host(records: PolicyRecords, name: str) -> tuple[ResourceKey, HostRecord]:
    """The HostEndpoint of a name. Raises CommandFailed if there is none or it is not valid."""
    key = ResourceKey(HOSTS, name)
    try:
        return key, records.host(key)
    except KeyError:
        raise CommandFailed(f"there is no HostEndpoint {name}") from None
    except ValueError as e:
        raise CommandFailed(f"HostEndpoint {name} is not valid: {e}") from e
