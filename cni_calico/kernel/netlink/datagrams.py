"""Datagrams of a socket, many of which are taken with one call.

Rule: nothing waits, and nothing is allocated while they are read: each has its place in a buffer, and stays there until
the next are read. One that is longer than a place is cut off there, and its length says so.
"""

from __future__ import annotations

import ctypes
import os
from struct import Struct

_MSG_TRUNC, _MSG_DONTWAIT = 0x20, 0x40
_recvmmsg = ctypes.CDLL(None, use_errno=True).recvmmsg
_recvmmsg.argtypes = ctypes.c_int, ctypes.c_void_p, ctypes.c_uint, ctypes.c_int, ctypes.c_void_p


class _DatagramPlace(ctypes.Structure):
    """C's ``struct iovec``."""

    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


class _DatagramHeader(ctypes.Structure):
    """C's ``struct msghdr``."""

    _fields_ = (
        ("name", ctypes.c_void_p),
        ("name_bytes", ctypes.c_uint32),
        ("places", ctypes.c_void_p),
        ("place_count", ctypes.c_size_t),
        ("control", ctypes.c_void_p),
        ("control_bytes", ctypes.c_size_t),
        ("flags", ctypes.c_int),
    )


class _Received(ctypes.Structure):
    """C's ``struct mmsghdr``."""

    _fields_ = (("header", _DatagramHeader), ("length", ctypes.c_uint))


_AT, _BYTES = _Received.length.offset, ctypes.sizeof(_Received)
_LENGTH = Struct(f"={_AT}xI{_BYTES - _AT - 4}x")


class Datagrams:
    """Room for ``count`` of them, of ``size`` bytes each: ``data`` has them one after the other."""

    def __init__(self, count: int, size: int) -> None:
        self.count, self.size = count, size
        self.data = bytearray(count * size)
        self._taken = (ctypes.c_char * len(self.data)).from_buffer(self.data)
        begin = ctypes.addressof(self._taken)
        self._places = (_DatagramPlace * count)(*(_DatagramPlace(begin + i * size, size) for i in range(count)))
        first = ctypes.addressof(self._places)
        step = ctypes.sizeof(_DatagramPlace)
        self._received = (_Received * count)(
            *(_Received(_DatagramHeader(None, 0, first + i * step, 1)) for i in range(count))
        )
        self._lengths = memoryview(self._received).cast("B")

    def receive(self, descriptor: int, most: int) -> list[int]:
        """The length of each that has arrived, so many at most. Raises OSError (BlockingIOError: there is none)."""
        received = _recvmmsg(descriptor, self._received, min(most, self.count), _MSG_DONTWAIT | _MSG_TRUNC, None)
        if received < 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))
        return [length for (length,) in _LENGTH.iter_unpack(self._lengths[: received * _BYTES])]
