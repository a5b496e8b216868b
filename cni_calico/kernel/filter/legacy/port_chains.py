"""PURE: a long list of ports, or one with named ports beside it, as a chain of legacy iptables.

Rule: iptables compares at most fifteen ports in a rule. A longer list is a chain that clears the mark bit ``scratch``
where the packet's port is not in it (``invert``: where it is). So a rule that lists ports stays one rule, however many
there are, and rules with equal lists share the chain. The chain has a rule for each fifteen ports of the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cni_calico.kernel.filter.legacy.names import CHAINS, digest
from cni_calico.netfilter.rules import MULTIPORT


@dataclass(frozen=True, slots=True)
class PortChain:
    """``name`` is derived from ``lines``."""

    name: str
    lines: tuple[str, ...] = field(compare=False, repr=False)

    def rules(self) -> tuple[str, ...]:
        return self.lines


def port_chain(
    protocol: int, option: str, ranges: list[tuple[int, int]], members: str, cleared: str, *, invert: bool
) -> PortChain:
    """``option``: sports or dports. ``members``: the match of a set that is as good as the list, "" for none.
    ``cleared``: the action that clears the bit.
    """
    then = cleared if invert else "RETURN"
    lines = [f"-p {protocol} -m multiport --{option} {piece} -j {then}" for piece in pieces(ranges)]
    if members:
        lines.append(f"{members} -j {then}")
    if not invert:
        lines.append(f"-j {cleared}")
    return PortChain(f"{CHAINS}of-{digest(chr(10).join(lines))}", tuple(lines))


def pieces(ranges: list[tuple[int, int]]) -> Iterator[str]:
    """Each fits into one match."""
    piece: list[str] = []
    room = MULTIPORT
    for low, high in ranges:
        size = 1 if low == high else 2
        if size > room:
            yield ",".join(piece)
            piece, room = [], MULTIPORT
        piece.append(str(low) if low == high else f"{low}:{high}")
        room -= size
    yield ",".join(piece)
