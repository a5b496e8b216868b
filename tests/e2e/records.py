"""Reads and writes records of a datastore in a process of its own: ``python -m tests.e2e.records CONFIG dump|put``.

CONFIG is a DatastoreConfig in JSON. ``dump`` prints {etcd key: document}; ``put`` stores the {etcd key: document} on
stdin (null: removes). A process of its own, because gRPC does not survive a fork and etcd listens in a namespace.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cni_calico.datastore.client import Write
from cni_calico.datastore.connect import open_datastore
from cni_calico.deadline import Deadline
from cni_calico.model.keys import EverythingList, etcd_path, parse_path
from cni_calico.model.settings import DatastoreConfig


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
            store.commit([Write.put(key, document) if document is not None else Write.remove(key)], Deadline.after(10))
    finally:
        store.close()


def encode_config(config: DatastoreConfig) -> str:
    values = asdict(config)
    del values["kubernetes"]
    return json.dumps(values)


def main() -> None:
    values = json.loads(sys.argv[1])
    values["etcd_endpoints"] = tuple(values["etcd_endpoints"])
    config = DatastoreConfig(**values)
    if sys.argv[2] == "dump":
        json.dump(dump(config), sys.stdout)
    else:
        put(config, json.load(sys.stdin))


if __name__ == "__main__":
    main()
