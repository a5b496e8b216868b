"""Writes the files that a user asked calicoctl for.

Rule: a file is written completely or not at all, never through a link, and only its owner can read it: exports reveal
everything in a cluster.
"""

from __future__ import annotations

import os
from contextlib import suppress

from cni_calico import faults
from cni_calico.errors import CalicoError
from cni_calico.regular import require_regular

WRITE = faults.declare("ctl.write-file")
RENAME = faults.declare("ctl.rename-file")
_BEGIN = 64  # bytes in which a page's mark is


def write_file(path: str, text: str) -> None:
    """Raises CalicoError."""
    temporary = f"{path}.{os.urandom(4).hex()}.tmp"
    try:
        faults.before(WRITE)
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        faults.after(WRITE)
        faults.before(RENAME)
        os.replace(temporary, path)
        faults.after(RENAME)
    except OSError as e:
        with suppress(OSError):  # the first error is the one to report
            os.unlink(temporary)
        raise CalicoError(f"cannot write {path}: {e.strerror or e}") from e


def require_own_page(path: str, mark: str, maker: str) -> None:
    """Raises CalicoError if something else is there than a page with that mark, which ``maker`` has written."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as e:
        raise CalicoError(f"cannot write {path}: {e.strerror or e}") from e
    try:
        require_regular(fd, path)
        begin = os.read(fd, _BEGIN)
    except OSError as e:
        raise CalicoError(f"cannot write {path}: {e.strerror or e}") from e
    finally:
        os.close(fd)
    if mark.encode() not in begin:
        raise CalicoError(f"cannot write {path}: it is there, and is no page of {maker}")
