"""Documents of the machine test's strategies, drawn once: states are made of them by ``random``, which is fast enough
for a hundred thousand.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from cni_calico.policy.wanted import Direction, PolicyReach
from tests.unit.policy.cluster import documents_for, keys

Documents = dict[tuple[str, str, str], Any]
KEYS = keys()
STAGES: tuple[tuple[PolicyReach, Direction], ...] = (
    ("own", "ingress"),
    ("own", "egress"),
    ("forward", "ingress"),
    ("forward", "egress"),
    ("beforeNat", "ingress"),
    ("raw", "ingress"),
    ("raw", "egress"),
)
DIRECTIONS: tuple[Direction, ...] = ("ingress", "egress")


@cache
def draw_documents(count: int) -> dict[tuple[str, str, str], list[Any]]:
    """So many documents for each key, always the same. Call it in a test: what a module does when it is imported, every
    worker does.
    """
    found: dict[tuple[str, str, str], list[Any]] = {}
    for number, key in enumerate(KEYS):
        limits = settings(
            max_examples=count,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )

        def keep(document: Any, drawn: list[Any]) -> None:
            drawn.append(document)

        limits(seed(number)(given(document=documents_for(key))(keep)))(drawn=found.setdefault(key, []))
    return found
