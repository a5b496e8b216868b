"""PURE: the picture of a cluster as text for a terminal.

Rule: a small cluster fits on one screen; of a large one only the fullest nodes are listed, and the others are counted.
"""

from __future__ import annotations

from cni_calico.ctl.output.looks import PlainLook
from cni_calico.ctl.picture.facts import Picture, PicturedPool

_BAR = 10
_MOST = 40  # nodes or sessions that are listed


def render_text(picture: Picture, look: PlainLook) -> str:
    lines = [f"Version: {picture.version}   Type: {picture.type}" + ("   LOCKED" if picture.locked else ""), ""]
    pools = [_pool(pool) for pool in picture.pools]
    lines.append(look.columns(("POOL", "CIDR", "IN USE", "", "BLOCKS", "PACKETS GO"), pools))
    nodes = sorted(picture.nodes, key=lambda node: (-node.used, node.name))
    shown = sorted(nodes[:_MOST], key=lambda node: node.name)
    rows = [
        [
            node.name,
            ",".join(node.addresses) or "-",
            ",".join(f"{what} {address}" for what, address in node.tunnels.items()) or "-",
            str(node.blocks),
            str(node.used),
        ]
        for node in shown
    ]
    lines.append(look.columns(("NODE", "ADDRESS", "TUNNELS", "BLOCKS", "IN USE"), rows).rstrip("\n"))
    lines += [f"and {len(nodes) - _MOST} nodes with fewer addresses", ""] if len(nodes) > _MOST else [""]
    lines += _sessions(picture, look)
    lines += [f"Problem: {problem}" for problem in picture.problems]
    lines += [f"Block without a pool: {block.cidr} of {block.node or 'nobody'}" for block in picture.strays]
    return "\n".join(lines).rstrip("\n") + "\n"


def _pool(pool: PicturedPool) -> list[str]:
    filled = min(_BAR, -(-pool.used * _BAR // pool.total))  # a single address is already visible
    bar = "#" * filled + "." * (_BAR - filled)
    known = {"masqueraded": pool.nat, "disabled": pool.disabled}
    how = ", ".join([pool.transport, *(word for word, applies in known.items() if applies)])
    share = "<1%" if 0 < pool.share < 0.01 else f"{pool.share:.0%}"
    return [pool.name, pool.cidr, f"{pool.used} ({share})", bar, str(len(pool.blocks)), how]


def _sessions(picture: Picture, look: PlainLook) -> list[str]:
    if not picture.has_bgp:
        return [f"BGP: off ({picture.bgp_by})"]
    members = sum(node.in_mesh for node in picture.nodes)
    mesh = f"full mesh of {members} nodes, {picture.mesh_sessions} sessions" if members > 1 else "no mesh"
    lines = [f"BGP: {mesh}; {len(picture.sessions)} sessions by BGPPeers"]
    rows = [[s.node, s.other, str(s.as_number), s.source] for s in picture.sessions[:_MOST]]
    if rows:
        lines += ["", look.columns(("NODE", "PEER", "AS", "BGPPEER"), rows).rstrip("\n")]
    if len(picture.sessions) > _MOST:
        lines.append(f"and {len(picture.sessions) - _MOST} more")
    return lines
