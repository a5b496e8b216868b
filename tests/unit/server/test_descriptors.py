"""A server knows how many descriptors it can still open, and declines calls while they are few."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EMFILE
from itertools import count, islice
from typing import Any

import pytest

from cni_calico.deadline import Deadline
from cni_calico.errors import KernelError
from cni_calico.kernel import lock
from cni_calico.log import SILENT
from cni_calico.plugin.call.serve import Declined
from cni_calico.server import descriptors
from cni_calico.server.connections import CallRequest
from cni_calico.server.metrics import CniMetrics
from cni_calico.server.resident import DESCRIPTORS_LEFT, Resident


@contextmanager
def free(number: int) -> Iterator[None]:
    """Exactly so many descriptors can be opened in the body."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    used -= {fd for fd in used if not os.path.exists(f"/proc/self/fd/{fd}")}  # that of the listing itself
    lowered = next(islice((n for n in count() if n not in used), number, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowered, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def fragments() -> Iterator[None]:
    """Numbers in use with holes between them, and one at the top."""
    opened = [os.open("/", os.O_PATH) for _ in range(40)]
    for fd in opened[::2]:
        os.close(fd)
    yield
    for fd in opened[1::2]:
        os.close(fd)


@pytest.mark.parametrize("wanted", [1, 2, 3, 8, 24])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_exactly_what_can_be_opened_is_left(fragments: None, wanted: int, more: int) -> None:
    with free(wanted + more):
        assert descriptors.are_left(wanted) == (more >= 0)
    assert descriptors.are_left(wanted)


def test_some_that_are_open_far_up_are_no_shortage() -> None:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    opened = os.open("/", os.O_PATH)
    try:
        os.dup2(opened, soft // 2)
        os.dup2(opened, soft - 1)
        assert descriptors.are_left(24)
    finally:
        for fd in (opened, soft // 2, soft - 1):
            os.close(fd)


@pytest.fixture
def descriptor_resident() -> Iterator[Resident]:
    made = Resident(SILENT, CniMetrics())
    yield made
    made.end_worker()
    made.close()


def test_with_few_left_calls_are_left_to_their_callers(descriptor_resident: Resident) -> None:
    descriptor_resident.require_descriptors()
    with free(DESCRIPTORS_LEFT - 1), pytest.raises(Declined, match="file descriptors"):
        descriptor_resident.require_descriptors()
    descriptor_resident.require_descriptors()


def test_a_lock_that_lacks_one_leaves_the_call_to_its_caller_until_work_has_begun(
    descriptor_resident: Resident, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other calls may have taken them meanwhile."""
    attempts = iter([False, True, False, True, True])

    def attempt(path: str, real: Any = lock._try) -> int | None:
        if next(attempts):
            raise OSError(EMFILE, "Too many open files")
        fd: int | None = real(path)
        return fd

    monkeypatch.setattr(lock, "_try", attempt)
    with socket.socket(socket.AF_UNIX) as connection:
        request = CallRequest(connection, 1, "calico", {"CALICO_RUN_DIR": str(tmp_path)}, b"")
        with descriptor_resident.services(request) as services:
            monkeypatch.setattr(services, "require_caller", lambda: None)
            soon = Deadline.after(10)
            with services.attachment_lock("a", soon), pytest.raises(Declined, match="file descriptors"):
                services.attachment_lock("b", soon).__enter__()
            with services.attachment_lock("a", soon):
                pass
            with pytest.raises(KernelError, match="Too many open files"):
                services.attachment_lock("b", soon).__enter__()
        with descriptor_resident.services(request) as services, pytest.raises(Declined):
            services.attachment_lock("a", soon).__enter__()
