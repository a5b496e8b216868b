"""The agent speaks when connection tracking has forgotten its connections, and at no other time."""

from __future__ import annotations

import socket
import subprocess
import threading
from queue import Empty, Queue

import pytest

from cni_calico.deadline import Deadline
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.kernel.netlink.tracked import is_tracked
from cni_calico.nodeagent.policing.feed import hearing as module
from cni_calico.nodeagent.policing.feed.hearing import Hearing
from tests.deadlines import until
from tests.netns.namespaces import host_namespace

pytestmark = pytest.mark.netns

RULES = "table inet t { chain c { type filter hook input priority 0; ct state new counter; }; }"


def test_it_speaks_when_it_is_forgotten() -> None:
    with host_namespace() as ns:
        ns.run("nft", RULES)
        assert ns.call(_forgotten) == ["begins", "flushed", "flushed again", "removed with a workload", "ended"]


def _forgotten() -> list[str]:
    """Every cause, as somebody speaks for it; the connection says something itself, so that it is known again."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0],
    ):
        said: list[str] = []
        spoken = Queue[None]()

        def speak() -> None:
            client.send(b"x")
            spoken.put(None)

        def heard(why: str) -> None:
            spoken.get(timeout=60)
            said.append(why)

        hearing = Hearing(speak)
        hearing.keep(hosts=False)
        assert spoken.empty() and "policy-hearing" not in _threads()
        hearing.keep(hosts=True)
        heard("begins")
        for why in ("flushed", "flushed again"):
            until(lambda: _knows(hearing, client), "it has looked")
            subprocess.run(["conntrack", "-F"], check=True, capture_output=True)
            heard(why)
        hearing.keep(hosts=True)
        hearing.keep(hosts=True, lost=True)
        heard("removed with a workload")
        hearing.keep(hosts=False)
        until(lambda: "policy-hearing" not in _threads(), "nobody looks any more")
        return [*said, "ended"] if spoken.empty() else said


def test_the_kernel_speaks_where_this_side_cannot() -> None:
    """On a watch only the server says anything; the connection has said something a moment ago, and is young."""
    with host_namespace() as ns:
        ns.run("nft", RULES)
        assert ns.call(_probed) == ["begins", "tracked", "tracked again", "tracked though young", "heard: only x"]


def _probed() -> list[str]:
    module._IDLE_S = 600  # what waits for silence does not help
    with (
        Nfnetlink() as netlink,
        socket.create_server(("127.0.0.1", 0)) as listening,
        socket.create_connection(listening.getsockname()) as client,
        listening.accept()[0] as server,
    ):
        there = listening.getsockname()[1]
        spoken = Queue[None]()
        said = []

        def tracked(one: socket.socket) -> bool:
            here = bytes((127, 0, 0, 1))
            return is_tracked(netlink, (here, one.getsockname()[1], here, there), Deadline.after(5))

        hearing = Hearing(lambda: spoken.put(None))
        hearing.keep(hosts=True)
        spoken.get(timeout=60)
        said.append("begins")
        until(lambda: _knows(hearing, client), "it has looked")
        for what in ("tracked", "tracked again"):
            server.send(b"x")
            _flush()
            until(lambda: tracked(client), what)
            said.append(what)
        with socket.create_connection(listening.getsockname()) as young, listening.accept()[0]:
            _flush()
            until(lambda: tracked(young), "tracked though young")
            until(lambda: young.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 600, "probed when idle, too")
            said.append("tracked though young")
        hearing.keep(hosts=False)
        until(lambda: "policy-hearing" not in _threads(), "nobody looks any more")
        said.append(f"heard: only {client.recv(9).decode()[:1]}")
        return said


def _knows(hearing: Hearing, one: socket.socket) -> bool:
    port = one.getsockname()[1]
    return any(ends[1] == port and not looks for ends, looks in list(hearing._missed.items()))


def _flush() -> None:
    subprocess.run(["conntrack", "-F"], check=True, capture_output=True)


def test_it_is_there_however_soon_host_endpoints_come_back() -> None:
    """Also while the thread that looked for the last ones is ending."""
    with host_namespace() as ns:
        assert ns.call(_back_at_once) == 300


def _back_at_once() -> int:
    spoken = Queue[None]()
    hearing = Hearing(lambda: spoken.put(None))
    for times in range(300):
        hearing.keep(hosts=True)
        try:
            spoken.get(timeout=10)
        except Empty:
            return times
        hearing.keep(hosts=False)
    return 300


def _threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}
