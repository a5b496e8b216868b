"""Which boot of this host it is: whatever an attachment has in the kernel ends with it.

Rule: the kernel's answer, the same in every namespace, read once in a process. An ADD imports this; it imports nothing
that an ADD has not imported already.
"""

from __future__ import annotations

import os

BOOT = "cni-calico.io/boot-id"  # the annotation of an endpoint
BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LENGTH = 36

_read: list[str] = []


def read_boot_id() -> str:
    """A UUID; "" if this host does not tell."""
    if not _read:
        try:
            fd = os.open(BOOT_ID, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _read.append(os.read(fd, _LENGTH).decode("ascii", "replace").strip())
            finally:
                os.close(fd)
        except OSError:
            _read.append("")
    return _read[0]
