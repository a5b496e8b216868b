"""A spare block is an extra: a request never fails because of it."""

from __future__ import annotations

import threading

import pytest

from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.group.spare import SpareBlocks
from tests.fakes.memory_store import MemoryStore


def test_no_more_threads_is_no_failure_and_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(thread: threading.Thread) -> None:
        tried.append(thread.name)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    spares = SpareBlocks(Allocator(MemoryStore()))
    spares.request("n1", 4, ())
    spares.request("n1", 4, ())
    assert tried == ["spare-block"], "there is a pause"
    spares.request("n2", 4, ())
    assert len(tried) == 2, "the lock is free: another node's request got as far"
