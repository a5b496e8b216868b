"""Names and addresses of the API server: no resolver and no dead address holds a call up longer than it has."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from cni_calico.datastore import dial
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.deadline import Deadline
from cni_calico.errors import DatastoreUnavailable, DeadlineExceeded
from cni_calico.model.access import KubernetesAccess
from tests.fakes.scripted_http import scripted


class Resolver:
    """Answers nothing until ``answer``; ``asked`` is how often it was called."""

    def __init__(self, *addresses: tuple[str, int]) -> None:
        self.asked = 0
        self.found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
        self._may = threading.Event()

    def __call__(self, host: str, port: int) -> Any:
        self.asked += 1
        self._may.wait(30)
        return self.found

    def answer(self) -> None:
        self._may.set()


@pytest.fixture
def resolver() -> Iterator[Resolver]:
    made = Resolver(("127.0.0.1", 80))
    yield made
    made.answer()


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_resolver_that_hangs_ends_with_the_deadline(resolver: Resolver) -> None:
    started = time.monotonic()
    with pytest.raises(TimeoutError, match=r"the name api\.hangs was not resolved in time"):
        dial.connect("api.hangs", 6443, Deadline.after(0.1), timeout_s=4, resolver=resolver)
    assert time.monotonic() - started < 10


def test_those_who_wait_for_one_name_share_one_thread(resolver: Resolver) -> None:
    for _ in range(5):
        with pytest.raises(TimeoutError):
            dial.lookup("api.shared", 6443, Deadline.after(0.01), resolver=resolver)
    assert resolver.asked == 1
    resolver.answer()
    assert dial.lookup("api.shared", 6443, Deadline.after(10), resolver=resolver) == resolver.found


def test_a_machine_without_threads_left(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so, and the next caller asks again."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(OSError, match=r"cannot resolve api\.poor: can't start new thread"):
        dial.lookup("api.poor", 6443, Deadline.after(10), resolver=resolver)
    monkeypatch.setattr(threading.Thread, "start", start)
    resolver.answer()
    assert dial.lookup("api.poor", 6443, Deadline.after(10), resolver=resolver) == resolver.found


def test_an_answer_that_came_late_is_there_for_the_next(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dial, "SLOW_S", 0.0)
    with pytest.raises(TimeoutError):
        dial.lookup("api.late", 6443, Deadline.after(0.01), resolver=resolver)
    resolver.answer()
    for _ in range(3):
        assert dial.lookup("api.late", 6443, Deadline.after(10), resolver=resolver) == resolver.found
    assert resolver.asked == 1
    resolver.found[:] = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))]
    with pytest.raises(ConnectionRefusedError):
        dial.connect("api.late", 6443, Deadline.after(10), timeout_s=4, resolver=resolver)
    dial.lookup("api.late", 6443, Deadline.after(10), resolver=resolver)
    assert resolver.asked == 2  # an answer that leads nowhere is not kept


def test_a_quick_answer_is_not_kept(resolver: Resolver) -> None:
    resolver.answer()
    for _ in range(2):
        dial.lookup("api.quick", 6443, Deadline.after(10), resolver=resolver)
    assert resolver.asked == 2


def test_a_dead_address_leaves_time_for_the_next(listening: int) -> None:
    with socket.socket() as full:  # its queue takes nobody: connecting to it hangs
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):
            both = Resolver(full.getsockname(), ("127.0.0.1", listening))
            both.answer()
            with dial.connect("api.two", 1, Deadline.after(10), timeout_s=0.4, resolver=both) as made:
                assert made.getpeername()[1] == listening


def test_addresses_are_asked_of_nobody(listening: int, resolver: Resolver) -> None:
    with dial.connect("127.0.0.1", listening, Deadline.after(5), timeout_s=4, resolver=resolver):
        assert resolver.asked == 0
    assert dial.lookup("::1", 443, Deadline.after(5), resolver=resolver)[0][0] == socket.AF_INET6


@pytest.mark.parametrize("host", ["a" * 64 + ".b", "a..b", "a b.invalid"])
def test_names_that_are_none(host: str) -> None:
    with pytest.raises(OSError, match=r"cannot resolve|is not a host name"):
        dial.connect(host, 443, Deadline.after(20), timeout_s=4)


def test_a_name_that_nobody_knows() -> None:
    def unknown(host: str, port: int) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(OSError, match=r"^cannot resolve api\.none: Name or service not known$"):
        dial.connect("api.none", 443, Deadline.after(5), timeout_s=4, resolver=unknown)


def test_what_a_call_says_of_it(monkeypatch: pytest.MonkeyPatch, resolver: Resolver) -> None:
    """Through the whole door: a name that hangs, one that is unknown, and one that works."""
    monkeypatch.setattr(socket, "getaddrinfo", _with(socket.getaddrinfo, resolver))
    api = KubernetesAPI(KubernetesAccess(api_root="http://api.door:6443"))
    with pytest.raises(DeadlineExceeded, match=r"cannot read x: no connection to api\.door:6443 in time: the name api"):
        api.get("/x", Deadline.after(0.1), "read x")
    resolver.found = []
    resolver.answer()
    with pytest.raises(DatastoreUnavailable, match=r"api\.door has no address"):
        KubernetesAPI(KubernetesAccess(api_root="http://api.door:6444")).get("/x", Deadline.after(5), "read x")
    with scripted((200, {"a": 1})) as server:
        resolver.found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", server.port))]
        api = KubernetesAPI(KubernetesAccess(api_root=f"http://api.door:{server.port}"))
        assert api.get("/x", Deadline.after(5), "read x") == {"a": 1}


def _with(real: Any, resolver: Resolver) -> Any:
    def getaddrinfo(asked: str | bytes, port: int, **more: Any) -> Any:
        if more.get("flags"):
            return real(asked, port, **more)
        host = asked.decode() if isinstance(asked, bytes) else asked
        if host.endswith(".door"):
            return resolver(host, port)
        raise OSError(errno.EIO, "not asked for")

    return getaddrinfo
