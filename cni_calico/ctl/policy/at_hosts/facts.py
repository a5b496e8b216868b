"""What is known of hosts before flows are judged at them: their host endpoints, addresses, parameters, tunnels.

Rule: everything is read once. What files cannot say (addresses of nodes, their pools) is unknown, and not guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cni_calico.ctl.addresses import addresses_of_node
from cni_calico.ctl.ipam.records import read_pools
from cni_calico.ctl.policy.host_records import host_records
from cni_calico.ctl.policy.hosts import read_views, tunnel_within
from cni_calico.ctl.policy.interfaces import NodeHosts, node_hosts
from cni_calico.ctl.policy.records import PolicyRecords
from cni_calico.ctl.session import Session
from cni_calico.model.resources import Address, IPPool
from cni_calico.nodeagent.context.felix import parse_felix
from cni_calico.policy.wanted import Packed


@dataclass(frozen=True, slots=True)
class KnownHosts:
    """``views``: by node, where there are host endpoints. ``at``: which node has an address, "" if several say so.
    ``known``: the nodes whose addresses are known, from the Node or from what its host endpoints expect. ``pools``:
    None if nobody knows them.
    """

    views: Mapping[str, NodeHosts]
    at: Mapping[Packed, str] = field(default_factory=dict)
    known: frozenset[str] = frozenset()
    pools: tuple[IPPool, ...] | None = None

    def tunnel_to(self, address: Address) -> str | None:
        """The interface by which another node's packets come to a workload; "": that of the nodes' own network; None:
        it is not known, or not the same for all nodes.
        """
        return None if self.pools is None else tunnel_within(self.pools, address)


def read_host_facts(session: Session | None, records: PolicyRecords, uncertain: list[str]) -> KnownHosts | None:
    """None if there are no host endpoints. ``session``: None if all that is known comes from files."""
    hosts = host_records(records)
    nodes = {host.node for host in hosts.values()}
    if not hosts:
        return None
    known = set(records.nodes)
    known.update(host.node for host in hosts.values() if host.labelled.addresses)
    at: dict[Packed, str] = {}
    having = [(one.packed, name) for name, node in records.nodes.items() for one in addresses_of_node(node)]
    having += [(address, host.node) for host in hosts.values() for address in host.labelled.addresses]
    for address, node in having:
        at[address] = node if at.get(address, node) == node else ""
    if session is None:
        felix = parse_felix({}).settings
        return KnownHosts({name: node_hosts(hosts, name, None, felix) for name in nodes}, at, frozenset(known))
    corrupt: list[tuple[str, str]] = []
    pools: Iterable[IPPool] = read_pools(session, corrupt)
    uncertain += [f"{name}: {why}" for name, why in corrupt]
    return KnownHosts(read_views(session, records, nodes), at, frozenset(known), tuple(pools))
