"""What policies' standing means to the data plane, and what it only tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cni_calico.nodeagent.status.policing import Standing

IN_FORCE = Standing(decided=True, in_force=True, ready=True)
TOLD: tuple[dict[str, Any], ...] = (
    {"counts": {"policies": 2}},
    {"warnings": ("ignored",)},
    {"notes": ("of this host",)},
    {"repairs": 1},
    {"ready": False},
    {"checks_only": True},
    {"reports": True},
)


@pytest.mark.parametrize("change", TOLD)
def test_what_is_only_told_changes_nothing_for_the_data_plane(change: dict[str, Any]) -> None:
    assert replace(IN_FORCE, **change).for_dataplane() == IN_FORCE.for_dataplane()
    lifted = replace(IN_FORCE, in_force=False)  # it warns then, and says how many policies nobody enforces
    assert replace(lifted, **change).for_dataplane() != lifted.for_dataplane()


def test_everything_else_does() -> None:
    others: dict[str, Any] = {
        "decided": False,
        "in_force": False,
        "upstream_goes": True,
        "why_not": "switched off",
        "failing": "refused",
        "problems": ("one is refused",),
        "none_exist": True,
        "lost": ("doNotTrack",),
        "by": "iptables",
        "guarded": frozenset(("vxlan.calico",)),
        "vxlan_ports": frozenset((4789,)),
        "unguardable": "no such expression",
        "upstream_stays": True,
    }
    assert {*others, *(name for change in TOLD for name in change)} == set(Standing.__dataclass_fields__)
    for name, value in others.items():
        assert replace(IN_FORCE, **{name: value}).for_dataplane() != IN_FORCE.for_dataplane(), name
