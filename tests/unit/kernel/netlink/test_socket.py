"""The conversation on a netlink socket, with a kernel that answers what a test wants."""

from __future__ import annotations

import struct
import threading
from errno import EAGAIN, EBUSY, EEXIST, ENOBUFS, ENODEV
from ipaddress import ip_address
from typing import Any

import pytest

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError, LinkGone
from cni_calico.kernel.netlink import addresses, links, wire
from cni_calico.kernel.netlink import socket as rtnl
from cni_calico.kernel.netlink.socket import Rtnl

CHANGE = links.set_link(1, "eth0", up=True)
READ = links.get_link("eth0")
LIST = addresses.list_addresses(0)
KERNEL, STRANGER = (0, 0), (4711, 0)
SHORT_S = 0.2


class Scripted:
    """A socket whose answers are given beforehand; "seq" stands for the number of the last message sent."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.sent: list[list[wire.Message]] = []

    def sendto(self, data: bytes, address: object) -> None:
        self.sent.append(list(wire.split_messages(data)))

    def recvfrom_into(self, buffer: bytearray, size: int, flags: int) -> tuple[int, tuple[int, int]]:
        if not self.answers:
            raise BlockingIOError(EAGAIN, "nothing")
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        sender, *messages = answer
        data = b"".join(self._encoded(*message) for message in messages)
        buffer[: len(data)] = data
        return len(data), sender

    def _encoded(self, kind: int, payload: bytes, back: int = 0, flags: int = 0) -> bytes:
        header = wire.HEADER.pack(16 + len(payload), kind, flags, self.sent[-1][-1].seq - back, 0)
        return header + payload + bytes(-len(payload) % 4)

    def fileno(self) -> int:
        return self.real.fileno()

    real: Any = None


def ack(errno: int = 0, back: int = 0) -> tuple[int, bytes, int, int]:
    return (wire.NLMSG_ERROR, struct.pack("=i", -errno) + bytes(16), back, wire.NLM_F_CAPPED)


def done(flags: int = 0) -> tuple[int, bytes, int, int]:
    return (wire.NLMSG_DONE, bytes(4), 0, flags)


def scripted(*answers: Any) -> tuple[Rtnl, Scripted]:
    door = Rtnl()
    socket = Scripted(*answers)
    socket.real = door._socket
    door._socket = socket
    return door, socket


def shortly() -> Deadline:
    return Deadline.after(SHORT_S)


def test_one_send_and_one_acknowledgement() -> None:
    door, socket = scripted((KERNEL, (16, b"payload", 1)), (KERNEL, ack()))
    outcomes = door.submit((CHANGE, READ, CHANGE), shortly())
    assert [(outcome.replies, outcome.error) for outcome in outcomes] == [([], None), ([b"payload"], None), ([], None)]
    assert [message.flags & wire.NLM_F_ACK for message in socket.sent[0]] == [0, 0, wire.NLM_F_ACK]
    assert len(socket.sent) == 1


def test_errors_belong_to_their_requests() -> None:
    door, _ = scripted((KERNEL, ack(EEXIST, 2)), (KERNEL, ack(ENODEV, 1), ack()))
    errors = [outcome.error for outcome in door.submit((CHANGE,) * 3, shortly())]
    assert [(type(error), getattr(error, "errno", 0)) for error in errors] == [
        (KernelError, EEXIST),
        (LinkGone, ENODEV),
        (type(None), 0),
    ]
    assert str(errors[0]) == "cannot set interface eth0: File exists"


def test_run_raises_the_first_error() -> None:
    door, _ = scripted((KERNEL, ack(EBUSY, 1), ack(EEXIST)))
    with pytest.raises(KernelError, match="busy"):
        door.run((CHANGE, CHANGE), shortly())


def test_leftovers_and_strangers_are_not_listened_to() -> None:
    door, _ = scripted(
        (KERNEL, ack(EEXIST, 7)),  # of an earlier exchange that was given up
        (STRANGER, ack(EEXIST)),
        (KERNEL, ack()),
    )
    door._seq = 100
    assert door.submit((CHANGE,), shortly())[0].error is None


def test_a_changing_list_is_read_again() -> None:
    interrupted = (20, b"first", 0, wire.NLM_F_DUMP_INTR)
    door, socket = scripted((KERNEL, interrupted), (KERNEL, done()), (KERNEL, (20, b"second")), (KERNEL, done()))
    assert door.dump(LIST, shortly()) == [b"second"]
    assert len(socket.sent) == 2


def test_a_list_that_never_stands_still() -> None:
    door, socket = scripted(*[(KERNEL, done(wire.NLM_F_DUMP_INTR))] * 100)
    with pytest.raises(KernelError, match="it kept changing"):
        door.dump(LIST, shortly())
    assert len(socket.sent) == rtnl._DUMP_ATTEMPTS


def test_an_error_ends_a_list() -> None:
    door, _ = scripted((KERNEL, ack(EBUSY)))
    with pytest.raises(KernelError, match="cannot list addresses: Device or resource busy"):
        door.dump(LIST, shortly())


def test_lost_answers_to_a_change_are_an_error() -> None:
    door, _ = scripted(OSError(ENOBUFS, "No buffer space available"))
    with pytest.raises(KernelError, match="answers were lost") as caught:
        door.submit((CHANGE,), shortly())
    assert caught.value.errno == ENOBUFS


def test_lost_answers_to_a_list_are_read_again() -> None:
    door, socket = scripted(
        OSError(ENOBUFS, "No buffer space available"),
        (KERNEL, (20, b"rest"), done()),
        (KERNEL, (20, b"all"), done()),
    )
    assert door.dump(LIST, shortly()) == [b"all"]
    assert len(socket.sent) == 2


@pytest.mark.parametrize("request_", [CHANGE, LIST])
def test_silence_ends_at_the_deadline(request_: wire.Request) -> None:
    door, _ = scripted()
    with pytest.raises(DeadlineExceeded, match="the kernel did not answer in time"):
        door.submit((request_,), shortly())


def test_nothing_is_sent_after_the_deadline() -> None:
    door, socket = scripted()
    with pytest.raises(DeadlineExceeded, match="cannot set interface eth0"):
        door.submit((CHANGE,), Deadline.after(-1))
    assert socket.sent == []


def test_an_answer_that_does_not_fit() -> None:
    door, socket = scripted()
    socket.recvfrom_into = lambda *_: (rtnl._RECEIVE_BYTES + 1, KERNEL)
    with pytest.raises(KernelError, match="more than fit"):
        door.submit((READ,), shortly())


@pytest.mark.parametrize(
    ("fault", "sent", "failed"),
    [
        ("netlink.link-set:before:1:fail", 0, [True]),
        ("netlink.link-set:before:3:fail", 2, [False, False, True]),
        ("netlink.link-set:after:2:fail", 3, [False, True, False]),
    ],
)
def test_faults_of_one_request_among_several(fault: str, sent: int, failed: list[bool]) -> None:
    """What stands before a failing one has been carried out; a lost answer is one of one request."""
    door, socket = scripted((KERNEL, ack()))
    faults.install(faults.FaultPlan(fault))
    try:
        outcomes = door.submit((CHANGE,) * 3, shortly())
    finally:
        faults.install(None)
    assert [outcome.error is not None for outcome in outcomes] == failed
    assert sum(len(messages) for messages in socket.sent) == sent


def test_the_real_kernel() -> None:
    with Rtnl() as door:
        lo = links.decode_link(door.one(links.get_link("lo"), Deadline.after(5)))
        assert (lo.ifindex, lo.name, lo.mac) == (1, "lo", bytes(6))
        assert lo in [links.decode_link(reply) for reply in door.dump(links.list_links(), Deadline.after(5))]
        with pytest.raises(LinkGone, match="cannot read interface nosuch: No such device"):
            door.one(links.get_link("nosuch"), Deadline.after(5))


def test_sequence_numbers_start_again() -> None:
    with Rtnl() as door:
        door._seq = 0x7FFFFFFE
        for _ in range(4):
            assert links.decode_link(door.run((READ_LO, READ_LO), Deadline.after(5))[1][0]).name == "lo"
            assert 0 < door._seq <= 0x7FFFFFFF


READ_LO = links.get_link("lo")


def test_one_socket_per_thread_side_by_side() -> None:
    found: list[str] = []

    def work() -> None:
        with Rtnl() as door:
            for _ in range(50):
                found.append(links.decode_link(door.one(READ_LO, Deadline.after(5))).name)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == ["lo"] * 200


def test_an_address_of_no_interface() -> None:
    request = addresses.delete_address(0x7FFFFFF0, "nosuch", ip_address("10.0.0.1"))
    with Rtnl() as door, pytest.raises(LinkGone, match=r"cannot remove address 10\.0\.0\.1 from nosuch"):
        door.run((request,), Deadline.after(5))
