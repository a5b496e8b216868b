"""Writes one archive of texts, without secrets.

Rule: the archive never replaces a file, only its owner can read it, and it is complete or absent. Every text passes
through redaction.
"""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Collection, Iterable
from io import BytesIO

from cni_calico import faults
from cni_calico.ctl.output.redaction import redact
from cni_calico.ctl.session import CommandFailed

WRITE = faults.declare("ctl.write-archive")

ArchiveMember = tuple[str, str]  # name in the archive, text


def write_archive(target: str, name: str, items: Iterable[ArchiveMember], secrets: Collection[str]) -> int:
    """Write the archive, each file below the directory ``name``; returns how many files. Raises CommandFailed."""
    count, fd = 0, -1
    try:
        faults.before(WRITE)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(fd, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for path, text in items:
                data = redact(text, secrets).encode("utf-8", "surrogateescape")
                entry = tarfile.TarInfo(f"{name}/{path}")
                entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                archive.addfile(entry, BytesIO(data))
                count += 1
        faults.after(WRITE)
    except OSError as e:
        if fd >= 0:
            os.unlink(target)  # the incomplete archive
        raise CommandFailed(f"cannot write {target}: {e.strerror or e}") from e
    return count
