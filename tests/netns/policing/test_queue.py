"""Another program's queue (nft's ``queue``), before our rules and behind them: what it lets go on is judged, too.

Rule: the other program is this test, which answers the kernel by itself (linux/netfilter/nfnetlink_queue.h).
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.nfnetlink import GENERAL_BYTES
from cni_calico.kernel.netlink.notifications import NETLINK_NETFILTER
from tests.netns.policing.lab import ALLOW_80, DENY_B, Lab, socket_in

pytestmark = [pytest.mark.netns, pytest.mark.never_excused, pytest.mark.kernel("queue")]

ALLOWED, FORBIDDEN = 80, 81
BEFORE, BEHIND = -10, 100
NUMBER = 7
QUEUE = 3 << 8  # the subsystem
PACKET, VERDICT, CONFIG = QUEUE, QUEUE | 1, QUEUE | 2
COMMAND, PARAMETERS, BIND, COPY = 1, 2, b"\1\0\0\0", b"\0\0\xff\xff\2"
HEAD, PAYLOAD, DECIDED = 1, 10, 2
DROP, ACCEPT = 0, 1


class Queue:
    """Packets wait in it until they are decided; ``take`` waits for one."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._socket.settimeout(20)
        for attribute in (wire.attribute(COMMAND, BIND), wire.attribute(PARAMETERS, COPY)):
            self._send(CONFIG, wire.NLM_F_ACK, attribute)
            (answer,) = wire.split_messages(self._socket.recv(1 << 16))
            assert answer.kind == wire.NLMSG_ERROR and answer.payload[:4] == bytes(4)

    def _send(self, kind: int, flags: int, attribute: bytes) -> None:
        body = struct.pack(">BBH", socket.AF_UNSPEC, 0, NUMBER) + attribute
        self._socket.send(wire.HEADER.pack(wire.HEADER.size + len(body), kind, wire.NLM_F_REQUEST | flags, 1, 0) + body)

    def take(self, word: bytes) -> bytes:
        """The number of the packet that waits, which ends in the word."""
        (message,) = wire.split_messages(self._socket.recv(1 << 16))
        assert message.kind == PACKET
        found = wire.attributes(message.payload, GENERAL_BYTES)
        assert found[PAYLOAD].endswith(word)
        return found[HEAD][:4]

    def decide(self, number: bytes, verdict: int) -> None:
        self._send(VERDICT, 0, wire.attribute(DECIDED, struct.pack(">I", verdict) + number))

    @property
    def is_empty(self) -> bool:
        return not select.select([self._socket], [], [], 0)[0]


def theirs(lab: Lab, priority: int, how: str = "") -> None:
    rules = (
        f"table ip theirs {{ chain forward {{ type filter hook forward priority {priority}; "
        f"meta l4proto udp queue num {NUMBER} {how}; }}; }}"
    )
    lab.host.run("sh", "-c", f"nft '{rules}'")


@contextmanager
def queue(lab: Lab) -> Iterator[Queue]:
    with socket_in(lab.host, socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as opened:
        yield Queue(opened)


def send(lab: Lab, port: int, word: bytes) -> None:
    """As the first of its connection."""
    lab.receiver("b", 4)
    with socket_in(lab.workloads["a"].ns, socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(word, (lab.workloads["b"].address(), port))


def start(lab: Lab, mode: str) -> None:
    lab.put("GlobalNetworkPolicy", "allow", ALLOW_80)
    lab.start(FELIX_NFTABLESMODE=mode)
    lab.until_in_force(policies=1)


@pytest.mark.parametrize("mode", ["Auto", pytest.param("Disabled", marks=pytest.mark.slow)])
@pytest.mark.parametrize("priority", [BEFORE, pytest.param(BEHIND, marks=pytest.mark.slow)])
def test_both_have_to_let_a_packet_through(two_workloads: Lab, priority: int, mode: str) -> None:
    start(two_workloads, mode)
    theirs(two_workloads, priority)
    with queue(two_workloads) as asked:
        send(two_workloads, ALLOWED, b"accepted")
        asked.decide(asked.take(b"accepted"), ACCEPT)
        assert two_workloads.arrivals("b", b"accepted") == 1
        send(two_workloads, ALLOWED, b"dropped")
        asked.decide(asked.take(b"dropped"), DROP)
        assert two_workloads.arrivals("b", b"dropped") == 0
        send(two_workloads, FORBIDDEN, b"forbidden")
        if priority == BEFORE:
            asked.decide(asked.take(b"forbidden"), ACCEPT)
        assert two_workloads.arrivals("b", b"forbidden") == 0
        assert asked.is_empty  # behind ours it never came there
    send(two_workloads, ALLOWED, b"nobody")  # the program is gone
    assert two_workloads.arrivals("b", b"nobody") == 0
    two_workloads.host.run("nft", "delete", "table", "ip", "theirs")
    theirs(two_workloads, priority, "bypass")
    send(two_workloads, ALLOWED, b"past")
    send(two_workloads, FORBIDDEN, b"barred")
    assert two_workloads.arrivals("b", b"past") == 1 and two_workloads.arrivals("b", b"barred") == 0


@pytest.mark.parametrize("mode", ["Auto", pytest.param("Disabled", marks=pytest.mark.slow)])
def test_a_packet_that_waited_is_judged_by_what_is_in_force_when_it_goes_on(two_workloads: Lab, mode: str) -> None:
    """Before ours: the policy changes while the other program has the packet."""
    start(two_workloads, mode)
    theirs(two_workloads, BEFORE)
    with queue(two_workloads) as asked:
        send(two_workloads, ALLOWED, b"late")
        number = asked.take(b"late")
        two_workloads.put("GlobalNetworkPolicy", "deny", {**DENY_B, "order": 1})
        two_workloads.until_in_force(policies=2)
        asked.decide(number, ACCEPT)
        assert two_workloads.arrivals("b", b"late") == 0
        two_workloads.remove("GlobalNetworkPolicy", "deny")
        two_workloads.until_in_force(policies=1)
        send(two_workloads, ALLOWED, b"after")
        asked.decide(asked.take(b"after"), ACCEPT)
        assert two_workloads.arrivals("b", b"after") == 1
