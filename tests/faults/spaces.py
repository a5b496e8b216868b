"""Network namespaces that come and go as fast as a run needs them.

Rule: the same as ``ip netns del`` and ``ip netns add``, without a process for each, which would take longer than a
call.
"""

from __future__ import annotations

import ctypes
import os
import threading

from tests.netns.namespaces import Namespace

CLONE_NEWNET, MNT_DETACH, MS_BIND = 0x40000000, 2, 4096
_libc = ctypes.CDLL(None, use_errno=True)


def renew(namespace: Namespace) -> None:
    """Another, empty namespace under the same name. Raises OSError."""
    path = namespace.path.encode()
    _libc.umount2(path, MNT_DETACH)  # what is not mounted is gone already
    if os.path.exists(path):
        os.unlink(path)
    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL, 0))
    failures: list[OSError] = []
    maker = threading.Thread(target=_make, args=(path, failures))  # the namespace that it enters ends with it
    maker.start()
    maker.join()
    if failures:
        raise failures[0]


def _make(path: bytes, failures: list[OSError]) -> None:
    if _libc.unshare(CLONE_NEWNET) or _libc.mount(b"/proc/thread-self/ns/net", path, b"none", MS_BIND, None):
        number = ctypes.get_errno()
        failures.append(OSError(number, os.strerror(number), path.decode()))
