"""PURE: BGPPeer: which nodes it concerns and how they peer, as one value per resource.

Rule: a BGPPeer with any wrong field is left out as a whole and reported: half of a peering (without its password, or
its filters) would be worse than none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.fields import Wrong, parse_bool, parse_text, parse_texts
from cni_calico.model.resources import Address, Resource
from cni_calico.model.selectors import Selector, parse_selector
from cni_calico.nodeagent.bgp.config.findings import ERROR, BgpProblem, SpecReader
from cni_calico.nodeagent.bgp.config.values import (
    U16,
    SecretRef,
    parse_as,
    parse_choice,
    parse_gateway,
    parse_in,
    parse_keepalive,
    parse_peer_address,
    parse_restart_time,
    parse_secret_ref,
)

BFD = "cni-calico.io/bfd"  # an annotation of the BGPPeer


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """``node`` "" and ``node_selector`` None: every node. One of ``address``, ``peer_selector`` and, for workloads of
    the node itself, ``workload_selector`` names the peer.

    ``next_hop`` is "", "self" or "keep"; ``ttl_hops`` 0: no TTL security; numbers 0: not set.
    """

    name: str
    node: str = ""
    node_selector: Selector | None = None
    address: Address | None = None
    port: int = 0
    peer_selector: Selector | None = None
    workload_selector: Selector | None = None
    as_number: int = 0
    local_as: int = 0
    password: SecretRef | None = None
    source_none: bool = False
    next_hop: str = ""
    keep_external_next_hop: bool = False
    restart_time_s: int | None = None
    keepalive_s: int | None = None
    allow_local_as: int = 0
    ttl_hops: int = 0
    reachable_by: Address | None = None
    filters: tuple[str, ...] = ()
    reverse: bool = True
    bfd: bool = False

    @property
    def about(self) -> str:
        return f"BGPPeer {self.name}"

    @property
    def is_global(self) -> bool:
        return not self.node and self.node_selector is None


def _parse_selector(raw: Any, at: str) -> Selector | None:
    text = parse_text(raw, at)
    if not text:
        return None
    try:
        return parse_selector(text)
    except InvalidConfig as e:
        raise Wrong(at, f"a selector ({e})", raw) from e


def _parse_optional_address(raw: Any, at: str) -> tuple[Address | None, int]:
    return (None, 0) if raw == "" else parse_peer_address(raw, at)


def _parse_optional_gateway(raw: Any, at: str) -> Address | None:
    return None if raw == "" else parse_gateway(raw, at)


def _find_contradictions(spec: PeerSpec, reader: SpecReader) -> None:
    if spec.node and spec.node_selector is not None:
        reader.error("node and nodeSelector exclude one another")
    if spec.address is not None and spec.peer_selector is not None:
        reader.error("peerIP and peerSelector exclude one another")
    if spec.workload_selector is not None:
        _find_workload_contradictions(spec, reader)
    elif not reader.failed and spec.address is None and spec.peer_selector is None:
        reader.error("it has neither peerIP nor peerSelector")
    if not reader.failed and spec.address is not None and not spec.as_number:
        reader.error(f"peer {spec.address} has no asNumber")
    if spec.peer_selector is not None and spec.as_number:
        reader.warn("asNumber has no effect together with peerSelector: the peers are nodes, which have their own")
    if spec.reachable_by is not None and (spec.address is None or spec.address.version != spec.reachable_by.version):
        reader.error("reachableBy needs a peerIP of the same family")


def _find_workload_contradictions(spec: PeerSpec, reader: SpecReader) -> None:
    if spec.address is not None or spec.peer_selector is not None:
        reader.error("localWorkloadSelector excludes peerIP and peerSelector")
    if not reader.failed and not spec.as_number:
        reader.error("localWorkloadSelector needs an asNumber")
    for name, given in (("password", spec.password), ("ttlSecurity", spec.ttl_hops), ("bfd", spec.bfd)):
        if given:
            reader.warn(f"{name} has no effect on sessions with workloads of the node")


def parse_peer_spec(resource: Resource) -> tuple[PeerSpec | None, tuple[BgpProblem, ...]]:
    """The value of a BGPPeer, None if it has to be left out; and the problems found in it."""
    name = resource.metadata.name
    reader = SpecReader(f"BGPPeer {name}", resource.spec)
    address, port = reader.read("peerIP", _parse_optional_address, (None, 0))
    mode = reader.read("nextHopMode", parse_choice("Auto", "Self", "Keep"), "")
    keep = reader.read("keepOriginalNextHop", parse_bool, False)
    spec = PeerSpec(
        name=name,
        node=reader.read("node", parse_text, ""),
        node_selector=reader.read("nodeSelector", _parse_selector, None),
        address=address,
        port=port,
        peer_selector=reader.read("peerSelector", _parse_selector, None),
        workload_selector=reader.read("localWorkloadSelector", _parse_selector, None),
        as_number=reader.read("asNumber", parse_as, 0),
        local_as=reader.read("localASNumber", parse_as, 0),
        password=reader.read("password", parse_secret_ref, None),
        source_none=reader.read("sourceAddress", parse_choice("UseNodeIP", "None"), "") == "None",
        next_hop={"Self": "self", "Keep": "keep"}.get(mode, ""),
        keep_external_next_hop=keep and not mode,
        restart_time_s=reader.read("maxRestartTime", parse_restart_time, None),
        keepalive_s=reader.read("keepaliveTime", parse_keepalive, None),
        allow_local_as=reader.read("numAllowedLocalASNumbers", parse_in(0, U16), 0),
        ttl_hops=reader.read("ttlSecurity", parse_in(0, 255), 0),
        reachable_by=reader.read("reachableBy", _parse_optional_gateway, None),
        filters=reader.read("filters", parse_texts, ()),
        reverse=reader.read("reversePeering", parse_choice("Auto", "Manual"), "") != "Manual",
        bfd=resource.metadata.annotations.get(BFD) == "true",
    )
    _find_contradictions(spec, reader)
    reader.done()
    if reader.failed:
        return None, tuple(left_out(problem) for problem in reader.problems)
    return spec, tuple(reader.problems)


def left_out(problem: BgpProblem) -> BgpProblem:
    """The problem with its consequence; warnings have none."""
    if problem.severity != ERROR:
        return problem
    return BgpProblem(problem.about, f"{problem.text}; the peering is left out")
