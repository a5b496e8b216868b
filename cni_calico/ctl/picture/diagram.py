"""PURE: nodes on a circle, or in a disc when they are many; routers in a row above; sessions as lines; drawn as SVG.

Rule: lines too many to tell apart are drawn as one shape: a large mesh as an area, many sessions of a router as one
thick line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

from cni_calico.ctl.picture.facts import Picture, PicturedSession

_WIDTH, _ROUTER_Y = 1080, 46
_RADIUS = 195.0
_ROUND = 14  # the most nodes on a circle, with names and the lines of their mesh
_ROUTERS, _LINES = 12, 40  # the most routers, and lines of one router
_LONGEST = 26  # characters of a name
_GOLDEN = math.pi * (3 - math.sqrt(5))

Point = tuple[float, float]


def render_diagram(picture: Picture, hues: Mapping[str, int]) -> str:
    if not picture.nodes:
        return ""
    routers = _routers(picture.sessions)
    middle = (_WIDTH / 2, (130 if routers else 40) + _RADIUS)
    count = len(picture.nodes)
    size = max(3.0, min(11.0, 0.62 * _RADIUS / math.sqrt(count)))
    points = {node.name: _place(i, count, middle) for i, node in enumerate(picture.nodes)}
    tops = _tops(routers, points)
    parts = [*_mesh(picture, points, middle), *_sessions(picture.sessions, points)]
    for name, nodes in routers.items():
        parts += _to_router(tops[name], [points[node] for node in nodes], middle)
    for node in picture.nodes:
        x, y = points[node.name]
        kind = "node reflector" if node.reflects else "node"
        said = f"{node.name}: {node.blocks} blocks, {node.used} addresses in use"
        parts.append(
            f'<circle class="{kind}" style="--h:{hues[node.name]}" cx="{x:.1f}" cy="{y:.1f}" r="{size:.1f}">'
            f"<title>{escape(said)}</title></circle>"
        )
    if count <= _ROUND:
        parts += [_label(node.name, points[node.name], middle, size + 8) for node in picture.nodes]
    for name, (x, y) in tops.items():
        parts.append(f'<rect class="outside" x="{x - 9:.1f}" y="{y - 9:.1f}" width="18" height="18" rx="5"/>')
        parts.append(_text(name, (x, y - 18), "middle"))
    height = middle[1] + _RADIUS + 48
    said = f"{count} nodes and the BGP sessions between them"
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _place(number: int, count: int, middle: Point) -> Point:
    """The place of a node: on a circle, or, if there are many, in a disc, like the seeds of a sunflower."""
    if count <= _ROUND:
        radius, angle = (_RADIUS if count > 1 else 0.0), 2 * math.pi * number / count - math.pi / 2
    else:
        radius, angle = _RADIUS * math.sqrt((number + 0.5) / count), number * _GOLDEN
    return middle[0] + radius * math.cos(angle), middle[1] + radius * math.sin(angle)


def _mesh(picture: Picture, points: Mapping[str, Point], middle: Point) -> list[str]:
    members = [node.name for node in picture.nodes if node.in_mesh]
    if len(points) > _ROUND:
        area = f'<circle class="ring" cx="{middle[0]:.1f}" cy="{middle[1]:.1f}" r="{_RADIUS + 14:.1f}"/>'
        return [area] if members else []
    return [_line("mesh", points[one], points[other]) for i, one in enumerate(members) for other in members[i + 1 :]]


def _sessions(sessions: Sequence[PicturedSession], points: Mapping[str, Point]) -> list[str]:
    """The sessions between nodes."""
    return [
        _line("session", points[session.node], points[session.other])
        for session in sessions
        if session.is_node and session.other in points
    ]


# -- routers ----------------------------------------------------------------------------------------------------------


def _routers(sessions: Sequence[PicturedSession]) -> dict[str, list[str]]:
    """The nodes that each router outside has a session with; if there are too many routers, only those with most
    nodes.
    """
    found: dict[str, list[str]] = {}
    for session in sessions:
        if not session.is_node:
            found.setdefault(session.other, []).append(session.node)
    most = sorted(found, key=lambda name: (-len(found[name]), name))[:_ROUTERS]
    return {name: found[name] for name in most}


def _tops(routers: Mapping[str, Sequence[str]], points: Mapping[str, Point]) -> dict[str, Point]:
    """Places for the routers, evenly in a row, ordered by the middle of their nodes, so that few lines cross."""
    middles = {name: sum(points[node][0] for node in nodes) / len(nodes) for name, nodes in routers.items()}
    ordered = sorted(routers, key=lambda name: (middles[name], name))
    step = _WIDTH / (len(ordered) + 1)
    return {name: (step * (i + 1), float(_ROUTER_Y)) for i, name in enumerate(ordered)}


def _to_router(top: Point, ends: Sequence[Point], middle: Point) -> list[str]:
    if len(ends) <= _LINES:
        return [_line("session", top, end) for end in ends]
    away = math.hypot(top[0] - middle[0], top[1] - middle[1])
    share = (_RADIUS + 14) / away
    edge = (middle[0] + (top[0] - middle[0]) * share, middle[1] + (top[1] - middle[1]) * share)
    between = ((top[0] + edge[0]) / 2, (top[1] + edge[1]) / 2)
    return [_line("session many", top, edge), _text(f"{len(ends):,} nodes", (between[0] + 14, between[1]), "start")]


# -- pieces -----------------------------------------------------------------------------------------------------------


def _line(kind: str, one: Point, other: Point) -> str:
    return f'<line class="{kind}" x1="{one[0]:.1f}" y1="{one[1]:.1f}" x2="{other[0]:.1f}" y2="{other[1]:.1f}"/>'


def _label(name: str, point: Point, middle: Point, away: float) -> str:
    """A label beside its point, on the side away from the middle."""
    angle = math.atan2(point[1] - middle[1], point[0] - middle[0]) if point != middle else math.pi / 2
    x, y = point[0] + away * math.cos(angle), point[1] + away * math.sin(angle)
    side = math.cos(angle)
    anchor = "middle" if abs(side) < 0.2 else "start" if side > 0 else "end"
    return _text(name, (x, y + 5 + 5 * math.sin(angle)), anchor)


def _text(text: str, point: Point, anchor: str) -> str:
    shown = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f'<text x="{point[0]:.1f}" y="{point[1]:.1f}" text-anchor="{anchor}">{escape(shown)}</text>'
