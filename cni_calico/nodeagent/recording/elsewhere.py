"""What the recorder of flows is told about the rest of the cluster: other nodes' workloads, network sets, services.

Rule: only while that is wanted (FlowsNames); what is told is what the recorder's own files say (``flows.elsewhere``,
``flows.network_sets``, ``flows.services``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from cni_calico.datastore.interface import Datastore, Versioned
from cni_calico.datastore.kubernetes.layout import SERVICE
from cni_calico.errors import CorruptRecord
from cni_calico.flows.elsewhere import ELSEWHERE, EndElsewhere, render_end
from cni_calico.flows.network_sets import MOST_NETWORKS, NETWORK_SETS, NetworkSetLine, render_set
from cni_calico.flows.services import SERVICES, ServiceLine, ServicePort, render_service
from cni_calico.log import Log
from cni_calico.model.documents.codec import decode_endpoint, decode_resource
from cni_calico.model.documents.fields import Wrong
from cni_calico.model.keys import Key, ResourceKey, ResourceList
from cni_calico.model.resources import Address, WorkloadEndpoint
from cni_calico.nodeagent.recording.exporting import end_of
from cni_calico.nodeagent.recording.followed_lines import FollowedLines
from cni_calico.nodeagent.recording.keeper import name_of
from cni_calico.policy.records import labelled_network_set
from cni_calico.policy.rules import PROTOCOLS
from cni_calico.policy.sets import NETWORK_SETS as KINDS

_ENDS, _SETS, _SERVICES = "names of other nodes' workloads", "names of network sets", "names of services"
Teller = Callable[[str, str], object]


def end_elsewhere(endpoint: WorkloadEndpoint) -> EndElsewhere:
    _, exported = end_of(endpoint)
    addresses = tuple(net.network_address.packed for net in endpoint.ip_networks)
    return EndElsewhere(name_of(endpoint), exported.name, exported.labels, addresses)


def network_set_line(key: ResourceKey, item: Versioned) -> NetworkSetLine | None:
    """None for one that is too large to be known by name. Raises CorruptRecord."""
    try:
        found = labelled_network_set(key, decode_resource(key, item.value))
    except Wrong as e:
        raise CorruptRecord(str(e)) from e
    networks = [(address, 8 * len(address)) for address in found.addresses]
    networks += found.nets
    return None if len(networks) > MOST_NETWORKS else NetworkSetLine(dict(found.labels), tuple(networks))


def names_everywhere(
    store: Datastore, kubernetes: Datastore | None, node: str, run_dir: str, log: Log, tell: Teller = lambda *_: None
) -> tuple[FollowedLines, ...]:
    """``kubernetes``: where Kubernetes' own objects are; None: there are no services."""
    told = run_dir, log, tell
    found = ends_elsewhere(store, node, *told), network_sets(store, *told)
    return found if kubernetes is None else (*found, services(kubernetes, *told))


def ends_elsewhere(
    store: Datastore, node: str, run_dir: str, log: Log, tell: Teller = lambda *_: None
) -> FollowedLines:
    """Not ``node``'s own, which the recorder knows otherwise."""

    def line_of(item: Versioned) -> bytes | None:
        key = _resource(item.key)
        endpoint = decode_endpoint(key, item.value)
        return None if endpoint.node == node else render_end(_text(key), end_elsewhere(endpoint))

    lines = line_of, lambda key: render_end(_text(_resource(key)), None)
    listings = (ResourceList("WorkloadEndpoint"),)
    return FollowedLines(store, listings, lines, f"{run_dir}/{ELSEWHERE}", _ENDS, log, tell)


def network_sets(store: Datastore, run_dir: str, log: Log, tell: Teller = lambda *_: None) -> FollowedLines:
    def line_of(item: Versioned) -> bytes | None:
        key = _resource(item.key)
        found = network_set_line(key, item)
        return None if found is None else render_set((key.namespace, key.name), found)

    def gone(key: Key) -> bytes:
        return render_set((_resource(key).namespace, _resource(key).name), None)

    listings = tuple(map(ResourceList, KINDS))
    return FollowedLines(store, listings, (line_of, gone), f"{run_dir}/{NETWORK_SETS}", _SETS, log, tell)


def service_line(document: Mapping[str, Any]) -> ServiceLine:
    """What of it cannot be read is left out."""
    spec, status = _object(document.get("spec")), _object(_object(document.get("status")).get("loadBalancer"))
    given = [*_listed(spec.get("clusterIPs") or [spec.get("clusterIP")]), *_listed(spec.get("externalIPs"))]
    given += [_object(one).get("ip") for one in _listed(status.get("ingress"))]
    addresses = dict.fromkeys(address.packed for address in map(_address, given) if address is not None)
    return ServiceLine(tuple(addresses), tuple(filter(None, map(_service_port, _listed(spec.get("ports"))))))


def _service_port(found: Any) -> ServicePort | None:
    port = _object(found)
    name, number, target = port.get("name") or "", _port(port.get("port")), port.get("targetPort")
    protocol = PROTOCOLS.get(str(port.get("protocol") or "TCP").lower())
    if not isinstance(name, str) or not number or protocol is None:
        return None
    return ServicePort(name, protocol, number, _port(port.get("nodePort")), _port(target) if target else number)


def _port(found: Any) -> int:
    """0 for what is none."""
    return found if type(found) is int and 0 < found < 65536 else 0


def _object(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, Mapping) else {}


def _listed(found: Any) -> Sequence[Any]:
    return found if isinstance(found, list | tuple) else ()


def _address(text: Any) -> Address | None:
    try:
        return ip_address(text) if isinstance(text, str) else None
    except ValueError:
        return None


def service_text(item: Versioned) -> bytes | None:
    """The line of a service, None if it has no address."""
    found = service_line(item.value)
    return render_service(_path(item.key), found) if found.addresses else None


def services(store: Datastore, run_dir: str, log: Log, tell: Teller = lambda *_: None) -> FollowedLines:
    """``store``: of Kubernetes' objects."""
    lines = service_text, lambda key: render_service(_path(key), None)
    return FollowedLines(store, (ResourceList(SERVICE),), lines, f"{run_dir}/{SERVICES}", _SERVICES, log, tell)


def _path(key: Key) -> tuple[str, str]:
    return _resource(key).namespace, _resource(key).name


def _resource(key: Key) -> ResourceKey:
    assert isinstance(key, ResourceKey)
    return key


def _text(key: ResourceKey) -> str:
    return f"{key.namespace}/{key.name}"
