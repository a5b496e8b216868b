"""PURE: bird_ipam.cfg: what is announced to peers, what is accepted from them, and what goes into the kernel.

Rule: a route's priority travels as its local preference (LOCAL_PREF_TOP - priority); inside BIRD it is ``krt_metric``
from the import filter on, so that the kernel gets the metric that the announcing node had.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from cni_calico.model.resources import Address, IPPool, Network
from cni_calico.nodeagent.bgp.config.configuration import PrefixAdvertisement
from cni_calico.nodeagent.bgp.config.filters import (
    LOCAL_PREF_TOP,
    PREFERENCE_RAISED,
    render_community_add,
)
from cni_calico.nodeagent.bgp.config.lexical import render_block, render_set
from cni_calico.nodeagent.bgp.config.services import ServiceRoutes

TUNNEL_DEVICE = "tunl0"
_LOCAL_PREF_OURS = 1 << 30  # below this, a preference is an ordinary router's (100), not one of Calico's priorities


def render_communities(advertisements: Sequence[PrefixAdvertisement], version: int) -> list[str]:
    lines = [
        f"if (net ~ {item.cidr}) then {{ {' '.join(map(render_community_add, item.communities))} }}"
        for item in advertisements
        if item.cidr.version == version
    ]
    return render_block(f"function apply_communities_v{version}()", lines)


def render_priorities(version: int, normal: int) -> list[str]:
    """The functions that translate priorities of received and of announced routes."""
    received = [
        f"krt_metric = {normal};",
        f"if (bgp_local_pref >= {_LOCAL_PREF_OURS} && bgp_local_pref < {LOCAL_PREF_TOP}) then",
        f"  krt_metric = {LOCAL_PREF_TOP} - bgp_local_pref;",
        f"if (krt_metric < {normal}) then preference = {PREFERENCE_RAISED};",
    ]
    # BIRD reads 0 for a kernel route without a metric: an ordinary route, not the best of all
    announced = [
        f"if (!defined(krt_metric)) then krt_metric = {normal};",
        f"if (krt_metric = 0 || krt_metric >= {LOCAL_PREF_TOP - _LOCAL_PREF_OURS}) then krt_metric = {normal};",
        f"if (source != RTS_BGP) then bgp_local_pref = {LOCAL_PREF_TOP} - krt_metric;",
    ]
    return [
        *render_block(f"function calico_received_v{version}()", received),
        *render_block(f"function calico_announced_v{version}()", announced),
    ]


def render_export(pools: Sequence[IPPool], services: ServiceRoutes, version: int, *, reflector: bool) -> list[str]:
    """What is announced to peers; the functions called in it end the filter if they decide.

    Only a route reflector passes on other nodes' services: a node without an endpoint would attract traffic that
    kube-proxy then drops (externalTrafficPolicy Local).
    """
    ours = [pool for pool in pools if pool.cidr.version == version]
    hidden = [pool.cidr for pool in ours if pool.disable_bgp_export]
    shown = [pool.cidr for pool in ours if not pool.disable_bgp_export]
    lines = []
    if hidden:
        lines.append(f"if (net ~ {render_set(hidden, inside=True)}) then reject;  # disableBGPExport")
    # routes to other nodes that the agent has put into the kernel: those nodes announce them. A route without a gateway
    # has "::" in IPv4 too; 0.0.0.0 would be ::ffff:0:0
    lines.append("if (source = RTS_INHERIT && gw != ::) then reject;")
    lines.append(f'if (source = RTS_INHERIT && (ifname = "{TUNNEL_DEVICE}" || ifname ~ "*.calico")) then reject;')
    lines.append(f"apply_communities_v{version}();")
    lines.append(f"calico_aggr_v{version}();")
    if services.announced:
        lines.append(f"if (source = RTS_STATIC && net ~ {render_set(services.announced)}) then accept;")
    if services.ranges and reflector:
        lines.append(f"if (source = RTS_BGP && net ~ {render_set(services.ranges, inside=True)}) then accept;")
    if shown:
        lines.append(f"if (net ~ {render_set(shown, inside=True)}) then accept;")
    return render_block(f"function calico_export_to_bgp_peers_v{version}()", lines)


def _render_tunnel(pool: IPPool, own_network: Network | None) -> str:
    """The next hop through the tunnel; ``gw`` comes last, because setting it before ``onlink`` would reset
    the device.
    """
    hop = f'ifname = "{TUNNEL_DEVICE}"; onlink = true; gw = bgp_next_hop;'
    inside = f"if (net ~ {render_set([pool.cidr], inside=True)}) then "
    if pool.ipip_mode == "CrossSubnet" and own_network is not None:
        return f"{inside}{{ if !(bgp_next_hop ~ {own_network}) then {{ {hop} }} }}"
    return f"{inside}{{ {hop} }}"


@dataclass(frozen=True, slots=True)
class AgentRoutes:
    """The agent makes the routes to other nodes' blocks. ``neighbours``: the addresses of those in this node's subnet,
    which are all that it can reach without a tunnel.
    """

    neighbours: tuple[Address, ...]

    def render(self, pools: Sequence[IPPool], ipip: Sequence[IPPool]) -> list[str]:
        """What BIRD leaves to the agent, of pools without VXLAN."""
        if not pools:
            return []
        ours = render_set([pool.cidr for pool in pools], inside=True)
        lines = [f"if (source = RTS_STATIC && net ~ {ours}) then reject;  # the agent's, as what follows"]
        if ipip:
            tunnelled = render_set([pool.cidr for pool in ipip], inside=True)
            lines.append(f"if (source = RTS_BGP && net ~ {tunnelled}) then reject;")
        if self.neighbours:
            hops = f"[ {', '.join(map(str, self.neighbours))} ]"
            lines.append(f"if (source = RTS_BGP && net ~ {ours} && bgp_next_hop ~ {hops}) then reject;")
        return lines


def render_kernel_filter(
    pools: Sequence[IPPool],
    services: ServiceRoutes,
    own_network: Network | None,
    version: int,
    normal: int,
    agent: AgentRoutes | None = None,
) -> list[str]:
    """What BIRD puts into the kernel's table: no route that is there anyway, and none that belongs to kube-proxy or the
    agent.
    """
    ours = [pool for pool in pools if pool.cidr.version == version]
    vxlan = [pool.cidr for pool in ours if pool.vxlan_mode != "Never"]
    ipip = [pool for pool in ours if pool.ipip_mode != "Never" and isinstance(pool.cidr, IPv4Network)]
    lines = ["if (source = RTS_DEVICE) then reject;"]
    if services.ranges:
        lines.append(f"if (net ~ {render_set(services.ranges, inside=True)}) then reject;  # kube-proxy's")
    if vxlan:
        lines.append(f"if (net ~ {render_set(vxlan, inside=True)}) then reject;  # VXLAN: the agent's")
    if agent is not None:
        lines += agent.render([pool for pool in ours if pool.vxlan_mode == "Never"], ipip)
    # in IPv4 BIRD replaces a route only by one of the same metric: a block that changes its owner must keep it, or the
    # old blackhole stays beside the new route and wins
    lines.append(f"if (source = RTS_STATIC) then krt_metric = {normal};")
    bgp = [f"if (!defined(krt_metric)) then krt_metric = {normal};"]
    bgp += [_render_tunnel(pool, own_network) for pool in ipip]
    lines += render_block("if (source = RTS_BGP) then", bgp)
    lines.append("accept;")
    return render_block(f"filter calico_kernel_programming_v{version}", lines)
