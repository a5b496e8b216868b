"""The guard's table and its two files, through settings that come, go and cannot be read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel.files import Files
from cni_calico.kernel.filter import nft
from cni_calico.nodeagent.dataplane.desired import Desired
from cni_calico.nodeagent.dataplane.encryption.guard import DesiredGuard
from cni_calico.nodeagent.dataplane.parts.guard import EncryptionGuard
from cni_calico.nodeagent.dataplane.passes import Pass
from tests.unit.nodeagent.fabric import FELIX

WANTED = DesiredGuard(("wireguard.cali",), ("cali",), (((1, 9),), ()))
ON, OFF, UNKNOWN = Desired(guard=WANTED), Desired(guard_is_off=True), Desired()


class Host:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table: Any = None
        self.usable = True
        self.applied = 0
        self.required, self.standing = root / "lib" / "required", root / "run" / "standing"
        self.standing.parent.mkdir()
        monkeypatch.setattr(nft, "usable", lambda deadline: self.usable)
        monkeypatch.setattr(nft, "apply_script", self._apply)
        monkeypatch.setattr(nft, "read_table", lambda *_: self.table)
        monkeypatch.setattr(nft, "has_table", lambda *_: self.table is not None)
        self.restart()

    def _apply(self, script: str, deadline: Deadline) -> None:
        self.table = script if "chain" in script else None
        self.applied += 1

    def restart(self) -> None:
        self.part = EncryptionGuard(Files(), str(self.required), str(self.standing))

    def apply(self, desired: Desired, full: bool = False) -> Pass:
        done = Pass()
        self.part.apply(desired, FELIX, Deadline.after(5), done, full)
        return done

    def files(self) -> tuple[bool, bool]:
        return self.required.exists(), self.standing.exists()


@pytest.fixture
def guarded_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(tmp_path, monkeypatch)


def test_it_stands_until_it_is_read_that_it_need_not(guarded_host: Host) -> None:
    assert guarded_host.apply(ON).changed == ["set the guard of encryption"]
    assert guarded_host.files() == (True, True) and guarded_host.table
    guarded_host.restart()
    guarded_host.apply(UNKNOWN)
    assert guarded_host.files() == (True, True) and guarded_host.table
    guarded_host.apply(OFF)
    assert guarded_host.files() == (False, False) and guarded_host.table is None


def test_nothing_is_written_when_nothing_has_changed(guarded_host: Host) -> None:
    guarded_host.apply(ON)
    for full in (False, True):
        assert not guarded_host.apply(ON, full).changed
    assert guarded_host.applied == 1


@pytest.mark.parametrize("changed", [None, "another"])
def test_a_change_by_hand_is_repaired(guarded_host: Host, changed: Any) -> None:
    guarded_host.apply(ON)
    guarded_host.table = changed
    assert guarded_host.apply(ON, full=True).changed == ["repaired the guard of encryption"]


def test_where_it_cannot_stand_pods_wait(guarded_host: Host) -> None:
    """The file that requires it is there before."""
    guarded_host.usable = False
    with pytest.raises(KernelError, match="nftables is not installed"):
        guarded_host.apply(ON)
    assert guarded_host.files() == (True, False)
    guarded_host.usable = True
    guarded_host.apply(ON)
    assert guarded_host.files() == (True, True)


def test_where_it_could_not_stand_it_goes_all_the_same(guarded_host: Host) -> None:
    """Or no pod of a host without nftables could start ever after."""
    guarded_host.usable = False
    with pytest.raises(KernelError):
        guarded_host.apply(ON)
    assert guarded_host.apply(OFF).changed and guarded_host.files() == (False, False)
    assert guarded_host.applied == 0


def test_it_stands_although_that_it_has_to_cannot_be_written(guarded_host: Host, tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("no directory")
    with pytest.raises(OSError, match="lib"):
        guarded_host.apply(ON)
    assert guarded_host.table and guarded_host.files() == (False, True)
    (tmp_path / "lib").unlink()
    guarded_host.apply(ON)
    assert guarded_host.files() == (True, True)


def test_going_is_finished_after_a_crash(guarded_host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that says that it stands would be believed when it is required again."""
    guarded_host.apply(ON)
    with monkeypatch.context() as crashing:
        crashing.setattr(Files, "remove", _fail_after(1))
        with pytest.raises(OSError, match="crash"):
            guarded_host.apply(OFF)
    assert guarded_host.files() == (True, False)
    guarded_host.restart()
    guarded_host.apply(OFF)
    assert guarded_host.files() == (False, False)


def _fail_after(calls: int) -> Any:
    remove, left = Files.remove, [calls]

    def failing(files: Files, path: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise OSError("crash")
        remove(files, path)

    return failing


def test_what_failed_while_records_cannot_be_read_is_tried_again(guarded_host: Host) -> None:
    """The table is this run's, and not all that has to be in it is."""
    guarded_host.apply(ON)
    more = Desired(guard=DesiredGuard((), ("cali",), (((20, 29),), ()), partial=True))
    guarded_host.usable = False
    for _ in range(2):
        with pytest.raises(KernelError):
            guarded_host.apply(more)
    guarded_host.usable = True
    guarded_host.apply(more)
    assert "0.0.0.1-0.0.0.9, 0.0.0.20-0.0.0.29" in guarded_host.table


def test_an_earlier_runs_table_is_not_replaced_by_one_that_knows_less(guarded_host: Host) -> None:
    partial = Desired(guard=DesiredGuard((), (), (((1, 2),), ()), partial=True))
    guarded_host.table = "of an earlier run"
    guarded_host.apply(partial)
    assert guarded_host.table == "of an earlier run"
    guarded_host.apply(ON)
    guarded_host.apply(partial)
    assert "0.0.0.1-0.0.0.9" in guarded_host.table


def test_the_last_one_stands_before_records_are_read(guarded_host: Host) -> None:
    """After a reboot, or a firewall's flush; pods wait all the same."""
    guarded_host.apply(ON)
    last = guarded_host.table
    guarded_host.restart()
    assert guarded_host.part.restore(Deadline.after(5)) == "" and guarded_host.applied == 1  # it is there
    guarded_host.table = None
    guarded_host.standing.unlink()
    assert "no record has been read yet" in guarded_host.part.restore(Deadline.after(5))
    assert guarded_host.table == last and guarded_host.files() == (True, False)
    guarded_host.apply(UNKNOWN)
    assert guarded_host.table == last
    more = Desired(guard=DesiredGuard((), ("cali",), (((20, 29),), ()), partial=True))
    guarded_host.apply(more)
    assert "0.0.0.1-0.0.0.9, 0.0.0.20-0.0.0.29" in guarded_host.table  # not all is known, so the last one counts, too
    kept = guarded_host.required.read_bytes()
    guarded_host.apply(Desired(guard=DesiredGuard((), ("cali",), (((20, 29),), ()))))
    assert "0.0.0.1" not in guarded_host.table and guarded_host.required.read_bytes() != kept


@pytest.mark.parametrize(
    "text", [None, b"", b"{", b"{}", b'{"devices": [], "prefixes": [], "guarded": [[[5, 1]], []]}']
)
def test_a_file_that_has_no_guard_restores_none(guarded_host: Host, text: bytes | None) -> None:
    """None: no file; empty: of an earlier version."""
    if text is not None:
        guarded_host.required.parent.mkdir()
        guarded_host.required.write_bytes(text)
    assert guarded_host.part.restore(Deadline.after(5)) == "" and guarded_host.applied == 0
    guarded_host.apply(ON)
    assert guarded_host.files() == (True, True)


def test_off_without_anything_left_does_nothing(guarded_host: Host) -> None:
    guarded_host.apply(OFF)
    assert guarded_host.applied == 0
