"""What a process that serves a call beside a resident server leaves for it to see."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.deadline import Deadline
from cni_calico.plugin.call import services
from cni_calico.plugin.call.services import Services


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    return tmp_path / "cni-beside"


def serve(run_dir: Path) -> None:
    made = Services({"CALICO_RUN_DIR": str(run_dir)})
    with made.attachment_lock("net/c1/eth0", Deadline.after(5)):
        pass


def test_a_host_without_a_server_keeps_no_file(tmp_path: Path, beside: Path) -> None:
    serve(tmp_path)
    assert not beside.exists()


def test_it_grows_before_and_after_what_is_done(tmp_path: Path, beside: Path) -> None:
    (tmp_path / "cni.sock").touch()
    sizes = []
    made = Services({"CALICO_RUN_DIR": str(tmp_path)})
    with made.attachment_lock("net/c1/eth0", Deadline.after(5)):
        sizes.append(beside.stat().st_size)
    sizes.append(beside.stat().st_size)
    assert sizes == [1, 2]
    with pytest.raises(ValueError), made.attachment_lock("net/c1/eth0", Deadline.after(5)):
        raise ValueError
    assert beside.stat().st_size == 4


def test_it_does_not_grow_for_ever(tmp_path: Path, beside: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "BESIDE_MAX", 10)
    (tmp_path / "cni.sock").touch()
    sizes = set()
    for _ in range(12):
        serve(tmp_path)
        sizes.add(beside.stat().st_size if beside.exists() else 0)
    assert max(sizes) < 10 and 0 in sizes


def test_a_place_that_cannot_be_written_is_no_failure(tmp_path: Path, beside: Path) -> None:
    (tmp_path / "cni.sock").touch()
    beside.mkdir()
    serve(tmp_path)
