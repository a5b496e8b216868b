"""What a pod's part in a migration makes of its routes, and which migrations there are."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.kernel.announcements import ARP, RARP, is_announcement
from cni_calico.model.resources import Metadata, WorkloadEndpoint
from cni_calico.nodeagent.dataplane.moving import JOB as LABEL
from cni_calico.nodeagent.migration.states import (
    JOB,
    MigrationState,
    PodMigration,
    Role,
    next_state,
    parse_migration,
    select_role,
)


def test_one_label_is_meant() -> None:
    assert JOB == LABEL


def endpoint(name: str = "virt-launcher-vm-2", **labels: str) -> WorkloadEndpoint:
    metadata = Metadata("e", "ns", labels={"vm.kubevirt.io/name": "vm", **labels})
    return WorkloadEndpoint(metadata, "k8s", "n1", "eth0", "cali1", pod=name, ip_networks=(ip_network("10.65.0.9/32"),))


def document(**changes: Any) -> dict[str, Any]:
    status = {"phase": "Running", "migrationState": {"sourcePod": "virt-launcher-vm-1"}}
    return {
        "metadata": {"namespace": "ns", "uid": "job"},
        "spec": {"vmiName": "vm"},
        "status": status,
        **changes,
    }


def test_roles() -> None:
    found = parse_migration(document())
    assert found == PodMigration("ns", "job", "vm", "virt-launcher-vm-1")
    assert select_role(endpoint(**{JOB: "job"}), [found]) is Role.TARGET
    assert select_role(endpoint("virt-launcher-vm-1"), [found]) is Role.SOURCE
    assert select_role(endpoint("virt-launcher-vm-1", **{JOB: "before"}), [found]) is Role.SOURCE
    assert select_role(endpoint(**{JOB: "before"}), [found]) is Role.NONE
    assert select_role(endpoint(**{JOB: "job", "vm.kubevirt.io/name": "other"}), [found]) is Role.NONE
    assert select_role(endpoint(**{JOB: "job"}), [PodMigration("elsewhere", "job", "vm")]) is Role.NONE
    # of two migrations the one that takes the machine away counts
    both = [found, PodMigration("ns", "next", "vm", "virt-launcher-vm-2")]
    assert select_role(endpoint(**{JOB: "job"}), both) is Role.SOURCE
    assert select_role(endpoint(**{JOB: "job"}), both[::-1]) is Role.SOURCE


@pytest.mark.parametrize(
    "changes",
    [
        {"status": {"phase": "Succeeded"}},
        {"status": {"phase": "Pending"}},
        {"status": None},
        {"status": []},
        {"status": {"phase": 7}},
        {"spec": {"vmiName": ""}},
        {"spec": "vm"},
        {"metadata": {"namespace": "ns"}},
        {"metadata": {"namespace": "ns", "uid": "job", "deletionTimestamp": "2026-11-20T12:06:00Z"}},
    ],
)
def test_no_migration(changes: dict[str, Any]) -> None:
    assert parse_migration(document(**changes)) is None


def test_a_migration_as_it_goes() -> None:
    state = MigrationState.BASE
    for role, waited, wanted in (
        (Role.TARGET, False, MigrationState.TARGET),
        (Role.TARGET, True, MigrationState.TARGET),
        (Role.NONE, False, MigrationState.WAIT),  # its announcement was missed
        (Role.NONE, False, MigrationState.WAIT),
        (Role.NONE, True, MigrationState.BASE),
        (Role.NONE, True, MigrationState.BASE),
    ):
        state = next_state(state, role, has_waited=waited)
        assert state is wanted
    assert next_state(MigrationState.LIVE, Role.TARGET, has_waited=True) is MigrationState.LIVE
    assert next_state(MigrationState.LIVE, Role.NONE, has_waited=False) is MigrationState.WAIT
    assert next_state(MigrationState.WAIT, Role.TARGET, has_waited=False) is MigrationState.TARGET
    assert all(next_state(s, Role.SOURCE, has_waited=False) is MigrationState.BASE for s in MigrationState)


ADDRESS = ip_address("10.65.0.9")


def arp(sender: str, target: str, header: bytes = bytes((0, 1, 8, 0, 6, 4)), operation: int = 1) -> bytes:
    mac = bytes(6)
    ends = ip_address(sender).packed, ip_address(target).packed
    return header + operation.to_bytes(2, "big") + mac + ends[0] + mac + ends[1]


def test_announcements() -> None:
    there = {ADDRESS}
    assert is_announcement(ARP, arp("10.65.0.9", "10.65.0.9"), there)
    assert is_announcement(ARP, arp("10.65.0.9", "10.65.0.9", operation=2) + bytes(18), there)
    assert is_announcement(RARP, b"", there)
    assert not is_announcement(ARP, arp("10.65.0.9", "169.254.1.1"), there), "it asks for its gateway"
    assert not is_announcement(ARP, arp("10.65.0.8", "10.65.0.8"), there), "another address"
    assert not is_announcement(ARP, arp("0.0.0.0", "10.65.0.9"), there), "it probes the address"
    assert not is_announcement(ARP, arp("10.65.0.9", "10.65.0.9", header=bytes((0, 6, 8, 0, 6, 4))), there)
    assert not is_announcement(0x0800, arp("10.65.0.9", "10.65.0.9"), there)


@given(st.binary(max_size=64))
def test_any_bytes(frame: bytes) -> None:
    assert is_announcement(ARP, frame, {ADDRESS}) == (
        len(frame) >= 28 and frame[:6] == bytes((0, 1, 8, 0, 6, 4)) and frame[14:18] == frame[24:28] == ADDRESS.packed
    )
