"""A relay's metrics."""

from __future__ import annotations

from cni_calico.relay.metrics import render_relay_metrics
from cni_calico.relay.numbers import RelayNumbers, ServerNumbers, WatchCacheNumbers


def render(server: ServerNumbers) -> str:
    return render_relay_metrics(
        RelayNumbers(
            server,
            WatchCacheNumbers(updates=7, skipped=3),
            connections=4,
            streaming=2,
            share=400,
            sizes={"/api/v1/nodes": 5},
            raw_bytes={"/api/v1/nodes": 100},
            compressed_bytes={"/api/v1/nodes": 10},
            older={"read": 1, "gone": 0, "failed": 0},
            troubles=0,
        )
    )


def test_upstreams_names_where_the_same_thing_exists() -> None:
    numbers = ServerNumbers(accepted=9, dropped={"behind": 2, "closed": 5, "balance": 1})
    numbers.lists.observe(0.1)
    numbers.lists.observe(0.4)
    numbers.flush(2, 0.0625, 0.0)  # two clients were told at once
    numbers.flush(1, 0.0625, 0.0625)
    lines = render(numbers).splitlines()
    for line in (
        "typha_connections_active 4",
        "typha_connections_streaming 2",
        "typha_connections_accepted 9",
        "typha_connections_dropped 3",  # those that left by themselves are not among them
        'typha_cache_size{syncer="/api/v1/nodes"} 5',
        "typha_updates_total 7",
        "typha_updates_skipped 3",
        "# TYPE typha_client_latency_secs summary",
        "typha_client_latency_secs_count 3",
        "typha_client_latency_secs_sum 0.250000",
        'typha_client_latency_secs{quantile="0.5"} 0.062500',
        'typha_client_latency_secs{quantile="0.99"} 0.125000',
        'typha_client_snapshot_send_secs{quantile="0.5"} 0.100000',
        'typha_client_write_latency_secs{quantile="0.5"} 0.031250',
        "typha_client_snapshot_send_secs_count 2",
        "# TYPE typha_client_write_latency_secs summary",
        "typha_client_write_latency_secs_count 3",
        "typha_client_write_latency_secs_sum 0.125000",
        'typha_snapshot_raw_bytes{syncer="/api/v1/nodes"} 100',
        'typha_snapshot_compressed_bytes{syncer="/api/v1/nodes"} 10',
        'calico_relay_connections_ended_total{reason="behind"} 2',
        'calico_relay_history_reads_total{outcome="read"} 1',
    ):
        assert line in lines


def test_what_does_not_exist_here_is_not_made_up() -> None:
    text = render(ServerNumbers())
    for name in ("ping", "breadcrumb", "go_"):
        assert name not in text
