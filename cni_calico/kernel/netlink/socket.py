"""What netlink sockets share, and the rtnetlink one: it sends the requests of links.py, addresses.py and routes.py,
several at a time.

Rule: one Rtnl belongs to one network namespace (the one its opener was in) and one thread at a time; every error of the
kernel becomes a KernelError with the kernel's own words. It uses ``_socket`` because ``socket`` takes 6 ms to import.

The kernel works through the messages of one send in their order and reports every failure, so only the last message
asks for an acknowledgement: when that has arrived, everything before it has been done or has failed.
"""

from __future__ import annotations

import _socket
import os
from collections.abc import Iterator, Sequence
from errno import EAGAIN, EINTR, ENOBUFS, ENODEV
from typing import NamedTuple, Self

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError, LinkGone
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.wire import HEADER, NLM_F_ACK, NLM_F_DUMP_INTR, NLM_F_REQUEST, Message, Request

_SOL_NETLINK = 270
NETLINK_CAP_ACK, NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK = 10, 11, 12
_RECEIVE_BYTES = 32768  # the largest part of a dump that the kernel makes
_DUMP_ATTEMPTS = 10
_SEQ_MAX = 0x7FFFFFFF


class NetlinkOutcome(NamedTuple):
    """The outcome of one request: the payloads of its answers, or its error."""

    replies: list[bytes]
    error: KernelError | None


class NetlinkSocket:
    """A socket of the namespace the opening thread is in; ``receive_bytes`` is the largest datagram that it takes."""

    def __init__(self, family: int, options: Sequence[int], receive_bytes: int) -> None:
        try:
            self._socket = _socket.socket(_socket.AF_NETLINK, _socket.SOCK_RAW, family)
            for option in options:
                try:
                    self._socket.setsockopt(_SOL_NETLINK, option, 1)
                except OSError:
                    pass  # an older kernel: no texts (4.12), unfiltered dumps (4.20); callers filter again anyway
            self._socket.setblocking(False)
        except OSError as e:
            raise KernelError(f"cannot open a netlink socket: {e.strerror}", errno=e.errno or 0) from e
        self._buffer = bytearray(receive_bytes)
        self._seq = 0

    def close(self) -> None:
        self._socket.close()

    def fileno(self) -> int:
        """To wait for what arrives."""
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _reserve(self, count: int) -> int:
        """Reserve ``count`` consecutive sequence numbers; returns the first."""
        if self._seq > _SEQ_MAX - count:
            self._seq = 0
        first = self._seq + 1
        self._seq += count
        return first

    def _answers(self, first: int, last: int, doing: str, deadline: Deadline) -> Iterator[Message]:
        """Yields messages from the kernel with these sequence numbers, without end; others are leftovers of a failed
        exchange.
        """
        while True:
            for message in wire.split_messages(self._receive(doing, deadline)):
                if first <= message.seq <= last and message.kind != wire.NLMSG_NOOP:
                    yield message

    def _receive(self, doing: str, deadline: Deadline) -> bytes:
        """The kernel's next datagram. Raises KernelError, DeadlineExceeded."""
        while True:
            try:
                size, sender = self._socket.recvfrom_into(self._buffer, len(self._buffer), _socket.MSG_TRUNC)
            except OSError as e:
                if e.errno != EAGAIN:
                    lost = "; answers were lost" if e.errno == ENOBUFS else ""
                    raise KernelError(f"cannot {doing}: {e.strerror}{lost}", errno=e.errno or 0) from e
                self._wait(doing, deadline)
                continue
            if size > len(self._buffer):
                raise wire.malformed("a netlink answer", f"{size} bytes are more than fit")
            if sender[0] == 0:  # from the kernel; any process may send to this socket
                return bytes(memoryview(self._buffer)[:size])

    def _wait(self, doing: str, deadline: Deadline) -> None:
        from select import POLLIN, poll

        poller = poll()
        poller.register(self._socket.fileno(), POLLIN)
        if not poller.poll(deadline.remaining_s() * 1000):
            raise DeadlineExceeded(f"cannot {doing}: the kernel did not answer in time")


class RequestSocket(NetlinkSocket):
    """Sends requests, each with its answers."""

    def one(self, request: Request, deadline: Deadline) -> bytes:
        """The first (for a single object: only) answer to a read; b"" for a request that only changes something."""
        replies = self.run((request,), deadline)[0]
        return replies[0] if replies else b""

    def run(self, requests: Sequence[Request], deadline: Deadline) -> list[list[bytes]]:
        """Carry out all, in order; returns the answers of each. Raises the first error after all were tried."""
        outcomes = self.submit(requests, deadline)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        return [outcome.replies for outcome in outcomes]

    def submit(self, requests: Sequence[Request], deadline: Deadline) -> list[NetlinkOutcome]:
        """Carry out all, in order and in one send; a failure does not prevent later ones from being tried.

        A dump must be sent alone. Raises DeadlineExceeded, and KernelError if the exchange itself failed.
        """
        deadline.require(requests[0].doing)
        if requests[0].is_dump:
            return [NetlinkOutcome(self._dump(requests[0], deadline), None)]
        allowed, injected = _reach_before(requests)
        outcomes = self._exchange(allowed, deadline) if allowed else []
        if injected is not None:
            outcomes.append(injected)
            return outcomes
        for i, request in enumerate(requests):
            if request.point:  # even if it was refused: the answer to that can be lost as well
                try:
                    faults.after(request.point)
                except faults.Injected as e:
                    outcomes[i] = NetlinkOutcome([], _translated(request, e.errno, "", e))
        return outcomes

    def dump(self, request: Request, deadline: Deadline) -> list[bytes]:
        """All answers to a list request."""
        deadline.require(request.doing)
        return self._dump(request, deadline)

    def _exchange(self, requests: Sequence[Request], deadline: Deadline) -> list[NetlinkOutcome]:
        last = self._send(requests, NLM_F_ACK)
        first = last - len(requests) + 1
        outcomes = [NetlinkOutcome([], None) for _ in requests]
        for message in self._answers(first, last, requests[0].doing, deadline):
            request = requests[message.seq - first]
            if message.kind != wire.NLMSG_ERROR:
                outcomes[message.seq - first].replies.append(message.payload)
                continue
            errno, text = wire.parse_acknowledgement(message)
            if errno:
                outcomes[message.seq - first] = NetlinkOutcome([], _translated(request, errno, text))
            if message.seq == last:
                break
        return outcomes

    def _dump(self, request: Request, deadline: Deadline) -> list[bytes]:
        for _ in range(_DUMP_ATTEMPTS):
            self._send((request,), 0)
            replies = self._read_list(request, deadline)
            if replies is not None:
                return replies
            deadline.require(request.doing)
        raise KernelError(f"cannot {request.doing}: it kept changing while it was read", errno=EINTR)

    def _read_list(self, request: Request, deadline: Deadline) -> list[bytes] | None:
        """All answers to the list request just sent; None if they are not one consistent list."""
        replies: list[bytes] = []
        whole = True
        while True:
            try:
                for message in self._answers(self._seq, self._seq, request.doing, deadline):
                    whole = whole and not message.flags & NLM_F_DUMP_INTR
                    if message.kind not in (wire.NLMSG_DONE, wire.NLMSG_ERROR):
                        replies.append(message.payload)
                        continue
                    errno, text = wire.parse_acknowledgement(message)
                    if errno:
                        raise _translated(request, errno, text)
                    return replies if whole else None
            except KernelError as e:
                if e.errno != ENOBUFS:
                    raise
                whole = False  # read to the list's end: before that the kernel refuses a new list

    def _send(self, requests: Sequence[Request], last_flags: int) -> int:
        """The sequence number of the last one; the others' come right before it."""
        parts, last = [], len(requests) - 1
        first = self._reserve(len(requests))
        for i, request in enumerate(requests):
            flags = NLM_F_REQUEST | request.flags | (last_flags if i == last else 0)
            body = request.body
            parts.append(HEADER.pack(HEADER.size + len(body), request.kind, flags, first + i, 0) + body)
        try:
            self._socket.sendto(b"".join(parts), (0, 0))
        except OSError as e:
            raise _translated(requests[0], e.errno, "", e) from e
        return self._seq


class Rtnl(RequestSocket):
    """A NETLINK_ROUTE socket."""

    def __init__(self) -> None:
        options = (NETLINK_CAP_ACK, NETLINK_EXT_ACK, _NETLINK_GET_STRICT_CHK)
        super().__init__(_socket.NETLINK_ROUTE, options, _RECEIVE_BYTES)


def _reach_before(requests: Sequence[Request]) -> tuple[Sequence[Request], NetlinkOutcome | None]:
    """The requests that may be sent, and the outcome of the one that a test makes fail."""
    for i, request in enumerate(requests):
        if request.point:
            try:
                faults.before(request.point)
            except faults.Injected as e:
                return requests[:i], NetlinkOutcome([], _translated(request, e.errno, "", e))
    return requests, None


def _translated(request: Request, errno: int | None, kernel_text: str, cause: OSError | None = None) -> KernelError:
    number = errno or 0
    reason = str(cause) if isinstance(cause, faults.Injected) else os.strerror(number)
    if kernel_text:
        reason += f" (kernel: {kernel_text})"
    kind = LinkGone if number == ENODEV else KernelError
    error = kind(f"cannot {request.doing}: {reason}", errno=number)
    error.__cause__ = cause
    return error
