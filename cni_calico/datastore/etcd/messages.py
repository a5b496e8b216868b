"""gRPC and etcd's messages, imported without parts that we do not use (cni_calico/slim_grpc.py)."""

from __future__ import annotations

from cni_calico.slim_grpc import load_grpc, slim_messages

with slim_messages():
    from cni_calico.datastore.etcd import etcd_pb2 as pb

__all__ = ["load_grpc", "pb"]
