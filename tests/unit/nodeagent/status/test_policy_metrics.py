"""The engine's metrics as Prometheus reads them."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from cni_calico.nodeagent.status.policing import PolicyFigures, Standing
from cni_calico.nodeagent.status.policy_metrics import collect_policing


class Collector:
    def __init__(self, standing: Standing, figures: PolicyFigures) -> None:
        self._both = standing, figures

    def collect(self) -> object:
        return collect_policing(*self._both)


def lines(standing: Standing, figures: PolicyFigures) -> set[str]:
    registry = CollectorRegistry()
    registry.register(Collector(standing, figures))
    return set(generate_latest(registry).decode().splitlines())


def test_all_of_them() -> None:
    figures = PolicyFigures(transactions=7, refused=2, failures=1, repairs=3, selectors=4)
    figures.in_kernel = {"4": {"chains": 10, "rules": 30, "sets": 5}, "6": {"chains": 9, "rules": 20, "sets": 4}}
    figures.records = {"Tier": 3, "Profile": 2, "Policy": 8, "HostEndpoint": 1}
    for seconds in (0.0004, 0.003, 0.003, 20.0):
        figures.apply.observe(seconds)
    figures.change.observe(0.02)
    figures.calculation.observe(0.001)
    figures.workload_endpoints = 12
    figures.dropped = {"spoofed-source": 3}
    figures.rounds["retry"] += 2
    standing = Standing(in_force=True, counts={"endpoints": 5, "policies": 6, "classes": 2}, problems=("one",))
    found = lines(standing, figures)
    for line in (
        "felix_active_local_endpoints 5.0",
        "felix_active_local_policies 6.0",
        "felix_active_local_selectors 4.0",
        "felix_cluster_num_policies 8.0",
        "felix_cluster_num_tiers 3.0",
        "felix_cluster_num_workload_endpoints 12.0",
        'felix_calc_graph_update_time_seconds{quantile="0.5"} 0.001',
        "felix_calc_graph_update_time_seconds_count 1.0",
        'felix_nft_chains{ip_version="4",table="calico-policy"} 10.0',
        'felix_nft_rules{ip_version="6",table="calico-policy"} 20.0',
        'felix_ipsets_calico{ip_version="4"} 5.0',
        "felix_nft_calls 9.0",
        "felix_nft_errors 2.0",
        "felix_int_dataplane_failures 1.0",
        'felix_int_dataplane_apply_time_seconds{quantile="0.5"} 0.003',
        'felix_int_dataplane_apply_time_seconds{quantile="0.99"} 20.0',
        "felix_int_dataplane_apply_time_seconds_count 4.0",
        'calico_policy_apply_seconds_bucket{le="0.0005"} 1.0',
        'calico_policy_apply_seconds_bucket{le="0.005"} 3.0',
        'calico_policy_apply_seconds_bucket{le="10.0"} 3.0',
        'calico_policy_apply_seconds_bucket{le="+Inf"} 4.0',
        'calico_policy_change_seconds_bucket{le="0.025"} 1.0',
        "calico_policy_in_force 1.0",
        'calico_standing_dropped_packets_total{reason="spoofed-source"} 3.0',
        'calico_policy_rounds_total{reason="retry"} 2.0',
        "calico_policy_problems 1.0",
        "calico_policy_repairs_total 3.0",
    ):
        assert line in found, line


def test_before_there_is_anything() -> None:
    found = lines(Standing(), PolicyFigures())
    assert (
        'felix_int_dataplane_apply_time_seconds{quantile="0.5"} 0.0' in found and "calico_policy_in_force 0.0" in found
    )


def test_workloads_that_are_not_followed_are_not_counted() -> None:
    assert not [line for line in lines(Standing(), PolicyFigures()) if "num_workload_endpoints" in line]
