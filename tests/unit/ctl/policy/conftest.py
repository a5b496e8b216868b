"""A datastore with the records of upstream's vectors."""

import json
from pathlib import Path

import pytest

from cni_calico.model.keys import ResourceKey, etcd_path

VECTORS = Path(__file__).resolve().parents[3] / "golden" / "policy"


@pytest.fixture
def tiered_cluster(calicoctl):
    """The records of upstream's vector with a Kubernetes policy, written as they were stored."""

    def load(name):
        records = {}
        for document in json.loads((VECTORS / f"{name}.input.json").read_text())["resources"]:
            metadata = document["metadata"]
            key = ResourceKey(document["kind"], metadata["name"], metadata.get("namespace", ""))
            records[etcd_path(key)] = document
        calicoctl.write(records)
        return calicoctl

    return load
