"""Errors that mean a shortage, and what a server does with too little."""

from __future__ import annotations

import threading
from errno import EMFILE, ENOENT
from pathlib import Path

import pytest

from cni_calico.daemon.threads import SideThreads
from cni_calico.errors import DatastoreUnavailable
from cni_calico.log import SILENT
from cni_calico.server.run import CniServer
from cni_calico.shortage import shortage_of


def no_thread(self: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_a_shortage_is_known_behind_our_own_errors() -> None:
    try:
        try:
            raise OSError(EMFILE, "Too many open files")
        except OSError as e:
            raise DatastoreUnavailable("cannot reach it") from e
    except DatastoreUnavailable as e:
        assert shortage_of(e) == "file descriptors"
    assert shortage_of(MemoryError()) == "memory"
    module = ImportError("/lib/x.so: cannot open shared object file: Too many open files")
    assert shortage_of(module) == "file descriptors"
    assert shortage_of(SystemError("error return without exception set")) == "memory"
    assert shortage_of(SystemError("bad argument to internal function")) == ""
    assert shortage_of(RuntimeError("can't start new thread")) == "threads"
    assert shortage_of(RuntimeError("can't allocate lock")) == "memory"
    assert shortage_of(OSError(ENOENT, "no")) == shortage_of(RuntimeError("no")) == shortage_of(None) == ""


def test_without_threads_nothing_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cni.sock"
    server = CniServer(str(path), SILENT, workers=2)
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    with pytest.raises(RuntimeError):
        server.start()
    assert not path.exists()


def test_without_threads_of_its_own_what_goes_on_beside_a_call_is_done_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = SideThreads(2, "x")
    with monkeypatch.context() as short:
        short.setattr(threading.Thread, "start", no_thread)
        assert threads.submit(threading.current_thread).result(20) is threading.current_thread()
    assert threads.submit(threading.current_thread).result(20) is not threading.current_thread()
    threads.close()
