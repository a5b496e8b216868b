"""Writes the files that a user asked calicoctl for.

Rule: a file is written completely or not at all, never through a link, and only its owner can read it: exports reveal
everything in a cluster.
"""

from __future__ import annotations

import os

from cni_calico import faults
from cni_calico.errors import CalicoError

WRITE = faults.declare("ctl.write-file")
RENAME = faults.declare("ctl.rename-file")


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
        try:
            os.unlink(temporary)
        except OSError:
            pass  # the first error is the one to report
        raise CalicoError(f"cannot write {path}: {e.strerror or e}") from e
