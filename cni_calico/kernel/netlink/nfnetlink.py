"""The nfnetlink socket: transactions and dumps of the packet filter (nf_tables) and of connection tracking.

Rule: one Nfnetlink belongs to the network namespace its opener was in and to one thread at a time. A transaction is in
force (``transact`` returns), is not in force (RulesRefused), or its outcome is unknown (RulesUnknown: read it back).

What the kernel's answers to a transaction mean (observed on 6.18, the code is nfnetlink_rcv_batch):

- The last message's acknowledgement says 0 even when an earlier one failed, so success is that acknowledgement and no
  error with any sequence number of the transaction.
- A transaction that is refused as a whole (no permission, no nf_tables) is answered with the sequence number of its
  begin message, and nothing follows.
- Acknowledgements of the end exist only in new kernels, so the last real message asks for one.
"""

from __future__ import annotations

import _socket
import os
from collections.abc import Callable, Iterator, Sequence
from errno import EFBIG, EINTR, ENOBUFS
from struct import Struct

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.errors import DeadlineExceeded, KernelError, RulesRefused, RulesUnknown
from cni_calico.kernel.netlink import wire
from cni_calico.kernel.netlink.socket import NETLINK_CAP_ACK, NETLINK_EXT_ACK, NetlinkSocket
from cni_calico.kernel.netlink.wire import HEADER, NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST

NFTABLES, CTNETLINK = 10, 1  # subsystems, the upper byte of a message's type
COMMIT = faults.declare("nfnetlink.commit")
_NETLINK_NETFILTER = 12
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33
_BEGIN, _END = 0x10, 0x11
_FAMILIES = {"": 0, "inet": 1, "ip": 2, "arp": 3, "ip6": 10}
_FAMILY_NAMES = {number: name for name, number in _FAMILIES.items()}
_GENERAL = Struct(">BBH")  # family, version, resource id
GENERAL_BYTES = _GENERAL.size
_RECEIVE_BYTES = 1 << 18
_RECEIVE_BUFFER = 4 << 20
_DUMP_ATTEMPTS = 20


def general(family: str, resource: int = 0) -> bytes:
    """The header that follows netlink's own in every message of these subsystems."""
    return _GENERAL.pack(_FAMILIES[family], 0, resource)


def family_of(payload: bytes) -> str:
    """The family that a message is about; "" for one that we have no name for."""
    return _FAMILY_NAMES.get(payload[0], "") if payload else ""


class FilterMessage:
    """One message of a transaction: ``kind`` with its subsystem, ``operation`` is the number of the operation it
    belongs to.
    """

    __slots__ = ("body", "flags", "kind", "operation")

    def __init__(self, kind: int, flags: int, body: bytes, operation: int = 0) -> None:
        self.kind = kind
        self.flags = flags
        self.body = body
        self.operation = operation


class Nfnetlink(NetlinkSocket):
    """A NETLINK_NETFILTER socket."""

    def __init__(self) -> None:
        super().__init__(_NETLINK_NETFILTER, (NETLINK_CAP_ACK, NETLINK_EXT_ACK), _RECEIVE_BYTES)
        self._force(_SO_RCVBUFFORCE, _RECEIVE_BUFFER)
        self._socket.bind((0, 0))
        self._sendable = 0

    @property
    def port(self) -> int:
        """The number by which notifications name this socket as the cause of a change."""
        bound: tuple[int, int] = self._socket.getsockname()
        return bound[0]

    # -- transactions -------------------------------------------------------------------------------------------------

    def transact(
        self, messages: Sequence[FilterMessage], doing: str, deadline: Deadline, *, commit: bool = True
    ) -> None:
        """Send all messages of subsystem NFTABLES as one transaction. Raises RulesRefused, RulesUnknown,
        DeadlineExceeded.

        DeadlineExceeded means that nothing was sent. Without ``commit`` the kernel carries everything out and then
        undoes it, because the transaction's end is missing: that asks whether it would be accepted (``nft --check``).
        """
        if not messages:
            return
        deadline.require(doing)
        try:
            faults.before(COMMIT)
        except faults.Injected as e:
            raise RulesRefused(f"cannot {doing}: {e}", errno=e.errno or 0) from e
        self._drain()
        first, data = self._batch(messages, commit)
        try:
            self._send_all(data, doing)
        except OSError as e:
            raise RulesRefused(f"cannot {doing}: {e.strerror}", errno=e.errno or 0) from e
        self._await_commit(messages, first, doing, deadline)
        try:
            faults.after(COMMIT)
        except faults.Injected as e:
            raise RulesUnknown(f"cannot {doing}: {e}", errno=e.errno or 0) from e

    def _batch(self, messages: Sequence[FilterMessage], commit: bool) -> tuple[int, bytes]:
        """(sequence number of the begin message, the bytes); the messages' numbers follow it, the end's comes last."""
        first = self._reserve(len(messages) + 2)
        parts = [_framed(_BEGIN, NLM_F_REQUEST, first, _GENERAL.pack(0, 0, NFTABLES))]
        last = len(messages) - 1
        for i, message in enumerate(messages):
            flags = NLM_F_REQUEST | message.flags | (NLM_F_ACK if i == last else 0)
            parts.append(_framed(message.kind, flags, first + 1 + i, message.body))
        if commit:
            parts.append(_framed(_END, NLM_F_REQUEST, first + 1 + len(messages), _GENERAL.pack(0, 0, NFTABLES)))
        return first, b"".join(parts)

    def _await_commit(self, messages: Sequence[FilterMessage], first: int, doing: str, deadline: Deadline) -> None:
        last = first + len(messages)
        errors: dict[int, tuple[int, str]] = {}
        try:
            for message in self._answers(first, last + 1, doing, deadline):
                if message.kind != wire.NLMSG_ERROR:
                    continue
                errno, text = wire.parse_acknowledgement(message)
                if errno:
                    errors.setdefault(message.seq, (errno, text))
                if message.seq == last or (message.seq == first and errno):
                    break
        except (KernelError, DeadlineExceeded) as e:
            if not errors:  # one error is enough to know that nothing is in force
                raise RulesUnknown(f"cannot {doing}: {e}", errno=e.errno if isinstance(e, KernelError) else 0) from e
        if errors:
            seq = min(errors)
            errno, text = errors[seq]
            index = -1 if not first < seq <= last else messages[seq - first - 1].operation
            said = f" (kernel: {text})" if text else ""
            there = {at: found[0] for at, found in errors.items() if first < at <= last}
            others = {messages[at - first - 1].operation: found for at, found in there.items()}
            others.pop(index, None)
            refused = RulesRefused(f"cannot {doing}: {os.strerror(errno)}{said}", errno=errno, index=index)
            refused.others = tuple(sorted(others.items()))
            raise refused

    # -- dumps and single requests ------------------------------------------------------------------------------------

    def dump(
        self, kind: int, body: bytes, doing: str, deadline: Deadline, most_bytes: int | None = None
    ) -> list[bytes]:
        """The payloads of a list that is consistent in itself. Raises KernelError, DeadlineExceeded, and EFBIG
        once there are more than ``most_bytes``. With such a bound this socket can only be closed after an error.
        """
        for _ in range(_DUMP_ATTEMPTS):
            deadline.require(doing)
            seq = self._reserve(1)
            self._send(_framed(kind, NLM_F_REQUEST | NLM_F_DUMP, seq, body), doing)
            try:
                replies = self._read_list(seq, doing, deadline, most_bytes)
            except KernelError as e:
                if e.errno not in (EINTR, ENOBUFS):
                    raise
                self._drain()
                continue
            if replies is not None:
                return replies
        raise KernelError(f"cannot {doing}: it kept changing while it was read", errno=EINTR)

    def dump_each(
        self, kind: int, body: bytes, receive: Callable[[bytes], None], doing: str, deadline: Deadline
    ) -> None:
        """Call ``receive`` for each payload of a list as it arrives, keeping none of them. Raises KernelError.

        EINTR: the list changed while it was read, and what was received may not be all of it.
        """
        deadline.require(doing)
        self._drain()
        seq = self._reserve(1)
        self._send(_framed(kind, NLM_F_REQUEST | NLM_F_DUMP, seq, body), doing)
        if not self._receive_list(seq, receive, doing, deadline):
            raise KernelError(f"cannot {doing}: it changed while it was read", errno=EINTR)

    def dump_in_parts(self, kind: int, body: bytes, doing: str, deadline: Deadline) -> Iterator[list[bytes]]:
        """The payloads of a list, datagram by datagram; do not use this socket for anything else before the end.

        What changes during the reading may or may not be included. Raises KernelError, DeadlineExceeded.
        """
        deadline.require(doing)
        self._drain()
        seq = self._reserve(1)
        self._send(_framed(kind, NLM_F_REQUEST | NLM_F_DUMP, seq, body), doing)
        while True:
            part: list[bytes] = []
            for message in wire.split_messages(self._receive(doing, deadline)):
                if message.seq != seq or message.kind == wire.NLMSG_NOOP:
                    continue
                if message.kind in (wire.NLMSG_DONE, wire.NLMSG_ERROR):
                    errno, text = wire.parse_acknowledgement(message)
                    if errno not in (0, EINTR):
                        raise _refused(doing, errno, text)
                    yield part
                    return
                part.append(message.payload)
            yield part

    def request(self, kind: int, flags: int, body: bytes, doing: str, deadline: Deadline) -> list[bytes]:
        """Send one request outside of transactions; returns the payloads of its answers. Raises KernelError."""
        deadline.require(doing)
        self._drain()
        seq = self._reserve(1)
        self._send(_framed(kind, NLM_F_REQUEST | NLM_F_ACK | flags, seq, body), doing)
        replies: list[bytes] = []
        for message in self._answers(seq, seq, doing, deadline):
            if message.kind != wire.NLMSG_ERROR:
                replies.append(message.payload)
                continue
            errno, text = wire.parse_acknowledgement(message)
            if errno:
                raise _refused(doing, errno, text)
            break
        return replies

    def _read_list(self, seq: int, doing: str, deadline: Deadline, most_bytes: int | None) -> list[bytes] | None:
        """None if the list changed while it was read."""
        replies: list[bytes] = []
        left = float("inf") if most_bytes is None else most_bytes

        def receive(payload: bytes) -> None:
            nonlocal left
            left -= len(payload)
            if most_bytes is not None:
                deadline.require(doing)  # a long list always has a next part, so nothing waits
            if left < 0:
                raise KernelError(f"cannot {doing}: there is far more in it than there should be", errno=EFBIG)
            replies.append(payload)

        return replies if self._receive_list(seq, receive, doing, deadline) else None

    def _receive_list(self, seq: int, receive: Callable[[bytes], None], doing: str, deadline: Deadline) -> bool:
        """Whether the list is consistent in itself."""
        whole = True
        for message in self._answers(seq, seq, doing, deadline):
            whole = whole and not message.flags & NLM_F_DUMP_INTR
            if message.kind not in (wire.NLMSG_DONE, wire.NLMSG_ERROR):
                receive(message.payload)
                continue
            errno, text = wire.parse_acknowledgement(message)
            if errno == EINTR:
                return False
            if errno:
                raise _refused(doing, errno, text)
            break
        return whole

    # -- bytes --------------------------------------------------------------------------------------------------------

    def _send(self, data: bytes, doing: str) -> None:
        try:
            self._send_all(data, doing)
        except OSError as e:
            raise KernelError(f"cannot {doing}: {e.strerror}", errno=e.errno or 0) from e

    def _send_all(self, data: bytes, doing: str) -> None:
        if len(data) > self._sendable:
            self._sendable = max(1 << 17, 2 * len(data))
            self._force(_SO_SNDBUFFORCE, self._sendable)
        self._socket.sendto(data, (0, 0))

    def _force(self, option: int, size: int) -> None:
        try:
            self._socket.setsockopt(_socket.SOL_SOCKET, option, size)
        except OSError:
            pass  # no CAP_NET_ADMIN: the operation that needs a larger buffer reports it

    def _drain(self) -> None:
        """Discard what is left of an exchange that failed."""
        while True:
            try:
                self._socket.recv(_RECEIVE_BYTES)
            except OSError as e:
                if e.errno == ENOBUFS:
                    continue
                return


def _framed(kind: int, flags: int, seq: int, body: bytes) -> bytes:
    return HEADER.pack(HEADER.size + len(body), kind, flags, seq, 0) + body


def _refused(doing: str, errno: int, text: str) -> KernelError:
    said = f" (kernel: {text})" if text else ""
    return KernelError(f"cannot {doing}: {os.strerror(errno)}{said}", errno=errno)
