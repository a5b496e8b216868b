"""Metrics of encryption between nodes: upstream's four, under its names, and ours.

Rule: nothing is read where encryption is off; what cannot be read is left out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.timestamps import parse_rfc3339
from cni_calico.model.wireguard import MADE
from cni_calico.nodeagent.status.peers import (
    ENCRYPTED,
    PLAIN,
    WAITING,
    FamilyStanding,
    count_guard_drops,
    read_families,
)
from cni_calico.nodeagent.view.snapshot import Snapshot

_ANSWER_S = 1.0
_OF_PEERS = ("hostname", "public_key", "peer_key", "peer_endpoint")


def collect_encryption(said: Any, snapshot: Snapshot, *, of_devices: bool) -> Iterator[Any]:
    """Called by prometheus-client to collect. ``said``: of the agent's status; ``of_devices``: also upstream's."""
    if not said:
        return
    deadline = Deadline.after(_ANSWER_S)
    try:
        families = list(read_families(said, snapshot.nodes, deadline))
        drops = count_guard_drops(deadline) if any(one.mandatory for one in families) else None
    except CalicoError:
        return
    yield from _ours(families, snapshot, drops)
    if of_devices:
        yield from _upstreams(families, snapshot.node)


def _ours(families: list[FamilyStanding], snapshot: Snapshot, drops: int | None) -> Iterator[Any]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    text = "Other nodes, by whether what is sent to their pods is encrypted; waiting: for WireGuard's first handshake."
    peers = GaugeMetricFamily("calico_encryption_peers", text, labels=["family", "state"])
    text = "1 while encryption is enabled and in force on this node."
    in_force = GaugeMetricFamily("calico_encryption_in_force", text, labels=["family"])
    text = "Age of this node's WireGuard key."
    ages = GaugeMetricFamily("calico_encryption_key_age_seconds", text, labels=["family"])
    text = "How often another node's WireGuard key was replaced by another one, since the agent's start."
    renewed = CounterMetricFamily("calico_encryption_peer_key_changes", text, labels=["family"])
    for one in families:
        renewed.add_metric([str(one.family)], one.renewed)
        count = Counter(peer.state for peer in one.peers)
        for state in (ENCRYPTED, WAITING, PLAIN):
            peers.add_metric([str(one.family), state], count[state])
        in_force.add_metric([str(one.family)], float(not (one.failing or one.unread)))
        annotations: Mapping[str, str] = {} if snapshot.own is None else snapshot.own.metadata.annotations
        made_s = parse_rfc3339(annotations.get(MADE[one.family], ""))
        if one.key and made_s is not None:
            ages.add_metric([str(one.family)], max(0.0, time.time() - made_s))
    yield from (peers, in_force, ages, renewed)
    if drops is not None:
        text = "Packets between nodes that were dropped because they were not encrypted, since the guard was set last."
        yield CounterMetricFamily("calico_encryption_guard_drops", text, value=drops)


def _upstreams(families: list[FamilyStanding], node: str) -> Iterator[Any]:
    """Its counters have no "_total"."""
    from prometheus_client.core import GaugeMetricFamily, UnknownMetricFamily

    labels = ["hostname", "iface", "listen_port", "public_key"]
    meta = GaugeMetricFamily("wireguard_meta", "1; the labels describe the device.", labels=labels)
    sent = UnknownMetricFamily("wireguard_bytes_sent", "Bytes sent to a peer.", labels=_OF_PEERS)
    received = UnknownMetricFamily("wireguard_bytes_rcvd", "Bytes received from a peer.", labels=_OF_PEERS)
    text = "When the last handshake with a peer was (Unix time), 0: never."
    handshakes = GaugeMetricFamily("wireguard_latest_handshake_seconds", text, labels=_OF_PEERS)
    for one in families:
        if not one.key:
            continue
        meta.add_metric([node, one.device, str(one.port), one.key], 1)
        for peer in one.peers:
            if peer.key:
                its = [node, one.key, peer.key, peer.endpoint]
                sent.add_metric(its, peer.sent)
                received.add_metric(its, peer.received)
                handshakes.add_metric(its, peer.handshake_s)
    yield from (meta, sent, received, handshakes)
