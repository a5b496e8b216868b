"""PURE: BIRD's routes, parsed from ``show route``.

Rule: as in status.py, a line that is not understood is skipped. A route with several next hops is represented by its
first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from cni_calico.nodeagent.bgp.bird.status import Line

_ROUTE = 1007


@dataclass(frozen=True, slots=True)
class BirdRoute:
    """``selected``: it is the route in force for its destination. ``protocol`` is the name of the protocol it comes
    from.
    """

    destination: str
    kind: str
    protocol: str
    selected: bool
    learned_from: str = ""
    gateway: str = ""
    interface: str = ""

    @property
    def version(self) -> int:
        return 6 if ":" in self.destination else 4


def parse_routes(lines: Iterable[Line]) -> tuple[BirdRoute, ...]:
    """In BIRD's order."""
    routes: list[BirdRoute] = []
    destination = ""
    for code, text in lines:
        if code != _ROUTE or text.startswith("Table "):
            continue
        if text.startswith("\t"):
            if routes and not routes[-1].interface:
                routes[-1] = _with_hop(routes[-1], text.split())
            continue
        head, bracket, rest = text.partition("[")
        words = head.split()
        if not bracket or not words:
            continue
        if not text.startswith(" "):
            destination = words[0]
        routes.append(_parse_route(destination, words[-1], rest))
    return tuple(routes)


def _parse_route(destination: str, kind: str, rest: str) -> BirdRoute:
    """``rest`` is "PROTOCOL SINCE [from ADDRESS]] * (PREFERENCE) ..."."""
    inside, _, after = rest.partition("]")
    words = inside.split()
    source = words[words.index("from") + 1] if "from" in words[:-1] else ""
    return BirdRoute(destination, kind, words[0] if words else "", after.lstrip().startswith("*"), source)


def _with_hop(route: BirdRoute, words: list[str]) -> BirdRoute:
    """The words of "via ADDRESS on INTERFACE ..." or "dev INTERFACE"."""
    if words[:1] == ["via"] and words[2:3] == ["on"] and len(words) > 3:
        return replace(route, gateway=words[1], interface=words[3])
    return replace(route, interface=words[1]) if words[:1] == ["dev"] and len(words) > 1 else route
