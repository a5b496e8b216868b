"""PURE: the cluster's BGP records that concern this node, parsed once.

Rule: a record that cannot be understood is left out here and reported in the problems; parsing never fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cni_calico.model.resources import Resource
from cni_calico.nodeagent.bgp.config.configuration import (
    NODE_PREFIX,
    BgpConfiguration,
    merge_configuration,
    parse_configuration,
)
from cni_calico.nodeagent.bgp.config.filters import BgpFilter, parse_filter
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.peerspec import PeerSpec, parse_peer_spec
from cni_calico.nodeagent.bgp.config.values import SecretRef


@dataclass(frozen=True, slots=True)
class BgpRecords:
    """``configuration`` is this node's (its own resource merged in); ``filters`` maps a wrong filter to None.

    ``listen_ports`` are those that nodes set for themselves. ``secrets`` are needed by the records in here.
    """

    configuration: BgpConfiguration = field(default_factory=BgpConfiguration)
    global_listen_port: int = 0
    listen_ports: Mapping[str, int] = field(default_factory=dict)
    peers: tuple[PeerSpec, ...] = ()
    filters: Mapping[str, BgpFilter | None] = field(default_factory=dict)
    secrets: tuple[SecretRef, ...] = ()
    problems: tuple[BgpProblem, ...] = ()

    @property
    def announces_services(self) -> bool:
        c = self.configuration
        return bool(c.service_cluster_cidrs or c.service_external_cidrs or c.service_load_balancer_cidrs)


def parse_records(
    node_name: str,
    configurations: Iterable[Resource] = (),
    peers: Iterable[Resource] = (),
    filters: Iterable[Resource] = (),
    unreadable_filters: Iterable[str] = (),
) -> BgpRecords:
    """The records of kinds BGPConfiguration, BGPPeer and BGPFilter, as node ``node_name`` needs them."""
    problems: list[BgpProblem] = []
    default, own = BgpConfiguration(), None
    ports: dict[str, int] = {}
    for resource in configurations:
        values, found = parse_configuration(resource)
        name = resource.metadata.name
        if name == "default":
            default = values
        elif name == f"{NODE_PREFIX}{node_name}":
            own = (values, resource.spec)
        if name in ("default", f"{NODE_PREFIX}{node_name}"):
            problems += found
        if name.startswith(NODE_PREFIX) and values.listen_port:
            ports[name[len(NODE_PREFIX) :]] = values.listen_port
    specs: list[PeerSpec] = []
    for resource in sorted(peers, key=lambda r: r.metadata.name):
        spec, found = parse_peer_spec(resource)
        problems += found
        specs += [spec] if spec is not None else []
    parsed: dict[str, BgpFilter | None] = dict.fromkeys(unreadable_filters)
    problems += [BgpProblem(f"BGPFilter {name}", "cannot be read") for name in parsed]
    for resource in filters:
        parsed[resource.metadata.name], found = parse_filter(resource)
        problems += found
    secrets = (default.mesh_password, *(spec.password for spec in specs))
    return BgpRecords(
        configuration=default if own is None else merge_configuration(default, *own),
        global_listen_port=default.listen_port,
        listen_ports=ports,
        peers=tuple(specs),
        filters=parsed,
        secrets=tuple(ref for ref in secrets if ref is not None),
        problems=tuple(problems),
    )
