"""Prometheus metrics: the agent's, this process's, and those that the CNI server and BIRD return on request.

Rule: nothing is collected until it is requested; a source that does not answer within a moment is left out.
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from cni_calico import BUILD, __version__
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.ipam_metrics import render_ipam_metrics
from cni_calico.deadline import Deadline
from cni_calico.directories import CNI_SOCKET, OWED_RELEASES
from cni_calico.errors import CalicoError
from cni_calico.ipam.pools import pool_of
from cni_calico.log import Log
from cni_calico.nodeagent.bgp.bird.controller import BirdController
from cni_calico.nodeagent.status.file import read_status, since_boot, why_not_ready
from cni_calico.nodeagent.status.flow_metrics import collect_flows
from cni_calico.nodeagent.status.numbers import BUCKETS_S, Numbers
from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.nodeagent.status.policy_metrics import collect_policing
from cni_calico.nodeagent.view.snapshot import Snapshot
from cni_calico.plugin.call import protocol
from cni_calico.plugin.call.client import receive_exactly

ANSWER_S = 1.0
MAIN_TABLE = 254


class Metrics:
    """``snapshot`` returns the agent's newest snapshot, None before the first."""

    def __init__(self, numbers: Numbers, run_dir: str, state_dir: str) -> None:
        self.snapshot: Snapshot | None = None
        self.bird: BirdController | None = None
        self.janitor: JanitorCounters | None = None
        self.policing: Callable[[], tuple[Standing, PolicyFigures]] | None = None
        self.has_cni_server = False  # one was started beside this agent
        self.has_language = self.has_process = True  # python_..., process_...
        self.has_wireguard = True  # wireguard_...
        self._numbers = numbers
        self._run_dir = run_dir
        self._socket = f"{run_dir}/{CNI_SOCKET}"
        self._pending = f"{state_dir}/{OWED_RELEASES}"

    def page(self) -> tuple[int, str, bytes]:
        """The page /metrics."""
        from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR, CollectorRegistry
        from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

        registry = CollectorRegistry()
        of_server = self._of_cni_server()
        registry.register(self)
        if self.has_process:
            registry.register(PROCESS_COLLECTOR)
        if self.has_language:
            registry.register(PLATFORM_COLLECTOR)
            registry.register(GC_COLLECTOR)
        if self.has_cni_server:
            registry.register(CniServerAnswers(bool(of_server)))
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry) + self._of_pools() + of_server

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client to collect."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        n = self._numbers
        build = GaugeMetricFamily("calico_build_info", "1; the label says which version runs.", labels=["version"])
        build.add_metric([__version__ + BUILD], 1)
        yield build
        status = read_status(self._run_dir)
        ready = not why_not_ready(status, since_boot())
        yield GaugeMetricFamily("calico_node_ready", "1 while this node can take workloads.", value=ready)
        passes = CounterMetricFamily("calico_agent_passes", "Passes over the data plane.", labels=["kind"])
        for kind, count in n.passes.items():
            passes.add_metric([kind], count)
        yield passes
        total, cumulative = 0, []
        for limit, count in zip((*map(str, BUCKETS_S), "+Inf"), n.buckets, strict=True):
            total += count
            cumulative.append((limit, float(total)))
        seconds = HistogramMetricFamily("calico_agent_pass_seconds", "How long a pass took.")
        seconds.add_metric([], buckets=cumulative, sum_value=n.seconds)
        yield seconds
        yield CounterMetricFamily("calico_agent_changes", "Changes made to the data plane.", value=n.changes)
        yield CounterMetricFamily("calico_agent_failures", "Changes that failed.", value=n.failures)
        yield GaugeMetricFamily(
            "calico_datastore_in_sync", "1 while the datastore is watched.", value=n.datastore_in_sync
        )
        yield GaugeMetricFamily("calico_policies_not_enforced", "Policies not enforced here.", value=n.policies)
        doubts = GaugeMetricFamily(
            "calico_node_address_doubts", "Reasons to doubt the node's address.", labels=["code", "family"]
        )
        for (code, family), count in n.doubts.items():
            doubts.add_metric([code, str(family)], count)
        yield doubts
        yield GaugeMetricFamily("calico_cni_pending_dels", "Releases owed to the datastore.", value=self._count_owed())
        yield from self._of_ipam(GaugeMetricFamily)
        if self.policing is not None:
            yield from collect_policing(*self.policing())
        yield from collect_flows(self._run_dir)
        if self.snapshot is not None:
            hosts = len(self.snapshot.nodes)
            yield GaugeMetricFamily("felix_cluster_num_hosts", "Nodes of the cluster.", value=hosts)
            host = GaugeMetricFamily("felix_host", "1; the label is this node's name.", labels=["host"])
            host.add_metric([self.snapshot.node], 1)
            yield host
            text = "1 for each Node that cannot be read and has no known address: its tunnels' packets are dropped."
            cut_off = GaugeMetricFamily("calico_nodes_cut_off", text, labels=["node"])
            for name in self.snapshot.cut_off:
                cut_off.add_metric([name], 1)
            yield cut_off
            if said := status.get("encryption"):
                from cni_calico.nodeagent.status.encryption_metrics import collect_encryption

                yield from collect_encryption(said, self.snapshot, of_devices=self.has_wireguard)
        yield from self._of_datastore()
        yield from self._of_janitor(GaugeMetricFamily, CounterMetricFamily)
        yield from self._of_bird(GaugeMetricFamily)

    def _of_datastore(self) -> Iterator[Any]:
        """Under upstream's names, whose counters have no "_total"."""
        from prometheus_client.core import GaugeMetricFamily, UnknownMetricFamily

        n = self._numbers
        text = "What the agent does with the datastore: 1 waits for it, 2 reads it, 3 follows it."
        yield GaugeMetricFamily("felix_resync_state", text, value=n.datastore_state)
        text = "How often the agent has begun to read the datastore."
        yield UnknownMetricFamily("felix_resyncs_started", text, value=n.resyncs)
        yield UnknownMetricFamily("felix_log_errors", "Log records that could not be written.", value=Log.failures)
        text = "Routes that the agent keeps in a table."
        routes = GaugeMetricFamily("felix_route_table_num_routes", text, labels=["table"])
        for version, count in sorted(n.routes.items()):
            routes.add_metric([f"IPv{version}:{MAIN_TABLE}"], count)
        yield routes

    def _count_owed(self) -> int:
        try:
            return sum(name.endswith(".json") and not name.startswith(".") for name in os.listdir(self._pending))
        except OSError:
            return 0

    def _of_ipam(self, family: Callable[..., Any]) -> Iterator[Any]:
        """The node's own blocks by pool."""
        snapshot = self.snapshot
        if snapshot is None:
            return
        blocks: Counter[str] = Counter()
        used: Counter[str] = Counter()
        free: Counter[str] = Counter()
        for block in snapshot.blocks:
            pool = pool_of(snapshot.pools, block.cidr) if block.node == snapshot.node else None
            if pool is not None:
                name = pool.metadata.name
                blocks[name] += 1
                used[name] += block.used
                free[name] += block.cidr.num_addresses - block.used
        for metric, text, values in (
            ("calico_ipam_node_blocks", "This node's blocks.", blocks),
            ("calico_ipam_node_addresses_used", "Addresses taken in this node's blocks.", used),
            ("calico_ipam_node_addresses_free", "Addresses free in this node's blocks.", free),
        ):
            gauge = family(metric, text, labels=["pool"])
            for name, value in sorted(values.items()):
                gauge.add_metric([name], value)
            yield gauge

    def _of_pools(self) -> bytes:
        """The cluster's pools, by the agent that is the janitor, as kube-controllers print them where these are."""
        numbers = None if self.janitor is None else self.janitor.ipam()
        return b"" if numbers is None else render_ipam_metrics(numbers).encode()

    def _of_janitor(self, gauge: Callable[..., Any], counter: Callable[..., Any]) -> Iterator[Any]:
        """Of the whole cluster, from the agent that is the janitor; each other agent only reports that it is not."""
        counters = self.janitor
        if counters is None:
            return
        yield gauge("calico_janitor_leader", "1 on the agent that is the cluster's janitor.", value=counters.is_leader)
        candidates = gauge("calico_janitor_candidates", "What looks lost, by kind.", labels=["kind"])
        for kind, count in counters.candidates.items():
            candidates.add_metric([kind], count)
        yield candidates
        for metric, text, counts in (
            ("calico_janitor_confirmed", "What was still lost when checked again, by kind.", counters.confirmed),
            ("calico_janitor_released", "What was released, by kind.", counters.released),
        ):
            family = counter(metric, text, labels=["kind"])
            for kind, count in sorted(counts.items()):
                family.add_metric([kind], count)
            yield family
        yield counter("calico_janitor_kept", "What only seemed lost, or changed meanwhile.", value=counters.kept)
        yield counter("calico_janitor_failures", "Checks and releases that failed.", value=counters.failures)

    def _of_bird(self, family: Callable[..., Any]) -> Iterator[Any]:
        if self.bird is None:
            return
        gauge = family("calico_bird_peers", "BGP sessions by state.", labels=["state"])
        restarts = family("calico_bird_restarts", "How often BIRD was restarted.", value=self.bird.process.restarts)
        try:
            status = self.bird.status(Deadline.after(ANSWER_S))
        except CalicoError:
            yield restarts
            return
        for state, count in sorted(Counter(peer.state for peer in status.peers).items()):
            gauge.add_metric([state], count)
        yield gauge
        yield restarts

    def _of_cni_server(self) -> bytes:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(ANSWER_S)
                connection.connect(self._socket)
                connection.sendall(protocol.frame(protocol.request_fields("metrics", [], b"", [])))
                _, length = protocol.parse_header(receive_exactly(connection, protocol.HEADER_BYTES))
                return protocol.parse_answer(protocol.parse_fields(receive_exactly(connection, length)))[1]
        except (OSError, protocol.Malformed):
            return b""


class CniServerAnswers:
    """Whether the CNI server that was started beside the agent has answered; without it its page is missing."""

    def __init__(self, answers: bool) -> None:
        self._answers = answers

    def collect(self) -> Iterator[Any]:
        """Called by prometheus-client to collect."""
        from prometheus_client.core import GaugeMetricFamily

        text = "1 while the CNI server answers, 0 while it does not."
        yield GaugeMetricFamily("calico_cni_server_up", text, value=self._answers)
