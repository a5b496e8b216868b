"""PURE: is BIRD ready? The answer is one value, with the peers that are not ready and why.

Rule: while the node is new (``age_s`` under the threshold) every peer must be established and no graceful restart under
way, so that no pod is scheduled before its routes are announced; later one established peer is enough, so that one
broken router does not make the node unready.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cni_calico.nodeagent.bgp.bird.status import LOCAL_WORKLOAD, BirdStatus, PeerStatus

THRESHOLD_S = 30.0
_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class Readiness:
    """``waiting``: how many peers are not established."""

    ready: bool
    text: str
    waiting: int = 0


def decide_ready(
    status: BirdStatus | None,
    *,
    silence: str = "",
    age_s: float | None = None,
    threshold_s: float = THRESHOLD_S,
    probe: Callable[[PeerStatus], str] = lambda peer: "",
) -> Readiness:
    """``status`` is None if BIRD did not answer; ``silence`` then says why. ``age_s`` is the age of the nodename file,
    None for a node that is not set up yet. ``probe`` returns what a peer's TCP port answers, "" for nothing.
    """
    if status is None:
        return Readiness(False, f"BIRD is not ready: {silence or 'no answer'}")
    if not status.running:
        return Readiness(False, "BIRD is not ready: it is starting or shutting down")
    peers = [peer for peer in status.peers if peer.kind != LOCAL_WORKLOAD]  # a pod must not make its node unready
    if not peers:
        return Readiness(True, "BIRD is ready: no peers are configured")
    waiting = [peer for peer in peers if not peer.established]
    young = age_s is None or age_s < threshold_s
    if young and status.recovering:
        return Readiness(False, "BIRD is not ready: a graceful restart is under way" + _named(waiting, probe))
    if waiting and (young or len(waiting) == len(peers)):
        count = f"{len(waiting)} of {len(peers)} BGP sessions are not established"
        return Readiness(False, f"BIRD is not ready: {count}{_named(waiting, probe)}")
    text = f"BIRD is ready: {len(peers) - len(waiting)} of {len(peers)} BGP sessions are established"
    return Readiness(True, text + _named(waiting, lambda peer: ""), len(waiting))


def _named(waiting: list[PeerStatus], probe: Callable[[PeerStatus], str]) -> str:
    if not waiting:
        return ""
    out = [_describe(peer, probe) for peer in waiting[:_NAMED_MAX]]
    if len(waiting) > _NAMED_MAX:
        out.append(f"and {len(waiting) - _NAMED_MAX} more")
    return ": " + "; ".join(out)


def _describe(peer: PeerStatus, probe: Callable[[PeerStatus], str]) -> str:
    what = f"{peer.address or peer.name} ({peer.description})" if peer.description else peer.address or peer.name
    parts = [peer.state, *([peer.last_error] if peer.last_error else [])]
    said = probe(peer)
    return f"{what} is {', '.join(parts)}" + (f", {said}" if said else "")
