"""Reads and writes records of a datastore, also ones that no backend would write.

Rule: on etcd all this is called in children of ``tests.e2e.forks``: gRPC does not survive a fork, and etcd listens in a
namespace.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from typing import Any

from cni_calico.datastore.connect import open_datastore
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.interface import Datastore, Write
from cni_calico.datastore.local.file import SUB_BITS
from cni_calico.deadline import Deadline
from cni_calico.errors import OutcomeUnknown
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.keys import EverythingList, etcd_path, parse_path


def dump(config: DatastoreConfig) -> dict[str, Any]:
    store = open_datastore(config)
    try:
        return {etcd_path(item.key): item.value for item in store.list(EverythingList(), Deadline.after(10)).items}
    finally:
        store.close()


def put(config: DatastoreConfig, documents: Mapping[str, Any]) -> None:
    store = open_datastore(config)
    try:
        for path, document in documents.items():
            key = parse_path(path)
            assert key is not None, path
            _commit(store, Write.put(key, document) if document is not None else Write.remove(key))
    finally:
        store.close()


def _commit(store: Datastore, write: Write) -> None:
    """Again as long as the outcome is unknown: on a busy machine etcd takes longer than a client waits for an answer,
    and the same write twice is one.
    """
    deadline = Deadline.after(30)
    while True:
        try:
            store.commit([write], deadline)
        except OutcomeUnknown:
            continue
        return


def read_raw(config: DatastoreConfig) -> dict[str, bytes]:
    """Every stored value by its key, as it is."""
    if config.type == "local":
        query = "SELECT h.key, c.value FROM head h JOIN change c ON c.id = h.id"
        with closing(sqlite3.connect(config.path)) as connection:
            connection.text_factory = bytes
            return {key.decode(): value for key, value in connection.execute(query)}
    answer = _ask_etcd(config, "Range", pb.RangeRequest(key=b"/calico/", range_end=b"/calico0"), pb.RangeResponse)
    return {kv.key.decode(): kv.value for kv in answer.kvs}


def write_raw(config: DatastoreConfig, path: str, value: bytes) -> None:
    """Replace a stored value by these bytes, whatever they are."""
    if config.type == "local":
        with closing(sqlite3.connect(config.path, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            (newest,) = connection.execute("SELECT max(id) FROM change").fetchone()
            change = ((newest >> SUB_BITS) + 1) << SUB_BITS  # a revision of its own, as any other writer's
            row = (change, path, path, change >> SUB_BITS, value)
            query = "INSERT INTO change VALUES (?, ?, (SELECT id FROM head WHERE key = ?), ?, CAST(? AS TEXT))"
            connection.execute(query, row)
            assert connection.execute("UPDATE head SET id = ? WHERE key = ?", (change, path)).rowcount == 1, path
            connection.execute("COMMIT")
    else:
        _ask_etcd(config, "Put", pb.PutRequest(key=path.encode(), value=value), pb.PutResponse)


def _ask_etcd(config: DatastoreConfig, method: str, request: Any, answer: Any) -> Any:
    import grpc

    with grpc.insecure_channel(config.etcd_endpoints[0].removeprefix("http://")) as channel:
        call = channel.unary_unary(
            f"/etcdserverpb.KV/{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=answer.FromString,
        )
        return call(request, timeout=10)


def encode_config(config: DatastoreConfig) -> str:
    """As an argument of a program's."""
    values = asdict(config)
    del values["kubernetes"]
    return json.dumps(values)
