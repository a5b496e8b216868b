"""PURE: bird_aggr.cfg: this node's blocks as blackhole routes, and the function that announces blocks instead of pods.

Rule: a confirmed block is announced as a whole; of this node's routes inside it, only those with a raised priority are
announced too (a pod that has just moved here). A block that is being claimed or released keeps its blackhole and is not
announced: its pods, if any, are announced one by one, so that the loser of a claim attracts no traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cni_calico.model.resources import Address, Network
from cni_calico.nodeagent.bgp.config.lexical import render_block, render_set
from cni_calico.nodeagent.bgp.config.peers import Peer
from cni_calico.nodeagent.bgp.config.snapshot import LocalBlock


@dataclass(frozen=True, slots=True)
class StaticRoutes:
    """One family's static routes: ``blackholes``, and hosts reached ``via`` a gateway."""

    blackholes: tuple[Network, ...]
    via: tuple[tuple[Address, Address], ...]


def _is_host(network: Network) -> bool:
    return network.prefixlen == network.max_prefixlen


def desired_statics(
    blocks: Iterable[LocalBlock], services: Iterable[Network], peers: Iterable[Peer], version: int
) -> StaticRoutes:
    """The static routes. A block of one address gets no blackhole, which would hide the pod that has it."""
    holes = [block.cidr for block in blocks if block.cidr.version == version and not _is_host(block.cidr)]
    via = {
        (peer.address, peer.reachable_by)
        for peer in peers
        if peer.reachable_by is not None and peer.address.version == version
    }
    return StaticRoutes(tuple(dict.fromkeys([*holes, *services])), tuple(sorted(via, key=str)))


def render_statics(routes: StaticRoutes, version: int) -> list[str]:
    lines = [f"ipv{version};"]
    lines += [f"route {network} blackhole;" for network in routes.blackholes]
    lines += [f"route {host}/{host.max_prefixlen} via {gateway};" for host, gateway in routes.via]
    return render_block(f"protocol static static_v{version}", lines)


def render_aggregation(blocks: Sequence[LocalBlock], version: int, normal_priority: int) -> list[str]:
    """The function that accepts blocks and rejects what is inside them; other routes fall through.

    Routes of other nodes fall through too: an address of ours that another node has borrowed is announced only by that
    node, and a route reflector must pass this on.
    """
    confirmed = [block.cidr for block in blocks if block.confirmed and block.cidr.version == version]
    unsettled = [block.cidr for block in blocks if not block.confirmed and block.cidr.version == version]
    lines = []
    if confirmed:
        lines.append(f"if (net ~ {render_set(confirmed)}) then accept;")
        lines.append(f"if (source != RTS_BGP && net ~ {render_set(confirmed, inside=True)}) then {{")
        lines.append(f"  if (krt_metric < {normal_priority}) then accept;")
        lines.append("  reject;")
        lines.append("}")
    if unsettled:
        lines.append(f"if (source = RTS_STATIC && net ~ {render_set(unsettled)}) then reject;")
    return render_block(f"function calico_aggr_v{version}()", lines)
