"""Which program has a UDP port of this network namespace, for messages about ports that are in use.

Rule: what cannot be read says nothing; it is asked only after a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

_TABLES = ("/proc/net/udp", "/proc/net/udp6")


def udp_holder(port: int) -> str:
    """Its name and process, "" if that is not known: the kernel's own sockets belong to nobody."""
    inodes = set(_inodes(port))
    if not inodes:
        return ""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with os.scandir(f"/proc/{pid}/fd") as entries:
                if not any(os.readlink(entry.path) in wanted for entry in entries):
                    continue
            with open(f"/proc/{pid}/comm") as file:
                return f"{file.read().strip()} (process {pid})"
        except OSError:  # it has ended, or is not ours to look at
            continue
    return ""


def _inodes(port: int) -> Iterator[str]:
    for path in _TABLES:
        try:
            with open(path) as file:
                lines = file.readlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if int(fields[1].rpartition(":")[2], 16) == port and fields[9] != "0":
                yield fields[9]
