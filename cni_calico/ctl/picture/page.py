"""PURE: the picture of a cluster as one HTML page.

Rule: the page refers to nothing outside itself, and every text of the cluster is escaped. It is light or dark as the
reader's system is.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from cni_calico.ctl.picture.assets import SCRIPT, STYLE
from cni_calico.ctl.picture.colours import hues_of
from cni_calico.ctl.picture.diagram import render_diagram
from cni_calico.ctl.picture.facts import Picture, PicturedBlock, PicturedNode, PicturedPool

_FILTERED = 12  # with more nodes the table gets a field to search in


def render_page(picture: Picture, made: str) -> str:
    """``made`` is the time, in words."""
    hues = hues_of(picture)
    body = "\n".join(
        [
            f"<header><h1>Calico's network</h1><p class=soft>{_subtitle(picture)}</p></header>",
            _warnings(picture),
            _cards(picture),
            f"<section><h2>How routes spread</h2>{_routing(picture)}{render_diagram(picture, hues)}</section>",
            f"<section><h2>Pools and their blocks</h2>{_pools(picture, hues)}</section>",
            f"<section><h2>Nodes</h2>{_nodes(picture, hues)}</section>",
            f"<footer>Made by calicoctl from the stored records, {escape(made)}. Whether sessions are up: calicoctl "
            "node status on the node.</footer>",
        ]
    )
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Calico's network</title><style>{STYLE}</style></head>\n"
        f"<body><main>\n{body}\n</main><script>{SCRIPT}</script></body></html>\n"
    )


def _subtitle(picture: Picture) -> str:
    return f"data of version {escape(picture.version)} · {escape(picture.type)}"


def _warnings(picture: Picture) -> str:
    found = ["The datastore is locked: nothing is added or removed."] if picture.locked else []
    found += picture.problems
    if not found:
        return ""
    lines = "".join(f"<div class=bad>{escape(text)}</div>" for text in found)
    return f"<section class=warning>{lines}</section>"


def _cards(picture: Picture) -> str:
    used, total = sum(pool.used for pool in picture.pools), sum(len(pool.blocks) for pool in picture.pools)
    tunnels = sum(len(node.tunnels) for node in picture.nodes)
    sessions = picture.mesh_sessions + len(picture.sessions)
    cards = [
        (len(picture.nodes), "nodes"),
        (len(picture.pools), "pools"),
        (total + len(picture.strays), "blocks"),
        (used, "addresses in use"),
        (tunnels, "tunnel addresses"),
        (sessions if picture.has_bgp else "off", "BGP sessions"),
    ]
    shown = "".join(
        f"<div><b>{number if isinstance(number, str) else f'{number:,}'}</b><span class=soft>{what}</span></div>"
        for number, what in cards
    )
    return f"<div class=cards>{shown}</div>"


def _routing(picture: Picture) -> str:
    members = sum(node.in_mesh for node in picture.nodes)
    parts = []
    if members > 1:
        parts.append(f"{members:,} nodes are in a full mesh, with {picture.mesh_sessions:,} sessions")
    if picture.sessions:
        parts.append(f"{len(picture.sessions):,} sessions come from BGPPeers (drawn as lines in colour)")
    if not picture.has_bgp:
        parts.append(f"there is no BGP ({escape(picture.bgp_by)}): nodes read each other's blocks from the datastore")
    text = "; ".join(parts) or "no session with another node or router is configured"
    return f"<p class=soft>{text[0].upper()}{text[1:]}.</p>"


# -- pools ------------------------------------------------------------------------------------------------------------


def _pools(picture: Picture, hues: dict[str, int]) -> str:
    shown = "".join(_pool(pool, hues) for pool in picture.pools)
    if picture.strays:
        shown += f"<div class=pool><h3 class=bad>Blocks in no pool</h3>{_squares(picture.strays, hues)}</div>"
    hint = "<p class=soft>Each square is a block, in the colour of its node; the fuller, the stronger.</p>"
    return hint + shown if shown else "<p class=soft>There is no pool.</p>"


def _pool(pool: PicturedPool, hues: dict[str, int]) -> str:
    known = {"masquerades": pool.nat, "not used for new addresses": pool.disabled}
    tags = [pool.transport, *(tag for tag, applies in known.items() if applies)]
    full = " full" if pool.share >= 0.9 else ""
    return (
        f"<div class=pool><div class=row><h3>{escape(pool.name)}</h3><span class=mono>{escape(pool.cidr)}</span>"
        + "".join(f"<span class=tag>{escape(tag)}</span>" for tag in tags)
        + f'</div><div class="bar{full}"><i style="width:{_width(pool):.2f}%"></i></div>'
        f"<span class=soft>{pool.used:,} of {_large(pool.total)} addresses ({_percent(pool.share)}), "
        f"{len(pool.blocks):,} blocks</span>{_squares(pool.blocks, hues)}</div>"
    )


def _squares(blocks: Sequence[PicturedBlock], hues: dict[str, int]) -> str:
    return f"<div class=blocks>{''.join(_square(block, hues) for block in blocks)}</div>" if blocks else ""


def _square(block: PicturedBlock, hues: dict[str, int]) -> str:
    said = f"{block.cidr}, {block.node or 'no node'}: {block.used} of {block.total}"
    if block.node not in hues:
        return f'<i class=free title="{escape(said)}"></i>'
    strength = 0.12 + 0.88 * block.used / block.total
    return f'<i style="--h:{hues[block.node]};--o:{strength:.2f}" title="{escape(said)}"></i>'


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.01 or not share else "under 1%"


def _width(pool: PicturedPool) -> float:
    """In percent; a single address is already visible."""
    return max(0.4, 100 * min(pool.share, 1)) if pool.used else 0


def _large(number: int) -> str:
    """The size of a pool, which is a power of two."""
    return f"{number:,}" if number < 10**12 else f"2<sup>{number.bit_length() - 1}</sup>"


# -- nodes ------------------------------------------------------------------------------------------------------------


def _nodes(picture: Picture, hues: dict[str, int]) -> str:
    if not picture.nodes:
        return "<p class=soft>There is no node.</p>"
    search = '<input type="search" placeholder="Search nodes" aria-label="Search nodes">'
    heads = "".join(f"<th>{text}</th>" for text in ("Node", "Addresses", "Tunnels"))
    heads += "".join(f"<th class=n>{text}</th>" for text in ("AS", "Blocks", "In use"))
    rows = "".join(_row(node, hues) for node in picture.nodes)
    table = f"<div class=scroll><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
    return (search if len(picture.nodes) > _FILTERED else "") + table


def _row(node: PicturedNode, hues: dict[str, int]) -> str:
    reflector = " <span class=tag>route reflector</span>" if node.reflects else ""
    tunnels = "<br>".join(f"{escape(what)} {escape(address)}" for what, address in node.tunnels.items())
    return (
        f'<tr><td><span class=dot style="--h:{hues[node.name]}"></span>{escape(node.name)}{reflector}</td>'
        f"<td class=mono>{'<br>'.join(map(escape, node.addresses)) or '–'}</td><td class=mono>{tunnels or '–'}</td>"
        f"<td class=n>{node.as_number or '–'}</td><td class=n>{node.blocks:,}</td><td class=n>{node.used:,}</td></tr>"
    )
