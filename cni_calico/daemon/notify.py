"""What a service of Type=notify tells systemd: datagrams to the socket it names (sd_notify(3)).

Rule: whoever is not started by systemd has no NOTIFY_SOCKET and tells nobody; that it cannot be told is no failure.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

READY = "READY=1"
STOPPING = "STOPPING=1"


def tell_systemd(state: str, environ: Mapping[str, str]) -> bool:
    """Send a state; whether somebody was there to be told."""
    address = environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
            told.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
    except OSError:
        return False
    return True
