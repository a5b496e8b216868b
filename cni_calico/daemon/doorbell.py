"""A socket at which another program of this host says that something has happened of which the kernel tells nobody.

Rule: what is said has no content, so whoever may write there can at most make its owner look; only root may. Nobody
waits: a bell that is not there, or full, is not rung.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def hang_bell(path: str) -> socket.socket | None:
    """None if there can be none; who rings then is not heard. What an owner before has left there goes."""
    with suppress(OSError):
        os.unlink(path)
    bell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        os.fchmod(bell.fileno(), 0o600)  # its file is made with it; other threads would get a umask, too
        bell.bind(path)
    except OSError:
        bell.close()
        return None
    return bell


def ring_bell(path: str) -> bool:
    """Returns whether somebody can hear it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(b"!", path)
        except BlockingIOError:
            pass  # it has been rung, and its owner has not come yet
        except OSError:
            return False
        return True
