"""Status files of endpoints whose names anybody may have written, and on disks that take nothing."""

from __future__ import annotations

from errno import ENOSPC
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.kernel.files import Files
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.status_files import StatusFiles
from cni_calico.plugin.waits import status_file_name
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
    files = StatusFiles(Files(), log, str(root), lambda: {one.key: one for one in wanted})
    written = files.update(lambda interface: True)
    directory = root / "endpoint-status"
    assert list(tmp_path.iterdir()) == [root] and list(root.iterdir()) == [directory]
    named = status_file_name(orchestrator, workload, name)
    plain = "k8s default%2Fplain eth0"
    there = {path.name for path in directory.iterdir()}
    assert plain in there and there <= {plain, named}
    assert written is (named in there) and bool(log.said) is not written
    assert written or len(named) > 255
    wanted.clear()
    files.update(lambda interface: True)
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
    files = StatusFiles(disk, log, str(tmp_path), lambda: {wanted.key: wanted})
    for _ in range(3):
        assert not files.update(lambda interface: True)
    assert len(log.said) == 1 and "No space left" in log.said[0]
    disk.full = False
    assert files.update(lambda interface: True)
    assert [path.name for path in (tmp_path / "endpoint-status").iterdir()] == ["k8s default%2Fa eth0"]
