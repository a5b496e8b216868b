"""The flow recorder's metrics, which it is asked for at each request.

Rule: no label names a pod or an address; where no recorder answers there are none.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

from cni_calico.deadline import Deadline
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import CalicoError
from cni_calico.flows.client import ask
from cni_calico.flows.losses import ENDS, OVERRUN, RATE
from cni_calico.flows.query import FlowQuery

_ANSWER_S = 1.0
_GAUGES = (
    ("calico_flows_live", "Connections that the flow recorder follows.", "live"),
    ("calico_flows_readers", "Readers that are connected to the flow recorder.", "readers"),
    ("calico_flows_store_bytes", "Disk that the sums of flows take.", "store_bytes"),
)
_AGES = (
    ("calico_flows_ring_seconds", "How far back connections are kept.", "oldest"),
    ("calico_flows_sums_seconds", "How far back the sums of connections are kept.", "oldest_sums"),
)
_COUNTERS = (
    ("calico_flows_unfollowed", "Connections that were too many to be followed to their end.", "unfollowed"),
    ("calico_flows_uncounted", "Connections in no sum, because none could be written.", "uncounted"),
    ("calico_flows_unknown_rules", "Reports of rules that nobody knows.", "unknown"),
    ("calico_flows_malformed", "Messages that could not be understood.", "malformed"),
    ("calico_flows_slow_messages", "Reports that had to be taken apart.", "slow"),
    ("calico_flows_disagree", "Reports that the rules in force do not explain: 0 is expected.", "disagreed"),
    ("calico_flows_agree", "Reports of the kernel that the rules in force explain.", "agreed"),
    ("calico_flows_unjudged", "Reports that were not compared with the rules in force.", "unjudged"),
    ("calico_flows_reader_cpu_seconds", "Processor time of the flow recorder.", "cpu_seconds"),
)
_EXPORTED = (
    "Updates of flows that Goldmane has acknowledged, that were lost for want of room, and what has no update: "
    "connections that no policy decided about, policies of a kind that Goldmane does not know."
)


def ask_recorder(run_dir: str) -> Mapping[str, Any] | None:
    """What the recorder says of itself; None if there is none, or it does not answer."""
    path = f"{run_dir}/{FLOW_SOCKET}"
    if not os.path.exists(path):
        return None
    try:
        return next(ask(path, FlowQuery(status=True), Deadline.after(_ANSWER_S)), None)
    except CalicoError:
        return None


def collect_flows(run_dir: str) -> Iterator[Any]:
    """Called by prometheus-client to collect."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    said = ask_recorder(run_dir)
    if said is None:
        return
    text = "Connections that were recorded, and attempts that were denied."
    connections = CounterMetricFamily("calico_flows_connections", text, labels=["verdict"])
    for verdict in ("allowed", "denied"):
        connections.add_metric([verdict], said[verdict])
    yield connections
    text = "Reports of the kernel that were not recorded; of ends, and of times without a recorder, how often."
    lost = CounterMetricFamily("calico_flows_lost", text, labels=["source", "why"])
    for source_and_why, count in _losses(said).items():
        lost.add_metric(source_and_why, count)
    yield lost
    text = "What connection tracking had no room for: packets dropped, connections forgotten early."
    full = CounterMetricFamily("calico_flows_conntrack_full", text, labels=["result"])
    for result, count in zip(("dropped", "forgotten"), said["without_room"], strict=True):
        full.add_metric([result], count)
    yield full
    for name, text, what in (*_GAUGES, ("felix_collector_epstats", "Upstream's name for calico_flows_live.", "live")):
        yield GaugeMetricFamily(name, text, value=said[what])
    now = time.time()
    for name, text, what in _AGES:
        yield GaugeMetricFamily(name, text, value=max(0.0, now - said[what]) if said[what] else 0.0)
    for name, text, what in _COUNTERS:
        yield CounterMetricFamily(name, text, value=said[what])
    if said.get("unaccounted") is not None:
        text = "Packets that rules have counted and that were neither recorded nor lost: 0 is expected."
        yield CounterMetricFamily("calico_flows_unaccounted", text, value=said["unaccounted"])
    text = "Packets that the rules, or the ends of the tiers, of a policy have denied."
    denied = CounterMetricFamily("calico_flows_denied_packets", text, labels=["policy_kind", "policy"])
    for kind, policy, count in said.get("denied_packets", ()):
        denied.add_metric([kind, policy], count)
    yield denied
    yield from _collect_export(said.get("export") or {})
    if "staged" in said:
        text = "Reports of connections that a staged policy would allow or deny, and whose verdict it would change."
        staged = CounterMetricFamily("calico_flows_staged", text, labels=["policy", "result"])
        for policy, results in said["staged"].items():
            for result, count in results.items():
                staged.add_metric([policy, result], count)
        yield staged


def _losses(said: Mapping[str, Any]) -> dict[tuple[str, str], int]:
    """By source and reason, also what has not been lost so far."""
    found = {(source, OVERRUN): 0 for source in said["lost"]}
    found |= {(source, RATE): 0 for source in said["lost"] if source != ENDS}
    return found | {(source, why): count for source, why, count in said.get("losses", ())}


def _collect_export(said: Mapping[str, Any]) -> Iterator[Any]:
    """Nothing where no collector is set."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    if "received" not in said:
        return
    exported = CounterMetricFamily("calico_flows_export", _EXPORTED, labels=["result"])
    for result in ("received", "lost", "undecided", "unknown_hits"):
        exported.add_metric([result], said[result])
    yield exported
    yield GaugeMetricFamily("calico_flows_export_queue", "Updates that Goldmane has not acknowledged.", said["queue"])
    text = "Whether there is a connection to Goldmane."
    yield GaugeMetricFamily("calico_flows_export_connected", text, int(said["connected"]))
