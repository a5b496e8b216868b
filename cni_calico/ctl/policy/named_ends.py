"""The ends of a connection as users name them: a workload, a host endpoint, an address, a published port.

Rule: a name that fits several workloads is refused, with what tells them apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

from cni_calico.ctl.addresses import addresses_of_node
from cni_calico.ctl.input.manifests import DEFAULT_NAMESPACE
from cni_calico.ctl.policy.host_records import HOST_PREFIX, TrafficEnd, host_at, named_host
from cni_calico.ctl.policy.records import PolicyRecords, workload_name
from cni_calico.ctl.session import CommandFailed
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import describe
from cni_calico.model.identity import LIBNETWORK, container_name
from cni_calico.model.keys import ResourceKey
from cni_calico.model.names import runtimes_id, short_id
from cni_calico.model.resources import WorkloadEndpoint

_SAME_NAME, _SHORT_ID = 5, 12  # containers that a message names; digits of an ID that runtimes show
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True)
class HostPort:
    """``host``: an address, or the name of a node."""

    host: str
    port: int


def parse_host_port(text: str) -> HostPort | None:
    """None for what is no HOST:PORT: a workload, an address, a host endpoint. Raises InvalidConfig."""
    if text.startswith(HOST_PREFIX):
        return None
    host, colon, number = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif not colon or ":" in host or "/" in host:
        return None
    if not (host and number.isascii() and number.isdecimal() and 0 < int(number[:6]) <= _PORT_MAX):
        raise InvalidConfig(
            f"cannot explain: {text!r} is neither a workload nor HOST:PORT",
            details="write 192.0.2.1:8080, [2001:db8::1]:8080, or NODE:8080 for a published port",
        )
    return HostPort(host, int(number))


def find_end(records: PolicyRecords, text: str, namespace: str) -> TrafficEnd:
    """One end of the connection. ``text`` is POD, NAMESPACE/POD, the name of a WorkloadEndpoint, or an address."""
    try:
        address = ip_address(text)
    except ValueError:
        return _named_end(records, text, namespace)
    for key, record in records.endpoints.items():
        if any(address in net for net in records.counting(key)):
            return TrafficEnd(_endpoint_name(key, record), (address,), key, record.node)
    return host_at(records, address) or TrafficEnd("an address outside", (address,))


def _named_end(records: PolicyRecords, text: str, namespace: str) -> TrafficEnd:
    if text.startswith(HOST_PREFIX):
        return _host_end(records, text.removeprefix(HOST_PREFIX))
    space, slash, name = text.rpartition("/")
    wanted = space if slash else namespace or DEFAULT_NAMESPACE
    named = _named_in(records, wanted, name)
    if not named and not slash and not namespace:  # Docker has no namespaces: nobody there would say one
        named = _named_in(records, LIBNETWORK, name)
        wanted = LIBNETWORK if named else wanted
    if not named:
        raise CommandFailed(f"cannot explain: there is no workload {wanted}/{name}")
    named.sort(key=lambda item: item[0].name)
    if len({record.container_id for _, record in named}) > 1 and not any(record.pod for _, record in named):
        which = "; ".join(f"{_shown_id(key, record)} on {record.node}" for key, record in named[:_SAME_NAME])
        raise CommandFailed(f"cannot explain: several containers are called {wanted}/{name}; name one of {which}")
    key, record = named[0]
    addresses = tuple(net.network_address for net in record.ip_networks)
    if not addresses:
        raise CommandFailed(f"cannot explain: {wanted}/{name} has no address (any more)")
    return TrafficEnd(_endpoint_name(key, record), addresses, key, record.node)


def _shown_id(key: ResourceKey, record: WorkloadEndpoint) -> str:
    """What tells a container from others of its name: the ID as runtimes show it."""
    return short_id(record.container_id) if runtimes_id(record.container_id) else key.name


def _named_in(records: PolicyRecords, namespace: str, name: str) -> list[tuple[ResourceKey, WorkloadEndpoint]]:
    there = ((key, record) for key, record in records.endpoints.items() if key.namespace == namespace)
    return [(key, record) for key, record in there if _is_called(key, record, name)]


def _is_called(key: ResourceKey, record: WorkloadEndpoint, name: str) -> bool:
    """Whether somebody may mean the workload by this name; runtimes show the first twelve digits of an ID."""
    own_id = runtimes_id(record.container_id) or record.container_id
    if name and name in (record.pod, record.container_id, own_id, key.name, container_name(record)):
        return True
    is_short = len(name) >= _SHORT_ID and not record.pod and own_id.startswith(name)
    return is_short or (bool(name) and name == record.workload and not container_name(record))


def _host_end(records: PolicyRecords, name: str) -> TrafficEnd:
    key, host = named_host(records, name)
    node = records.nodes.get(host.node)
    addresses = tuple(map(ip_address, host.labelled.addresses)) or (addresses_of_node(node) if node else ())
    if not addresses:
        raise CommandFailed(
            f"cannot explain: {describe(key)} has no expectedIPs and its Node no address, so its address is not known"
        )
    return TrafficEnd(f"host {host.node}", addresses, None, host.node)


def _endpoint_name(key: ResourceKey, record: WorkloadEndpoint) -> str:
    return f"{key.namespace}/{workload_name(key, record)}"
