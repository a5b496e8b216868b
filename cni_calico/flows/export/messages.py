"""Makes messages of updates, as the collector's service has them (goldmane.proto).

Rule: the same update is always the same bytes: a collector knows a repetition by that.
"""

from __future__ import annotations

from typing import Any

from cni_calico.flows.export.intervals import ExportedFlow
from cni_calico.flows.export.keys import NONE, ExportedService, ExportKey, PolicyHit
from cni_calico.slim_grpc import slim_messages

with slim_messages():
    from cni_calico.flows.export import goldmane_pb2 as pb

__all__ = ["METHOD", "decode_update", "encode_update", "pb"]

METHOD = "/goldmane.FlowCollector/Connect"
_NO_SERVICE = ExportedService(NONE, NONE, NONE, 0)


def encode_update(flow: ExportedFlow) -> bytes:
    """Raises ValueError for a text that is not UTF-8, as JSON can contain it, or a number that is too large."""
    message = pb.FlowUpdate(
        flow=pb.Flow(
            Key=_key(flow.key),
            start_time=flow.time,
            end_time=flow.time,
            source_labels=flow.source_labels,
            dest_labels=flow.destination_labels,
            packets_in=flow.packets_in,
            packets_out=flow.packets_out,
            bytes_in=flow.bytes_in,
            bytes_out=flow.bytes_out,
            num_connections_started=flow.started,
            num_connections_completed=flow.completed,
            num_connections_live=flow.live,
        )
    )
    return message.SerializeToString(deterministic=True)


def decode_update(data: bytes) -> Any:
    """The Flow in it. Raises ValueError."""
    try:
        return pb.FlowUpdate.FromString(data).flow
    except Exception as e:  # DecodeError, which would have to be imported just for its name
        raise ValueError(f"it is no update: {e}") from e


def _key(key: ExportKey) -> Any:
    service = key.service or _NO_SERVICE
    return pb.FlowKey(
        source_name=key.source.name,
        source_namespace=key.source.namespace,
        source_type=_number(key.source.type),
        dest_name=key.destination.name,
        dest_namespace=key.destination.namespace,
        dest_type=_number(key.destination.type),
        dest_port=key.port,
        dest_service_name=service.name,
        dest_service_namespace=service.namespace,
        dest_service_port_name=service.port_name,
        dest_service_port=service.port,
        proto=key.protocol,
        reporter=_number(key.reporter),
        action=_number(key.action),
        policies=pb.PolicyTrace(
            enforced_policies=[_hit(at, hit) for at, hit in enumerate(key.hits)],
            pending_policies=[_hit(at, hit) for at, hit in enumerate(key.pending)],
        ),
    )


def _hit(at: int, hit: PolicyHit) -> Any:
    return pb.PolicyHit(
        kind=_number(hit.kind),
        namespace=hit.namespace,
        name=hit.name,
        tier=hit.tier,
        action=_number(hit.action or 0),
        policy_index=at,
        rule_index=hit.rule,
        trigger=None if hit.trigger is None else _hit(0, hit.trigger),
    )


def _number(value: int) -> Any:
    """Of an enumeration, for whose values the generated messages have types of their own."""
    return int(value)
