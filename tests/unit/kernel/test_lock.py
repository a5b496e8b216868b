"""Lock files: one holder at a time, among threads and processes, whatever happens to the file."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import AttachmentBusy, KernelError
from cni_calico.kernel.lock import attachment_lock, file_lock, lock_path

Lock = Callable[[Path, Deadline], AbstractContextManager[None]]
LOCKS: dict[str, Lock] = {
    "file": lambda directory, deadline: file_lock(str(directory / "ipam.lock"), deadline),
    "attachment": lambda directory, deadline: attachment_lock(str(directory / "locks"), "net/c1/eth0", deadline),
}


@pytest.fixture(params=LOCKS)
def lock(request: pytest.FixtureRequest) -> Lock:
    return LOCKS[request.param]


def test_excludes_until_the_deadline(lock: Lock, tmp_path: Path) -> None:
    with lock(tmp_path, Deadline.after(5)):
        started = time.monotonic()
        with pytest.raises(AttachmentBusy, match="another call holds it"), lock(tmp_path, Deadline.after(0.2)):
            pass
        assert 0.2 <= time.monotonic() - started < 3
    with lock(tmp_path, Deadline.after(0)):
        pass


@pytest.mark.parametrize("remove", [False, True])
def test_threads_never_overlap(lock: Lock, tmp_path: Path, remove: bool) -> None:
    """Also while somebody keeps removing the file, as a clean-up of /run may."""
    inside: list[int] = []
    most: list[int] = []

    def work() -> None:
        for _ in range(30):
            with lock(tmp_path, Deadline.after(30)):
                inside.append(1)
                most.append(len(inside))
                os.sched_yield()
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    while remove and any(thread.is_alive() for thread in threads):
        for path in tmp_path.rglob("*.lock"):
            # only a file that nobody holds may be removed: take it first, as attachment_lock's release does
            with file_lock(str(path), Deadline.after(30)):
                path.unlink(missing_ok=True)
    for thread in threads:
        thread.join()
    assert (max(most), len(most)) == (1, 180)


def test_a_killed_process_lets_go(lock: Lock, tmp_path: Path) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with lock(tmp_path, Deadline.after(5)):
            os.write(write, b"x")
            signal.pause()
    assert os.read(read, 1) == b"x"
    with pytest.raises(AttachmentBusy), lock(tmp_path, Deadline.after(0.05)):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    os.close(read)
    os.close(write)
    with lock(tmp_path, Deadline.after(5)):
        pass


def test_the_attachments_file_does_not_stay(tmp_path: Path) -> None:
    with attachment_lock(str(tmp_path), "net/c1/eth0", Deadline.after(5)):
        assert [str(tmp_path / name) for name in os.listdir(tmp_path)] == [lock_path(str(tmp_path), "net/c1/eth0")]
    assert os.listdir(tmp_path) == []


def test_the_shared_file_stays(tmp_path: Path) -> None:
    """Upstream's own processes may hold it open."""
    with file_lock(str(tmp_path / "ipam.lock"), Deadline.after(5)):
        inode = os.stat(tmp_path / "ipam.lock").st_ino
    assert os.stat(tmp_path / "ipam.lock").st_ino == inode


def test_any_label_is_a_file_name(tmp_path: Path) -> None:
    for label in ("../../etc/passwd", "x" * 5000, "a/b", "ä\n", ""):
        with attachment_lock(str(tmp_path), label, Deadline.after(5)):
            assert len(os.listdir(tmp_path)) == 1


def test_other_labels_do_not_wait(tmp_path: Path) -> None:
    with attachment_lock(str(tmp_path), "a", Deadline.after(5)), attachment_lock(str(tmp_path), "b", Deadline.after(0)):
        pass


@pytest.mark.parametrize("when", ["before", "after"])
def test_injected_faults(lock: Lock, tmp_path: Path, when: str) -> None:
    faults.install(faults.FaultPlan(f"file.lock:{when}:1:fail"))
    try:
        with pytest.raises(KernelError, match="injected"), lock(tmp_path, Deadline.after(5)):
            pytest.fail("must not be entered")
        with lock(tmp_path, Deadline.after(0)):  # what was taken has been let go
            pass
    finally:
        faults.install(None)


def test_what_cannot_be_locked(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelError, match="Not a directory"), file_lock(str(tmp_path / "file/lock"), Deadline.after(5)):
        pass
    locks = str(tmp_path / "file/locks")
    with pytest.raises(KernelError, match="cannot create directory"), attachment_lock(locks, "a", Deadline.after(5)):
        pass
    (tmp_path / "link").symlink_to(tmp_path / "file")
    with pytest.raises(KernelError, match="symbolic link"), file_lock(str(tmp_path / "link"), Deadline.after(5)):
        pass


def test_a_lock_that_is_no_file_is_refused(tmp_path: Path) -> None:
    """A disk would be opened for writing, a pipe's reader would wait."""
    os.mkfifo(tmp_path / "ipam.lock")
    lock = file_lock(str(tmp_path / "ipam.lock"), Deadline.after(5))
    with pytest.raises(KernelError, match="it is not a regular file"), lock:
        pass
