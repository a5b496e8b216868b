"""The socket of the resident server: bound under a temporary name and renamed into place.

Rule: never unlinked on exit, because that could remove a successor's socket; a dead server's socket refuses
connections, and the next server's rename replaces it.
"""

from __future__ import annotations

import os
import socket

from cni_calico.regular import make_directories

BACKLOG = 512


def listen(path: str) -> socket.socket:
    """A listening socket at ``path``, for root only. Raises OSError."""
    directory = os.path.dirname(path)
    make_directories(directory, 0o755)
    temporary = f"{path}.{os.getpid()}.new"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            os.unlink(temporary)
        except FileNotFoundError:
            pass
        previous = os.umask(0o177)
        try:
            listener.bind(temporary)
        finally:
            os.umask(previous)
        os.chmod(temporary, 0o600)
        listener.listen(BACKLOG)
        os.rename(temporary, path)
    except BaseException:
        listener.close()
        raise
    return listener
