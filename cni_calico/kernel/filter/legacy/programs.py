"""Legacy iptables and IP sets as the policies' packet filter: whole scripts through their programs, read as text.

Rule: a script that is refused says at which line. What may go well the next time (the lock, too little memory) has an
errno that says so; everything else is EINVAL.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import struct
from dataclasses import dataclass
from errno import EAGAIN, EINVAL, ENOENT

from cni_calico import faults
from cni_calico.deadline import Deadline
from cni_calico.doing import Doing
from cni_calico.errors import KernelError, RulesRefused
from cni_calico.kernel.filter.iptables import LOCK_S, find_iptables
from cni_calico.kernel.filter.programs import ENVIRONMENT, find_program
from cni_calico.kernel.process import Completed, run

APPLY = faults.declare("legacy.apply")
APPLY_SETS = faults.declare("legacy.sets")
_LIMIT_BYTES = 512 << 20  # as much as a million members need
_AT_LINE = re.compile(r"(?:at line:|in line|line) ?(\d+)")
_AGAIN = ("xtables lock", "Resource temporarily unavailable", "Cannot allocate memory", "No buffer space")
_RESOURCE_PROBLEM = 4
_SETS = "/sys/module/ip_set"
_IPV6 = "/proc/thread-self/net/if_inet6"
_GET_INFO, _INFO = 64, struct.Struct("=32s13I")
_NAMES = {4: "/proc/thread-self/net/ip_tables_names", 6: "/proc/net/ip6_tables_names"}


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """``line``: from 1; 0: unknown."""

    why: str
    line: int
    errno: int


def missing_programs() -> str:
    """What has to be installed, "" if nothing."""
    wanted = {f"{'ip' if family == 4 else 'ip6'}tables-legacy-restore": (family, "-restore") for family in (4, 6)}
    missing = [name for name, (family, suffix) in wanted.items() if not find_iptables(family, "legacy", suffix)]
    missing += [] if find_program("ipset") else ["ipset"]
    return ", ".join(missing)


def has_ipv6() -> bool:
    """Whether this kernel has IPv6 at all."""
    return os.path.exists(_IPV6)


def is_in_use() -> bool:
    """Whether there is any table or set: looking for ours cannot make one."""
    return any(_table_names(family) for family in _NAMES) or os.path.isdir(_SETS)


def probe(deadline: Deadline, lock_s: float) -> None:
    """Raises KernelError if the kernel has no iptables or no IP sets."""
    for family in (4, 6) if has_ipv6() else (4,):
        restore(family, "*filter\n:cali-p-probe - [0:0]\nCOMMIT\n", deadline, lock_s=lock_s, test=True)
    _run([find_program("ipset"), "list", "-name"], b"", deadline)


def _table_names(family: int) -> str:
    """Raises KernelError."""
    try:
        with open(_NAMES[family]) as file:
            return file.read().strip()
    except OSError as e:
        if e.errno == ENOENT:
            return ""
        raise KernelError(f"cannot read {_NAMES[family]}: {e.strerror}", errno=e.errno or 0) from e


def read_tables(family: int, deadline: Deadline, *, counters: bool = False) -> str:
    """The output of iptables-save for the tables that exist; nothing is loaded. Raises KernelError."""
    if not _table_names(family):
        return ""
    program = find_iptables(family, "legacy", "-save")
    return _run([program, *(("-c",) if counters else ())], b"", deadline).stdout.decode("utf-8", "surrogateescape")


def read_sets(deadline: Deadline) -> str:
    """The output of ipset save. Raises KernelError."""
    return _run([find_program("ipset"), "save"], b"", deadline).stdout.decode("utf-8", "surrogateescape")


def restore(family: int, script: str, deadline: Deadline, *, lock_s: float = LOCK_S, test: bool = False) -> None:
    """Execute an iptables-restore script. Raises RulesRefused (``index``: the line, from 0), KernelError."""
    argv = [find_iptables(family, "legacy", "-restore"), "--noflush", "-w", str(max(1, round(lock_s)))]
    _restore([*argv, *(("--test",) if test else ())], script, APPLY, "change iptables' rules", deadline)


def restore_sets(script: str, deadline: Deadline) -> None:
    """Execute an ipset restore script; what is there already is no error. Raises the same."""
    _restore([find_program("ipset"), "restore", "-exist"], script, APPLY_SETS, "change IP sets", deadline)


def _restore(argv: list[str], script: str, point: str, doing: str, deadline: Deadline) -> None:
    with Doing(doing):
        faults.before(point)
        done = _start(argv, script.encode("utf-8", "surrogateescape"), deadline)
        faults.after(point)
    if done.rc:
        refused = _refused(done)
        raise RulesRefused(f"cannot {doing}: {refused.why}", errno=refused.errno, index=refused.line - 1)


def _refused(done: Completed) -> RefusedLine:
    said = done.stderr.decode(errors="replace").strip()
    found = _AT_LINE.search(said)
    again = done.rc == _RESOURCE_PROBLEM or any(text in said for text in _AGAIN)
    why = " ".join(said.split()) or f"the program ended with status {done.rc}"
    return RefusedLine(why, int(found[1]) if found else 0, EAGAIN if again else EINVAL)


def _run(argv: list[str], stdin: bytes, deadline: Deadline) -> Completed:
    done = _start(argv, stdin, deadline)
    if done.rc:
        raise KernelError(f"cannot run {' '.join(argv)}: {_refused(done).why}", errno=_refused(done).errno)
    return done


def _start(argv: list[str], stdin: bytes, deadline: Deadline) -> Completed:
    if not argv[0]:
        raise KernelError(f"cannot enforce policies with iptables: install {missing_programs()}")
    return run(argv, stdin=stdin, env=ENVIRONMENT, deadline=deadline, limit_bytes=_LIMIT_BYTES)


class RuleCounts:
    """How many rules each table of a family has and how large it is: a system call each, which tells whether anybody
    added or removed one. For the network namespace of the thread that makes it.
    """

    def __init__(self, family: int) -> None:
        inet6 = family == 6
        self._level = socket.IPPROTO_IPV6 if inet6 else socket.IPPROTO_IP
        with Doing("watch iptables' rules"):
            self._socket = socket.socket(
                socket.AF_INET6 if inet6 else socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW
            )
        self._libc = ctypes.CDLL(None, use_errno=True)

    def close(self) -> None:
        self._socket.close()

    def read(self, table: str) -> tuple[int, ...]:
        """Where its chains begin, the number of its entries and their size; () if there is no such table."""
        data = ctypes.create_string_buffer(table.encode(), _INFO.size)
        size = ctypes.c_uint32(_INFO.size)
        failed = self._libc.getsockopt(self._socket.fileno(), self._level, _GET_INFO, data, ctypes.byref(size))
        return () if failed else tuple(_INFO.unpack(data.raw)[1:])
