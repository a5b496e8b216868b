"""Whether the kernel leaves the checksums of what a device sends to the device: read and set, as ``ethtool -K DEV tx``.

Rule: a device that is gone, or cannot do it, says None. Source: linux/ethtool.h.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import socket
import struct
from errno import EINVAL, ENODEV, EOPNOTSUPP

from cni_calico.errors import KernelError

_SIOCETHTOOL, _GTXCSUM, _STXCSUM = 0x8946, 0x16, 0x17
_NONE = (ENODEV, EOPNOTSUPP, EINVAL)
_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
_LAST_BROKEN = (5, 7, 0)


class _EthtoolValue(ctypes.Structure):
    _fields_ = (("cmd", ctypes.c_uint32), ("data", ctypes.c_uint32))


def is_checksum_broken(release: str) -> bool:
    """Whether a kernel miscomputes the outer checksum of a tunnelled packet whose source port it has changed: upstream
    takes all up to 5.7.0 for such, whatever a distribution has mended. A release that says no version is none.
    """
    found = _VERSION.match(release)
    return found is not None and tuple(int(part or 0) for part in found.groups()) <= _LAST_BROKEN


def is_this_checksum_broken() -> bool:
    """The same of the running kernel."""
    return is_checksum_broken(os.uname().release)


def read_tx_checksum(device: str) -> bool | None:
    """None: there is no such device, or it knows no such thing. Raises KernelError."""
    found = _call(device, _GTXCSUM)
    return None if found is None else bool(found)


def set_tx_checksum(device: str, *, on: bool) -> bool:
    """Returns whether it could be set. Raises KernelError."""
    return _call(device, _STXCSUM, int(on)) is not None


def _call(device: str, command: int, data: int = 0) -> int | None:
    value = _EthtoolValue(command, data)
    request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
        except OSError as e:
            if e.errno in _NONE:
                return None
            raise KernelError(f"cannot change the checksums of {device}: {e.strerror}", errno=e.errno or 0) from e
    return int(value.data)
