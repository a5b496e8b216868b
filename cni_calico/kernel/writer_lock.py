"""Whether the process that wrote a file still lives: it holds a lock on the file until it ends, however it ends.

Rule: nobody who may only read the file can make it look as if its writer lived, or keep the writer from writing: asking
takes no lock, and the lock is there before the file has its name. It is one of an open file description
(fcntl_locking(2), F_OFD_SETLK), which every process that sees the file sees, in other containers too, and also this
process itself.
"""

from __future__ import annotations

import os
from _struct import pack, unpack_from
from fcntl import F_OFD_GETLK, F_OFD_SETLK, F_RDLCK, F_UNLCK, F_WRLCK, fcntl

_FLOCK = "hhqqi4x"  # struct flock: type, whence, start, length, process ID; length 0 is the whole file


def hold_lock(fd: int) -> int:
    """Lock a file that is open for writing and has no name yet that others know; returns another descriptor of it. The
    lock stays until that one is closed. Raises OSError.
    """
    held = os.dup(fd)
    try:
        fcntl(held, F_OFD_SETLK, pack(_FLOCK, F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except BaseException:
        os.close(held)
        raise
    return held


def is_held(fd: int) -> bool:
    """Whether the writer of an open file still holds its lock. Raises OSError."""
    answer = fcntl(fd, F_OFD_GETLK, pack(_FLOCK, F_RDLCK, os.SEEK_SET, 0, 0, 0))
    return bool(unpack_from("h", answer)[0] != F_UNLCK)
