"""Status files of endpoints whose names anybody may have written, and on disks that take nothing."""

from __future__ import annotations

import json
from dataclasses import replace
from errno import ENOSPC
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.kernel.files import Files
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.report.status_files import StatusFiles
from cni_calico.plugin.waits import _says, status_file_name
from cni_calico.policy.wanted import WantedEndpoint
from tests.fakes.notes import Notes

NASTY = ["../../up", "..", ".", "/", "a/../b", "a\0b", "%2F", "\ud800", "\udcff", "\n", "x" * 300, "é" * 100, ""]
NAMES = st.one_of(st.sampled_from(NASTY), st.text(st.characters(categories=None), max_size=300))


def endpoint(orchestrator: str, workload: str, name: str, number: int = 0) -> WantedEndpoint:
    key = ResourceKey("WorkloadEndpoint", f"e{number}", "default")
    return WantedEndpoint(
        key, f"cali{number}", "c", (), mac=name, orchestrator=orchestrator, workload=workload, endpoint=name
    )


@given(NAMES, NAMES, NAMES)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_name_leads_elsewhere(tmp_path: Path, orchestrator: str, workload: str, name: str) -> None:
    """Nor does one that no file can have keep the others' from being written."""
    wanted = [endpoint(orchestrator, workload, name), endpoint("k8s", "default/plain", "eth0", 1)]
    log, root = Notes(), tmp_path / "run"
    files = StatusFiles(Files(), log, str(root), lambda: {one.key: one for one in wanted}, lambda _: True)
    written = files.update()
    directory = root / "endpoint-status"
    assert list(tmp_path.iterdir()) == [root] and list(root.iterdir()) == [directory]
    named = status_file_name(orchestrator, workload, name)
    plain = "k8s default%2Fplain eth0"
    there = {path.name for path in directory.iterdir()}
    assert plain in there and there <= {plain, named}
    assert written is (named in there) and bool(log.said) is not written
    assert written or len(named) > 255
    wanted.clear()
    files.update()
    assert not list(directory.iterdir())


class FullDisk(Files):
    full = True

    def write_atomic(self, path: str, data: bytes, mode: int = 0o600) -> None:
        if self.full:
            raise OSError(ENOSPC, "No space left on device")
        super().write_atomic(path, data, mode)


def test_a_full_disk_is_said_once_and_tried_again(tmp_path: Path) -> None:
    disk, log = FullDisk(), Notes()
    wanted = endpoint("k8s", "default/a", "eth0")
    files = StatusFiles(disk, log, str(tmp_path), lambda: {wanted.key: wanted}, lambda _: True)
    for _ in range(3):
        assert not files.update()
    assert len(log.said) == 1 and "No space left" in log.said[0]
    disk.full = False
    assert files.update()
    assert [path.name for path in (tmp_path / "endpoint-status").iterdir()] == ["k8s default%2Fa eth0"]


def is_due(files: StatusFiles, changed: dict[ResourceKey, WantedEndpoint | None]) -> bool:
    files.due = False
    files.note(changed)
    return files.due


def test_files_are_concerned_by_what_they_say_alone(tmp_path: Path) -> None:
    """Not by other policies for the same endpoint, which are most changes."""
    wanted, up = {endpoint("k8s", "default/a", "eth0").key: endpoint("k8s", "default/a", "eth0")}, {"cali0"}
    (key,) = wanted
    files = StatusFiles(Files(), Notes(), str(tmp_path), lambda: wanted, up.__contains__)
    assert is_due(files, dict(wanted))  # it is new
    assert files.update()
    assert not is_due(files, {key: replace(wanted[key], class_id="other")})
    for changed in (
        replace(wanted[key], addresses=(b"\x0a\x41\0\1",)),
        replace(wanted[key], mac="02:00:00:00:00:01"),
        None,
    ):
        assert is_due(files, {key: changed})
    other = endpoint("k8s", "default/b", "eth0", 1)
    assert not is_due(files, {other.key: other})  # its interface is not up
    assert not is_due(files, {other.key: None})  # and it never had a file
    up.add("cali1")
    assert is_due(files, {other.key: other})


def test_one_that_returns_as_it_was_gets_its_file_again(tmp_path: Path) -> None:
    """Also beside another whose interface is down, so that there are as many files as endpoints."""
    first, down = endpoint("k8s", "default/a", "eth0"), endpoint("k8s", "default/b", "eth0", 1)
    there = {first.key: first, down.key: down}
    files = StatusFiles(Files(), Notes(), str(tmp_path), lambda: there, first.interface.__eq__)

    files.update()
    written = sorted((tmp_path / "endpoint-status").iterdir())
    assert len(written) == 1
    del there[first.key]
    assert is_due(files, {first.key: None})
    files.update()
    assert not list((tmp_path / "endpoint-status").iterdir())
    there[first.key] = first
    assert is_due(files, {first.key: first})
    files.update()
    assert sorted((tmp_path / "endpoint-status").iterdir()) == written


def test_a_peer_of_bgp_is_named_while_it_is_one(tmp_path: Path) -> None:
    """Whoever waits for the policy does not mind."""
    one, other = endpoint("k8s", "default/a", "eth0"), endpoint("k8s", "default/b", "eth0", 1)
    files = StatusFiles(Files(), Notes(), str(tmp_path), lambda: {one.key: one, other.key: other}, lambda _: True)
    files.keep()

    def named() -> list[str | None]:
        files.keep()
        found = sorted((tmp_path / "endpoint-status").iterdir())
        assert all(_says(Files(), str(path), {"ifaceName": f"cali{i}", "mac": "eth0"}) for i, path in enumerate(found))
        return [json.loads(path.read_text()).get("bgpPeerName") for path in found]

    assert named() == [None, None]
    for peers, names in (
        ({"cali1": "rack"}, [None, "rack"]),
        ({"cali0": "r", "cali1": "s"}, ["r", "s"]),
        ({}, [None] * 2),
    ):
        files.use_peers(peers)
        assert files.due and named() == names
        files.use_peers(dict(peers))
        assert not files.due
