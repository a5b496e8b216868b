"""PURE: which stages of a node's host endpoints a connection's first packet passes, by where its ends are.

Rule: it is the order in which the packet filter asks them. What an earlier stage of a direction allows before tracking
or translation is not asked of the later ones.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from cni_calico.policy.wanted import Direction, PolicyReach

EndPlace = Literal["workload", "host", "elsewhere"]  # of this node, this node itself, or beyond it
# the interface: where the packet comes in, where it goes out, those of the workloads, the loopback one
StageAt = Literal["in", "out", "workloads", "loopback"]


class PathStage(NamedTuple):
    at: StageAt
    reach: PolicyReach
    direction: Direction


def _in(at: StageAt, *reaches: PolicyReach) -> tuple[PathStage, ...]:
    return tuple(PathStage(at, reach, "ingress") for reach in reaches)


def _out(at: StageAt, *reaches: PolicyReach) -> tuple[PathStage, ...]:
    return tuple(PathStage(at, reach, "egress") for reach in reaches)


_STAGES: dict[tuple[EndPlace, EndPlace], tuple[PathStage, ...]] = {
    ("workload", "host"): _in("workloads", "beforeNat"),
    ("workload", "workload"): (*_in("workloads", "beforeNat", "forward"), *_out("workloads", "forward")),
    ("workload", "elsewhere"): (*_in("workloads", "beforeNat", "forward"), *_out("out", "forward")),
    ("host", "host"): (*_out("loopback", "raw", "own"), *_in("loopback", "raw", "beforeNat", "own")),
    ("host", "workload"): (),
    ("host", "elsewhere"): _out("out", "raw", "own"),
    ("elsewhere", "host"): _in("in", "raw", "beforeNat", "own"),
    ("elsewhere", "workload"): (*_in("in", "raw", "beforeNat", "forward"), *_out("workloads", "forward")),
    ("elsewhere", "elsewhere"): (*_in("in", "raw", "beforeNat", "forward"), *_out("out", "forward")),
}


def host_stages(source: EndPlace, destination: EndPlace) -> tuple[PathStage, ...]:
    """In the order in which they are asked."""
    return _STAGES[source, destination]
