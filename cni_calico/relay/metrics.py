"""PURE: a relay's numbers in Prometheus' format.

Rule: upstream's names are used where the same thing exists here; numbers of things that only its protocol has (pings,
batches of snapshots) are left out.
"""

from __future__ import annotations

from cni_calico.daemon.exposition import Exposition
from cni_calico.relay.numbers import LATENCIES_S, RelayNumbers

_ENDED = ("closed", "ended", "answered", "stopped")


def render_relay_metrics(numbers: RelayNumbers) -> str:
    server, cache = numbers.server, numbers.cache
    out = Exposition()
    out.gauge("typha_connections_active", "Open connections.", numbers.connections)
    out.gauge("typha_connections_streaming", "Connections that follow something.", numbers.streaming)
    out.count("typha_connections_accepted", "Connections accepted.", server.accepted)
    dropped = sum(count for why, count in server.dropped.items() if why not in _ENDED)
    out.count(
        "typha_connections_dropped", "Connections that were ended here, to balance or because of limits.", dropped
    )
    for path, count in numbers.sizes.items():
        out.gauge("typha_cache_size", "Objects known.", count, syncer=path)
    out.count("typha_updates_total", "Events of the API server.", cache.updates)
    out.count("typha_updates_skipped", "Events that changed nothing that is relayed.", cache.skipped)
    waited = "How long changes waited before they were sent to a client."
    out.summarise("typha_client_latency_secs", waited, server.waits)
    out.summarise("typha_client_snapshot_send_secs", "How long a list took to be ready to be sent.", server.lists)
    text = "How long making and sending a message to a client took."
    out.summarise("typha_client_write_latency_secs", text, server.writes)
    for path, size in numbers.raw_bytes.items():
        out.gauge("typha_snapshot_raw_bytes", "Size of the last list.", size, syncer=path)
    for path, size in numbers.compressed_bytes.items():
        out.gauge("typha_snapshot_compressed_bytes", "Size of the last list as sent.", size, syncer=path)
    out.observe("calico_relay_latency_seconds", waited, LATENCIES_S, server.latency, server.waits.total_s)
    for why, count in server.dropped.items():
        out.count("calico_relay_connections_ended_total", "Connections that ended, by reason.", count, reason=why)
    for kind, count in server.requests.items():
        out.count("calico_relay_requests_total", "Requests, by kind.", count, kind=kind)
    out.count("calico_relay_messages_total", "Messages sent.", server.messages)
    out.count("calico_relay_sent_bytes_total", "Bytes sent, before encryption.", server.bytes)
    out.count("calico_relay_rendered_total", "Messages rendered; many clients get the same one.", cache.rendered)
    out.gauge("calico_relay_fair_share", "More clients than this are sent to other relays.", numbers.share)
    for outcome, count in numbers.older.items():
        text = "How often the API server was asked for changes from before this relay's start, by outcome."
        out.count("calico_relay_history_reads_total", text, count, outcome=outcome)
    out.gauge("calico_relay_collections_failing", "Collections that cannot be followed now.", numbers.troubles)
    return out.render()
