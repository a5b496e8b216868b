"""How many file descriptors this process can still open.

Rule: the limit is read each time, because prlimit(1) may lower it while the process runs; descriptors that are open
already stay open then.
"""

from __future__ import annotations

import os
import resource
from fcntl import F_DUPFD_CLOEXEC, fcntl

WANTED = 16384
MANY = 1024


def raise_limit(wanted: int = WANTED) -> None:
    """Raise the usual soft limit, which is meant for programs that use select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def are_left(count: int) -> bool:
    """Whether this many more can be opened now."""
    opened: list[int] = []
    try:
        opened.append(os.open("/", os.O_PATH | os.O_CLOEXEC))
        limit = _limit()
        if limit < MANY or not _is_free(limit // 2, opened):
            opened += [os.dup(opened[0]) for _ in range(count - len(opened))]
        return True
    except OSError:
        return False
    finally:
        for fd in opened:
            os.close(fd)


def _is_free(number: int, opened: list[int]) -> bool:
    """Whether this descriptor is free. The kernel gives out the lowest free number first, so a free one far up
    means that enough are left.
    """
    opened.append(fcntl(opened[0], F_DUPFD_CLOEXEC, number))
    return opened[-1] == number


def _limit() -> int:
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return WANTED if soft == resource.RLIM_INFINITY else soft
