"""Runs a program whose system calls are watched, and reports each that would change something on the host.

Rule: the kernel stops the program at each of them (seccomp's notifications), and asks here: a file that is opened for
writing, a name that is made, moved or removed, a mount outside of the program's own mount namespace, and each message
to netlink that does not only list or get. What is asked for is let through, so that one run shows all.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import select
import struct
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from cni_calico.kernel import netns

_SECCOMP, _PIDFD_OPEN, _PIDFD_GETFD = 317, 434, 438
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101  # SECCOMP_IOCTL_NOTIF_RECV, _SEND
_CONTINUE = 1
# x86-64's numbers
_OPEN, _OPENAT, _OPENAT2, _SENDTO, _SENDMSG, _SENDMMSG, _CREAT = 2, 257, 437, 44, 46, 307, 85
_NAMING = {
    **{76: "truncate", 77: "ftruncate", 82: "rename", 83: "mkdir", 84: "rmdir", 86: "link", 87: "unlink"},
    **{88: "symlink", 90: "chmod", 91: "fchmod", 92: "chown", 93: "fchown", 94: "lchown", 133: "mknod"},
    **{258: "mkdirat", 259: "mknodat", 260: "fchownat", 263: "unlinkat", 264: "renameat", 265: "linkat"},
    **{266: "symlinkat", 268: "fchmodat", 280: "utimensat", 316: "renameat2", 308: "setns", 246: "kexec"},
    **{175: "init_module", 313: "finit_module", 176: "delete_module", 170: "sethostname", 188: "setxattr"},
}
_OF_DESCRIPTORS = frozenset((77, 91, 93))  # ftruncate, fchmod, fchown
_SENDING = {_SENDTO: "sendto", _SENDMSG: "sendmsg", _SENDMMSG: "sendmmsg"}
_OPENING = {_OPEN: "open", _OPENAT: "openat", _OPENAT2: "openat2", _CREAT: "creat"}
_WATCHED = {**_NAMING, **_SENDING, **_OPENING}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_HARMLESS = ("/dev/null", "/dev/tty", "/dev/urandom")
_NETLINK_HEADER = struct.Struct("=IHHII")
_DUMP = 0x300
_LIMIT_S = 240  # in which it does nothing that is watched
_NFTABLES, _CTNETLINK, _IPSET = 10, 1, 6
_IPSET_GETS = frozenset((1, 7, 8, 12, 13, 14, 15))  # IPSET_CMD_PROTOCOL, LIST, SAVE, HEADER, TYPE, GET_BYNAME, _BYINDEX
_NFT_GETS = frozenset((1, 4, 7, 10, 13, 16, 19, 21, 23))  # NFT_MSG_GET...
_GENERIC_CONTROL, _GET_FAMILY = 16, 3


@dataclass
class Watched:
    """``writes``: what would change something, in words. ``asked``: how many calls were looked at."""

    except_for: str
    status: int = -1
    output: bytes = b""
    writes: list[str] = field(default_factory=list)
    asked: int = 0
    netlink: int = 0


def run_watched(
    argv: Sequence[str], environ: Mapping[str, str], namespace_path: str, *, except_for: str = "/nowhere"
) -> Watched:
    """The program, in a network namespace. Its standard error is the caller's. ``except_for``: files whose paths begin
    like this may be written.
    """
    out_read, out_write = os.pipe()
    told, tell = os.pipe()
    go_read, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            netns.enter(os.open(namespace_path, os.O_RDONLY))
            os.dup2(out_write, 1)
            listener = _listen()
            os.set_inheritable(listener, False)
            os.write(tell, b"%d\n" % listener)
            os.read(go_read, 1)
            os.execve(argv[0], list(argv), dict(environ))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(99)
    os.close(out_write)
    libc = ctypes.CDLL(None, use_errno=True)
    number = int(os.read(told, 20))
    process = libc.syscall(_PIDFD_OPEN, pid, 0)
    listener = libc.syscall(_PIDFD_GETFD, process, number, 0)
    assert listener >= 0, os.strerror(ctypes.get_errno())
    os.write(go, b"1")
    found = Watched(except_for)
    try:
        _serve(listener, out_read, found)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, 9)
        _, status = os.waitpid(pid, 0)
        for fd in (listener, process, out_read, told, tell, go_read, go):
            os.close(fd)
    found.status = os.waitstatus_to_exitcode(status)
    return found


def _listen() -> int:
    """From now on this process's calls are asked about; returns where."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = [(0x20, 0, 0, 0)]  # the number of the call
    numbers = sorted(_WATCHED)
    for i, number in enumerate(numbers):
        code.append((0x15, len(numbers) - i, 0, number))  # equal: on to the last instruction
    code += [(0x06, 0, 0, _ALLOW), (0x06, 0, 0, _NOTIFY)]
    program = b"".join(struct.pack("HBBI", *one) for one in code)
    buffer = ctypes.create_string_buffer(program)
    filtering = struct.pack("HxxxxxxP", len(code), ctypes.addressof(buffer))
    made: int = libc.syscall(_SECCOMP, 1, 8, ctypes.create_string_buffer(filtering))
    if made < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return made


def _serve(listener: int, output: int, found: Watched) -> None:
    poller = select.poll()
    poller.register(listener, select.POLLIN)
    poller.register(output, select.POLLIN | select.POLLHUP)
    while True:
        ready = dict(poller.poll(_LIMIT_S * 1000))
        assert ready, "the watched program does nothing any more"
        if ready.get(listener, 0) & select.POLLIN:
            _answer(listener, found)
            continue
        if output in ready:
            data = os.read(output, 1 << 16)
            found.output += data
            if not data:
                return
        if ready.get(listener, 0) & select.POLLHUP:
            poller.unregister(listener)


def _answer(listener: int, found: Watched) -> None:
    asked = bytearray(80)
    try:
        fcntl.ioctl(listener, _RECEIVE, asked)
    except OSError:
        return  # it has ended meanwhile
    number_id, pid, _, call, _, *rest = struct.unpack("=QIIIIQ6Q", asked)
    found.asked += 1
    try:
        said = _describe(pid, call, rest[1:], found)
    except OSError as e:
        said = f"{_WATCHED[call]}: cannot look: {e}"
    if said:
        found.writes.append(said)
    with suppress(OSError):
        fcntl.ioctl(listener, _SEND, bytearray(struct.pack("=QqiI", number_id, 0, 0, _CONTINUE)))


def _describe(pid: int, call: int, arguments: Sequence[int], found: Watched) -> str:
    name = _WATCHED[call]
    if call in _OPENING:
        at = 0 if call in (_OPEN, _CREAT) else 1
        flags = struct.unpack("=Q", _peek(pid, arguments[2], 8))[0] if call == _OPENAT2 else arguments[at + 1]
        path = _text(pid, arguments[at])
        writes = call == _CREAT or flags & _WRITING
        harmless = path in _HARMLESS or path.startswith(found.except_for)
        return f"{name} {path} {flags:#x}" if writes and not harmless else ""
    if call in _OF_DESCRIPTORS:
        path = os.readlink(f"/proc/{pid}/fd/{arguments[0] & 0xFFFFFFFF}")
        return "" if path.startswith(found.except_for) else f"{name} {path}"
    if call not in _SENDING:
        return f"{name} {[hex(one) for one in arguments[:3]]}"
    fd = arguments[0] & 0xFFFFFFFF
    protocol = _netlink_protocol(pid, fd)
    if protocol is None:
        return ""
    found.netlink += 1
    if call == _SENDTO:
        return _netlink(protocol, _peek(pid, arguments[1], arguments[2]))
    _, _, _, vector, count = struct.unpack("=QIIQQ", _peek(pid, arguments[1], 32))
    data = b""
    for i in range(count):
        base, size = struct.unpack("=QQ", _peek(pid, vector + 16 * i, 16))
        data += _peek(pid, base, size)
    return _netlink(protocol, data)


def _netlink_protocol(pid: int, fd: int) -> int | None:
    """None: it is another kind of socket."""
    inode = os.readlink(f"/proc/{pid}/fd/{fd}").removeprefix("socket:[").removesuffix("]")
    with open(f"/proc/{pid}/net/netlink") as file:
        for line in file.readlines()[1:]:
            fields = line.split()
            if fields[-1] == inode:
                return int(fields[1])
    return None


def _netlink(protocol: int, data: bytes) -> str:
    said, at = [], 0
    while at + _NETLINK_HEADER.size <= len(data):
        size, kind, flags, _, _ = _NETLINK_HEADER.unpack_from(data, at)
        if not _reads(protocol, kind, flags, data[at + 16 : at + size]):
            said.append(f"protocol {protocol} message {kind:#x} flags {flags:#x}")
        at += max(16, size + 3 & ~3)
    return ", ".join(said)


def _reads(protocol: int, kind: int, flags: int, body: bytes) -> bool:
    if flags & _DUMP == _DUMP and (protocol != 0 or kind & 3 == 2):
        return True
    if protocol == 0:
        return kind & 3 == 2  # RTM_GET...
    if protocol == 12:
        subsystem, message = kind >> 8, kind & 255
        gets = {_NFTABLES: _NFT_GETS, _CTNETLINK: (1, 4), _IPSET: _IPSET_GETS}
        return message in gets.get(subsystem, ())
    if protocol == 16:
        return kind == _GENERIC_CONTROL and body[:1] == bytes((_GET_FAMILY,))
    return False


def _peek(pid: int, address: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        return file.read(size)


def _text(pid: int, address: int) -> str:
    data = b""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(address)
        while b"\0" not in data and len(data) < 4096:
            data += file.read(64)
    return data.partition(b"\0")[0].decode(errors="replace")
