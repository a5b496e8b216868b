"""PURE: BGP sessions as BIRD protocols: a template per family and one protocol per peer.

Rule: what is specific to a peer is in its own protocol, what all have in common is in the template.
"""

from __future__ import annotations

from cni_calico.model.resources import Address, Interface
from cni_calico.nodeagent.bgp.config.filters import BgpFilter, filter_symbol
from cni_calico.nodeagent.bgp.config.fragments import PEERS, Fragments, peer_file
from cni_calico.nodeagent.bgp.config.lexical import render_block, render_name, render_text
from cni_calico.nodeagent.bgp.config.peers import Peer

_DEBUG = {"debug": "debug all;", "info": "debug { states };"}


def render_debug(severity: str) -> list[str]:
    return [_DEBUG[severity]] if severity in _DEBUG else []


def _render_filter_body(direction: str, version: int, filters: list[str], fragments: Fragments) -> list[str]:
    first = fragments.lines(f"{direction}{version}.conf")
    if direction == "import":
        return [*first, f"calico_received_v{version}();", *filters, "accept;"]
    return [*first, f"calico_announced_v{version}();", *filters, f"calico_export_to_bgp_peers_v{version}();", "reject;"]


def render_template(version: int, severity: str, fragments: Fragments) -> list[str]:
    """The filters of sessions without BGPFilters, and the template of all sessions of a family."""
    out = []
    for direction in ("import", "export"):
        out += render_block(
            f"filter calico_{direction}_v{version}", _render_filter_body(direction, version, [], fragments)
        )
    channel = [
        "gateway recursive;",
        "add paths on;",
        f"import filter calico_import_v{version};",
        f"export filter calico_export_v{version};",
    ]
    lines = [
        *render_debug(severity),
        "graceful restart on;",
        "connect delay time 1;",
        "connect retry time 5;",
        "error wait time 5, 30;",
        *_close(render_block(f"ipv{version}", channel)),
    ]
    return out + render_block(f"template bgp calico_v{version}", lines)


def _close(block: list[str]) -> list[str]:
    """A block, with the semicolon that BIRD wants after it."""
    return [*block[:-1], block[-1] + ";"]


def _render_channel(peer: Peer, fragments: Fragments) -> list[str]:
    version = peer.address.version
    lines = []
    if peer.next_hop:
        lines.append(f"next hop {peer.next_hop};")
    for direction in ("import", "export"):
        used = [value for value in peer.filters if value.has(direction, version)]
        if used:
            calls = [_render_call(value, direction, version, peer) for value in used]
            lines += _close(
                render_block(f"{direction} filter", _render_filter_body(direction, version, calls, fragments))
            )
    return _close(render_block(f"ipv{version}", lines)) if lines else []


def _render_call(value: BgpFilter, direction: str, version: int, peer: Peer) -> str:
    return f"{filter_symbol(value.name, direction, version)}({'true' if peer.internal else 'false'});"


def _render_local(peer: Peer, own: Address, listen_port: int, bind: bool) -> list[str]:
    """Our end; a bound listener needs the address, even if the peer asks for no source address."""
    source = own if bind else peer.source
    words = ["local"]
    if source is not None:
        words.append(str(source))
    if listen_port:
        words.append(f"port {listen_port}")
    out = [" ".join([*words, f"as {peer.local_as};"])]
    return [*out, "strict bind on;"] if bind else out


def is_near(peer: Peer, own: Interface) -> bool:
    """Whether a session is one with a neighbour on the own network: routers speak BFD over one hop to those."""
    return peer.bfd and not peer.ttl_hops and peer.address in own.network


def render_peer(
    peer: Peer, own: Interface, *, listen_port: int, bind: bool, cluster_id: str, fragments: Fragments
) -> list[str]:
    """A peer's protocol; ``own`` is this node's address in the peer's family, ``cluster_id`` "" means
    BIRD's default.
    """
    port = f" port {peer.port}" if peer.port else ""
    lines = [f"description {render_text(render_name(peer.origin))};"]
    lines += _render_local(peer, own.ip, listen_port, bind)
    lines.append(f"neighbor {peer.address}{port} as {peer.as_number};")
    far = ["ttl security on;", f"multihop {peer.ttl_hops};"] if peer.ttl_hops else ["multihop;"]
    lines += ["direct;"] if is_near(peer, own) else far
    if peer.bfd:
        lines.append("bfd on;")
    if peer.passive:
        lines.append("passive on;  # the other end connects")
    if peer.restart_time_s is not None:
        lines.append(f"graceful restart time {peer.restart_time_s};")
    if peer.keepalive_s is not None:
        lines.append(f"keepalive time {peer.keepalive_s};")
    if peer.client:
        lines.append("rr client;")
        lines += [f"rr cluster id {cluster_id};"] if cluster_id else []
    if peer.allow_local_as:
        lines.append(f"allow local as {peer.allow_local_as};")
    if peer.password:
        lines.append(f"password {render_text(peer.password)};")
    lines += _render_channel(peer, fragments)
    lines += fragments.lines(PEERS, *([peer_file(peer.bgp_peer)] if peer.bgp_peer else []))
    return render_block(f"protocol bgp {peer.name} from calico_v{peer.address.version}", lines)
