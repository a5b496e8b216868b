"""How the janitor works, and what of that a cluster sets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cni_calico.daemon.settings_table import parse_duration_s
from cni_calico.datastore.election import Terms

CALL_S = 10.0


@dataclass(frozen=True, slots=True)
class JanitorOptions:
    """How the janitor works; a cluster can set only the grace period. ``calls_s``: longer than any CNI call takes."""

    terms: Terms = field(default_factory=Terms)
    grace_s: float = 900.0
    per_second: float = 10.0  # checks and releases together
    batch: int = 50
    look_s: float = 5.0  # from round to round if nothing changes
    settings_s: float = 10.0  # one request of one process in the cluster
    labels_s: float = 300.0  # between searches for records of older versions
    again_s: float = 300.0  # until a suspect that was kept is checked again
    calls_s: float = 120.0


def parse_grace(document: Mapping[str, Any], otherwise: float) -> float | None:
    """PURE: spec.controllers.node.leakGracePeriod in seconds; None for 0, which switches it off."""
    value: Any = document
    for name in ("spec", "controllers", "node", "leakGracePeriod"):
        value = value.get(name) if isinstance(value, Mapping) else None
    try:
        return otherwise if not isinstance(value, str) else parse_duration_s(value) or None
    except ValueError:
        return otherwise
