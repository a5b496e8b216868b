"""The checks of ``-bird-live`` and ``-bird-ready``: the control socket, the nodename file, the peers' TCP ports.

Rule: an exec probe may have only one second in total, including its process start; so each check is short and they run
in parallel. Nothing here imports more than it needs.
"""

from __future__ import annotations

import os
import time

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.nodeagent.bgp.bird.control import BirdControl, read_status
from cni_calico.nodeagent.bgp.bird.readiness import THRESHOLD_S, Readiness, decide_ready
from cni_calico.nodeagent.bgp.bird.status import PeerStatus

_ANSWER_S = 0.5
_TCP_S = 0.1


def read_alive(socket: str) -> str:
    """Why BIRD is not alive, "" if it is."""
    try:
        with BirdControl(socket, Deadline.after(_ANSWER_S)):
            return ""
    except CalicoError as e:
        return str(e)


def read_ready(socket: str, nodename_file: str, *, threshold_s: float = THRESHOLD_S) -> Readiness:
    """Whether BIRD is ready now, and which peers are not."""
    try:
        status = read_status(socket, Deadline.after(_ANSWER_S))
    except CalicoError as e:
        return decide_ready(None, silence=str(e))
    deadline = Deadline.after(_TCP_S)
    return decide_ready(
        status,
        age_s=_age_s(nodename_file),
        threshold_s=threshold_s,
        probe=lambda peer: probe_tcp(peer, deadline),
    )


def _age_s(path: str) -> float | None:
    try:
        return max(0.0, time.time() - os.stat(path).st_mtime)
    except OSError:
        return None


def probe_tcp(peer: PeerStatus, deadline: Deadline) -> str:
    """What the peer's BGP port answers to a connection; "" if there is no time left to ask."""
    import socket

    left = deadline.remaining_s()
    if left <= 0 or not peer.address:
        return ""
    family = socket.AF_INET6 if peer.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.settimeout(left)
        try:
            probe.connect((peer.address, peer.port))
        except TimeoutError:
            return (
                f"TCP port {peer.port} does not answer (a port that requires the session's password does not answer a "
                "probe either)"
            )
        except OSError as e:
            return f"TCP port {peer.port}: {e.strerror or e}"
    return f"TCP port {peer.port} answers"
