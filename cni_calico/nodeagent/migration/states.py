"""PURE: what a workload's part in a live migration makes of its routes.

Rule: a table of states. A pod to which a machine is to come has no route until the machine has announced itself; then
its route has the elevated priority, until all nodes have followed. Whoever is left, or has no part in a migration, has
an ordinary route.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cni_calico.model.resources import WorkloadEndpoint

JOB = "kubevirt.io/migrationJobUID"
_NAMES = ("vmi.kubevirt.io/id", "vm.kubevirt.io/name")
# KubeVirt's; before these there is no pod yet, and afterwards the machine is where it is
_PHASES = frozenset(("Scheduling", "Scheduled", "PreparingTarget", "TargetReady", "Running", "Failed"))


class Role(StrEnum):
    NONE = "none"
    SOURCE = "source"
    TARGET = "target"


class MigrationState(StrEnum):
    BASE = "base"
    TARGET = "target"  # waits for the machine
    LIVE = "live"  # the machine is here
    WAIT = "wait"  # the migration has ended, and other nodes may still have the old route


@dataclass(frozen=True, slots=True)
class PodMigration:
    """``source_pod`` is "" as long as it is not known."""

    namespace: str
    uid: str
    instance: str
    source_pod: str = ""


def parse_migration(obj: Mapping[str, Any]) -> PodMigration | None:
    """A VirtualMachineInstanceMigration that is under way; None for any other."""
    metadata, spec, status = (_mapping(obj.get(name)) for name in ("metadata", "spec", "status"))
    if status.get("phase") not in _PHASES or metadata.get("deletionTimestamp"):
        return None
    uid, instance = metadata.get("uid"), spec.get("vmiName")
    if not (isinstance(uid, str) and isinstance(instance, str) and uid and instance):
        return None
    source = _mapping(status.get("migrationState")).get("sourcePod")
    return PodMigration(str(metadata.get("namespace") or ""), uid, instance, source if isinstance(source, str) else "")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def select_role(endpoint: WorkloadEndpoint, migrations: Iterable[PodMigration]) -> Role:
    """Its part in the migrations that are under way; leaving one machine counts more than being sent another."""
    labels, role = endpoint.metadata.labels, Role.NONE
    names = {labels.get(name) for name in _NAMES}
    for migration in migrations:
        if migration.namespace != endpoint.metadata.namespace:
            continue
        if migration.source_pod and migration.source_pod == endpoint.pod:
            return Role.SOURCE
        if migration.instance in names and labels.get(JOB) == migration.uid:
            role = Role.TARGET
    return role


def next_state(state: MigrationState, role: Role, *, has_waited: bool) -> MigrationState:
    """``has_waited``: whether the time that other nodes need has passed since the migration's end."""
    if role is Role.SOURCE:
        return MigrationState.BASE
    if role is Role.TARGET:
        return MigrationState.TARGET if state in (MigrationState.BASE, MigrationState.WAIT) else state
    if state in (MigrationState.TARGET, MigrationState.LIVE):
        return MigrationState.WAIT
    return MigrationState.BASE if state is MigrationState.WAIT and has_waited else state
