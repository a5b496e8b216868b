"""Reports the state of a service of Type=notify to systemd, by datagrams to the socket that systemd names
(sd_notify(3)). Rule: a process that systemd has not started has no NOTIFY_SOCKET and reports nothing; a report that
cannot be sent is no failure.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_systemd(state: str, environ: Mapping[str, str]) -> bool:
    """Send a state; returns whether there was a receiver."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
            told.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except OSError:
        return False
    return True
