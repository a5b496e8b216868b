"""The policy engine's metrics, with the names that upstream's agent uses if the meaning is the same.

Rule: upstream's names are unchanged (its counters have no "_total"), and never used with a different meaning.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cni_calico.nodeagent.status.policing import BUCKETS_S, Durations, PolicyFigures, Standing

_GAUGES = (
    ("felix_active_local_endpoints", "Workloads of this node whose policy is known.", "endpoints"),
    ("felix_active_local_policies", "Policies that apply to workloads of this node.", "policies"),
    ("calico_policy_over_budget", "Policies that deny because they may need too many rules.", "over_budget"),
    ("calico_policy_interfaces_disputed", "Interfaces that several workloads name as theirs.", "disputed"),
    ("calico_policy_classes", "Groups of workloads with the same policies.", "classes"),
)
_IN_KERNEL = (
    ("felix_nft_chains", "Chains in our table.", "chains", True),
    ("felix_nft_rules", "Rules in our table.", "rules", True),
    ("felix_ipsets_calico", "Sets of addresses and ports that rules look up.", "sets", False),
)
_RECORDS = (
    ("felix_cluster_num_policies", "Policies of all kinds that are enforced.", "Policy"),
    ("felix_cluster_num_profiles", "Profiles.", "Profile"),
    ("felix_cluster_num_tiers", "Tiers.", "Tier"),
    ("felix_cluster_num_host_endpoints", "Host endpoints.", "HostEndpoint"),
)
_QUANTILES = (0.5, 0.9, 0.99)


def collect_policing(standing: Standing, figures: PolicyFigures) -> Iterator[Any]:
    """Called by prometheus-client to collect."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily

    for name, text, what in _GAUGES:
        yield GaugeMetricFamily(name, text, value=standing.counts.get(what, 0))
    selectors = "Selectors in force that choose among endpoints."
    yield GaugeMetricFamily("felix_active_local_selectors", selectors, value=figures.selectors)
    for name, text, kind in _RECORDS:
        yield GaugeMetricFamily(name, text, value=figures.records.get(kind, 0))
    if figures.workload_endpoints is not None:
        text = "Workloads of all nodes."
        yield GaugeMetricFamily("felix_cluster_num_workload_endpoints", text, value=figures.workload_endpoints)
    for name, text, what, has_table in _IN_KERNEL:
        labels = ["ip_version", "table"] if has_table else ["ip_version"]
        gauge = GaugeMetricFamily(name, text, labels=labels)
        for family, counts in figures.in_kernel.items():
            gauge.add_metric([family, "calico-policy"] if has_table else [family], counts[what])
        yield gauge
    text = "Policies that wait until there is memory for them."
    waiting = GaugeMetricFamily("calico_policy_waiting_for_memory", text, labels=["namespace"])
    for namespace, count in figures.waiting_for_memory.items():
        waiting.add_metric([namespace], count)
    yield waiting
    for name, text, value in (
        ("felix_nft_calls", "Transactions of the packet filter.", figures.transactions + figures.refused),
        ("felix_nft_errors", "Transactions that the kernel refused.", figures.refused),
        ("felix_int_dataplane_failures", "Failed attempts to put a change into force.", figures.failures),
    ):
        yield UnknownMetricFamily(name, text, value=value)
    text = "Time to calculate what simultaneous changes mean."
    yield _summary("felix_calc_graph_update_time_seconds", text, figures.calculation)
    yield _summary("felix_int_dataplane_apply_time_seconds", "Time to put a change into force.", figures.apply)
    yield _histogram("calico_policy_apply_seconds", "Time to put a change into force.", figures.apply)
    yield _histogram("calico_policy_change_seconds", "Time from the datastore's event to the kernel.", figures.change)
    yield GaugeMetricFamily(
        "calico_policy_in_force", "1 while policies are in force on this node.", value=standing.in_force
    )
    dropped = "Packets that standing rules dropped, since the rule was made."
    for name, text, counts in (
        ("calico_standing_dropped_packets", dropped, figures.dropped),
        ("calico_policy_rounds", "Rounds of the policy engine, by what they were done for.", dict(figures.rounds)),
    ):
        counter = CounterMetricFamily(name, text, labels=["reason"])
        for reason, count in counts.items():
            counter.add_metric([reason], count)
        yield counter
    by = GaugeMetricFamily("calico_policy_by", "1 for the packet filter that enforces policies.", labels=["filter"])
    by.add_metric([standing.by], 1)
    yield by
    yield GaugeMetricFamily("calico_policy_failing", "1 while changes cannot be applied.", value=bool(standing.failing))
    yield GaugeMetricFamily("calico_policy_problems", "Policies not in force as written.", value=len(standing.problems))
    for name, text, value in (
        ("calico_policy_repairs", "Repairs of what others changed.", figures.repairs),
        ("calico_policy_comparisons", "Full comparisons with the kernel in one go.", figures.compared),
    ):
        yield CounterMetricFamily(name, text, value=value)


def _summary(name: str, text: str, durations: Durations) -> Any:
    from prometheus_client.core import SummaryMetricFamily

    family = SummaryMetricFamily(name, text, count_value=durations.count, sum_value=durations.total_s)
    for part in _QUANTILES:
        family.add_sample(name, {"quantile": str(part)}, durations.quantile(part))
    return family


def _histogram(name: str, text: str, durations: Durations) -> Any:
    from prometheus_client.core import HistogramMetricFamily

    total, buckets = 0, []
    for limit, count in zip((*map(str, BUCKETS_S), "+Inf"), durations.buckets, strict=True):
        total += count
        buckets.append((limit, float(total)))
    family = HistogramMetricFamily(name, text)
    family.add_metric([], buckets=buckets, sum_value=durations.total_s)
    return family
