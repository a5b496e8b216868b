"""What is wanted after changes that a flush of the graph returned."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.policy.wanted import Members, SetChange, Wanted, WantedChanges


def with_changes(wanted: Wanted, changes: WantedChanges) -> Wanted:
    sets = {name: members for name, members in wanted.sets.items() if name not in changes.sets_removed}
    sets |= {name: _changed(wanted.sets[name], change) for name, change in changes.sets_changed.items()}
    return Wanted(
        {**sets, **changes.sets_made},
        _overlaid(wanted.policies, changes.policies),
        _overlaid(wanted.classes, changes.classes),
        _overlaid(wanted.endpoints, changes.endpoints),
        _overlaid(wanted.host_classes, changes.host_classes),
        _overlaid(wanted.hosts, changes.hosts),
    )


def _changed(members: Members, change: SetChange) -> Members:
    added, removed = change.added, change.removed
    return Members(
        (members.addresses - removed.addresses) | added.addresses,
        (members.nets - removed.nets) | added.nets,
        (members.ports - removed.ports) | added.ports,
    )


def _overlaid(before: Mapping[Any, Any], changes: Mapping[Any, Any]) -> dict[Any, Any]:
    kept = {key: value for key, value in before.items() if key not in changes}
    return kept | {key: value for key, value in changes.items() if value is not None}
