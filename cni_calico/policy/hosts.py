"""PURE: host endpoints: as peers in rules, and this node's own, with the policies that apply to them. Rule: which
interface a host endpoint gets is not decided here, because that depends on the host's interfaces. As for a workload,
labels and profiles decide which policies apply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cni_calico.model.documents.fields import Wrong, parse_list, parse_object, parse_text
from cni_calico.model.documents.fields import parse_texts as parse_text_list
from cni_calico.model.keys import ResourceKey
from cni_calico.model.names import valid_host_ifname
from cni_calico.model.qos import DSCP, PREFIX, read_dscp
from cni_calico.model.resources import Resource
from cni_calico.policy.active import HOSTS, ActivePolicies
from cni_calico.policy.packed_nets import parse_packed_nets
from cni_calico.policy.records import Labelled, named_port
from cni_calico.policy.wanted import WantedHost

ALL_INTERFACES = "*"
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class HostRecord:
    """``labelled``: labels and expected addresses, for selectors. ``interface``: a name, "*" or "". ``dscp``: what the
    annotation says, in upstream the only one of a host endpoint's; None: nothing. ``not_dscp``: what it says instead.
    """

    node: str
    interface: str
    labelled: Labelled
    dscp: int | None = None
    not_dscp: str = ""


def parse_host(resource: Resource) -> HostRecord:
    """Raises Wrong, also for a record that no interface of any node could have."""
    spec = resource.spec
    node = parse_text(spec.get("node") or "", "spec.node")
    if not node:
        raise Wrong("spec.node", "the name of a node", spec.get("node"))
    interface = parse_text(spec.get("interfaceName") or "", "spec.interfaceName")
    if interface not in ("", ALL_INTERFACES) and not valid_host_ifname(interface):
        raise Wrong("spec.interfaceName", "the name of an interface, of letters, digits, '.', '_' and '-'", interface)
    addresses, nets = parse_packed_nets(spec.get("expectedIPs"), "spec.expectedIPs")
    if nets:
        raise Wrong("spec.expectedIPs", "addresses, not networks", spec["expectedIPs"])
    if not interface and not addresses:
        raise Wrong("spec.interfaceName", "an interface, or expectedIPs", interface)
    ports = []
    for i, raw in enumerate(parse_list(spec.get("ports") or (), "spec.ports")):
        at = f"spec.ports[{i}]"
        item = parse_object(raw, at)
        number = item.get("port")
        if type(number) is not int:
            raise Wrong(f"{at}.port", "a number", number)
        found = named_port(parse_text(item.get("name") or "", f"{at}.name"), str(item.get("protocol") or "TCP"), number)
        if found is not None:
            ports.append(found)
    profiles = parse_text_list(spec.get("profiles") or (), "spec.profiles")
    labelled = Labelled(frozenset(resource.metadata.labels.items()), profiles, addresses, ports=tuple(ports))
    asked = resource.metadata.annotations.get(PREFIX + DSCP)
    dscp = read_dscp(asked)
    return HostRecord(
        node, interface, labelled, dscp, "" if dscp is not None or asked is None else repr(asked)[:_SHOWN]
    )


class LocalHosts:
    """Passes this node's host endpoints to ``active``."""

    def __init__(self, active: ActivePolicies) -> None:
        self._active = active
        self._records: dict[ResourceKey, HostRecord] = {}
        self.changed: set[ResourceKey] = set()  # since the last flush

    def put(self, key: ResourceKey, record: HostRecord | None) -> None:
        """None means that there is no such endpoint."""
        if record is None and key not in self._records:
            return
        self.changed.add(key)
        if record is None:
            del self._records[key]
            self._active.remove_endpoint(key)
        else:
            self._records[key] = record
            self._active.set_endpoint(key, record.labelled.labels, record.labelled.profiles, HOSTS)

    def record(self, key: ResourceKey) -> HostRecord | None:
        return self._records.get(key)

    def keys(self) -> Iterable[ResourceKey]:
        """Of all that were put."""
        return self._records.keys()

    def profiles(self) -> set[str]:
        """The profiles that any of them names."""
        return {name for record in self._records.values() for name in record.labelled.profiles}

    def render(self, key: ResourceKey) -> WantedHost | None:
        """Call it right after ``active`` was flushed."""
        record = self._records.get(key)
        if record is None:
            return None
        class_id, said = self._active.class_of(key), (record.dscp, record.not_dscp)
        return WantedHost(key, record.interface, class_id, record.labelled.addresses, *said)
