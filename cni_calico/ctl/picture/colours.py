"""PURE: a colour for every node, the same wherever it is drawn.

Rule: neighbours in the list get colours far from each other (steps of the golden angle).
"""

from __future__ import annotations

from cni_calico.ctl.picture.facts import Picture

_GOLDEN = 137.508


def hues_of(picture: Picture) -> dict[str, int]:
    """Degrees of the colour circle by node."""
    return {node.name: round(210 + number * _GOLDEN) % 360 for number, node in enumerate(picture.nodes)}
