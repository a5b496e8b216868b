"""SCTP associations of workloads, by sockets of the kernel."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from tests.netns.policing.lab import Lab, socket_in

FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
REFUSED_S = 2.0  # a packet that is dropped is answered by nobody


@contextmanager
def listening(lab: Lab, name: str, port: int, version: int = 4) -> Iterator[socket.socket]:
    workload = lab.workloads[name]
    with socket_in(workload.ns, FAMILIES[version], socket.SOCK_STREAM, socket.IPPROTO_SCTP) as server:
        server.bind((workload.address(version), port))
        server.listen()
        server.settimeout(20)
        yield server


def associate(
    lab: Lab, source: str, destination: str, port: int, version: int = 4, timeout_s: float = REFUSED_S
) -> socket.socket:
    """Raises OSError if there is no answer in time, or a refusal."""
    made = socket_in(lab.workloads[source].ns, FAMILIES[version], socket.SOCK_STREAM, socket.IPPROTO_SCTP)
    made.settimeout(timeout_s)
    try:
        made.connect((lab.workloads[destination].address(version), port))
    except OSError:
        made.close()
        raise
    return made


def reaches(lab: Lab, source: str, destination: str, port: int, version: int = 4) -> bool:
    try:
        associate(lab, source, destination, port, version).close()
    except OSError:
        return False
    return True
