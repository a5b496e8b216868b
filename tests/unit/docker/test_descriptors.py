"""systemd's descriptor store: a port's socket is kept over a crash, and dropped before its port counts as free.

Rule: the receiver is a stand-in for systemd; tests/e2e/systemd/test_docker.py has the real one.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

import pytest

from cni_calico.docker.descriptors import DescriptorStore, adopt_descriptors
from cni_calico.docker.documents import PortRequest
from cni_calico.docker.ports import PortPublisher
from cni_calico.errors import InvalidConfig
from cni_calico.log import SILENT

ADDRESSES = (ip_address("10.65.0.7"), ip_address("fd00::7"))


class Receiver:
    """Keeps what it is told to keep, as systemd does."""

    def __init__(self, path: str) -> None:
        self.environ = {"NOTIFY_SOCKET": path}
        self.kept: dict[str, socket.socket] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(path)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while True:
            data, descriptors, _, _ = socket.recv_fds(self._socket, 4096, 4)
            fields = dict(line.split("=", 1) for line in data.decode().splitlines())
            if "FDSTORE" in fields:
                assert fields["FDPOLL"] == "0"
                self.kept[fields["FDNAME"]] = socket.socket(fileno=descriptors.pop())
            elif "FDSTOREREMOVE" in fields:
                self.kept.pop(fields["FDNAME"]).close()
            for each in descriptors:
                os.close(each)
            if "END" in fields:
                return

    def end(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as told:
            told.sendto(b"END=1", self.environ["NOTIFY_SOCKET"])
        self._thread.join()
        self._socket.close()
        for each in self.kept.values():
            each.close()


@contextmanager
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    made = Receiver(str(tmp_path / "notify"))
    try:
        yield made
    finally:
        made.end()


def publisher_of(made: Receiver, stored: dict[str, socket.socket] | None = None) -> PortPublisher:
    store = DescriptorStore(made.environ)
    store.use(stored or {})
    return PortPublisher(SILENT, store)


def is_free(port: int) -> bool:
    with socket.socket() as tried, suppress(OSError):
        tried.bind(("", port))
        return True
    return False


def test_a_port_is_kept_until_it_is_given_back(tmp_path: Path) -> None:
    with receiver(tmp_path) as made:
        publisher = publisher_of(made)
        (forward, _) = publisher.bind("one", [PortRequest("tcp", 80)], ADDRESSES)
        publisher.bind("one", [], ADDRESSES)
        assert is_free(forward.host_port), "also of systemd's, when the call has been answered"
        assert not made.kept


def test_after_a_crash_the_port_is_still_bound_and_is_taken_again(tmp_path: Path) -> None:
    with receiver(tmp_path) as made:
        store = DescriptorStore(made.environ)
        with socket.create_server(("", 0)) as bound, socket.create_server(("", 0)) as other:
            port = bound.getsockname()[1]
            for name, each in (("tcp4-1-any", bound), ("tcp4-2-any", other)):
                store.keep(name, each)
        store.drop(())
        store.drop(["tcp4-2-any"])  # waits until everything before has arrived
        assert not is_free(port) and set(made.kept) == {"tcp4-1-any"}
        with pytest.raises(InvalidConfig, match="in use"):
            publisher_of(made).bind("two", [PortRequest("tcp", 80, port)], ADDRESSES[:1])
        again = DescriptorStore(made.environ)
        again.use({"tcp4-1-any": made.kept["tcp4-1-any"].dup()})
        taken = again.take("tcp4-1-any")
        assert taken is not None and taken.getsockname()[1] == port and again.take("tcp4-1-any") is None
        taken.close()
        again.use({"tcp4-1-any": made.kept["tcp4-1-any"].dup()})
        again.drop_rest()
        assert is_free(port), "its container has ended meanwhile"


def test_without_systemd_nothing_is_stored() -> None:
    store = DescriptorStore({})
    with socket.create_server(("", 0)) as bound:
        store.keep("tcp4-1-any", bound)
    store.drop(["tcp4-1-any"])
    store.drop_rest()
    assert store.take("tcp4-1-any") is None


def test_descriptors_are_adopted_only_if_they_are_for_this_process() -> None:
    for environ in ({}, {"LISTEN_PID": "1", "LISTEN_FDS": "2"}, {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "x"}):
        found = adopt_descriptors(environ)
        assert not found.listeners and not found.stored
