"""Kernel settings below /proc/sys/net of the namespace that the calling thread is in.

Rule: a setting is named by the parts of its path, because interface names may contain dots. A setting that already has
the value is not written: most writes wait for the lock that all network changes of the host share.
"""

from __future__ import annotations

import os
from errno import EIO, ENOENT

from cni_calico import faults
from cni_calico.errors import KernelError

WRITE = faults.declare("sysctl.write")
_ROOT = "/proc/sys/net/"


def read(name: tuple[str, ...]) -> str | None:
    """The value without its line end; None if this kernel has no such setting. Raises KernelError."""
    try:
        fd = os.open(_ROOT + "/".join(name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == ENOENT:
            return None
        raise _failed("read", name, e) from e
    try:
        return os.read(fd, 4096).decode().strip()
    except OSError as e:
        raise _failed("read", name, e) from e
    finally:
        os.close(fd)


def write(name: tuple[str, ...], value: str, *, optional: bool = False) -> None:
    """Set the setting to ``value``. ``optional`` tolerates that it does not exist. Raises KernelError."""
    try:
        faults.before(WRITE)
        _write(name, value)
        faults.after(WRITE)
    except OSError as e:
        if not (optional and e.errno == ENOENT):
            raise _failed("set", name, e) from e


def ensure(name: tuple[str, ...], value: str, *, optional: bool = False) -> None:
    """Like write, but only if the value differs."""
    if read(name) != value:
        write(name, value, optional=optional)


def _write(name: tuple[str, ...], value: str) -> None:
    fd = os.open(_ROOT + "/".join(name), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _failed(verb: str, name: tuple[str, ...], e: OSError) -> KernelError:
    reason = str(e) if isinstance(e, faults.Injected) else e.strerror
    return KernelError(f"cannot {verb} sysctl net.{'.'.join(name)}: {reason}", errno=e.errno or EIO)
