"""A relay in a cluster whose records are resources of projectcalico.org/v3."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.cache import Cache
from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.relayed.store import RelayedStore
from cni_calico.datastore.remembered import Kept
from cni_calico.deadline import Deadline
from cni_calico.model.keys import AffinityKey, BlockKey, BlockList, ResourceKey, ResourceList
from tests.deadlines import soon, until
from tests.e2e.kubernetes.cluster import NATIVE_ROOT, native_cluster
from tests.e2e.kubernetes.programs import RelayProcess
from tests.e2e.relays import make_certificates, relay_access

pytestmark = pytest.mark.kubernetes

BLOCK = ip_network("10.65.0.0/26")


def test_it_finds_the_group_out_and_serves_it(tmp_path: Path) -> None:
    kube = native_cluster()
    kube.empty(NATIVE_ROOT)
    make_certificates(tmp_path)
    process = RelayProcess(kube, tmp_path)
    direct = kube.store()
    followed: list[Cache[Any]] = []
    relayed = RelayedStore(kube.access(), relay_access(tmp_path, process.port), lambda why: None)
    try:
        process.await_ready()
        followed += [
            Cache(relayed, Kept(listing, lambda found: dict(found.value)), cached=True)
            for listing in (ResourceList("IPPool"), BlockList(owner="host:n1"))
        ]
        pools, blocks = followed
        for cache in followed:
            cache.wait_synced(Deadline.after(30))
        assert relayed.lists == 2
        key = ResourceKey("IPPool", "p")
        spec = {"cidr": "10.65.0.0/16", "blockSize": 26}
        direct.commit([Write.create(key, {"metadata": {"name": "p"}, "spec": spec})], soon())
        until(lambda: (pools.record(key) or {}).get("spec", {}).get("blockSize") == 26, "the pool", 30)
        block = {
            "cidr": str(BLOCK),
            "affinity": "host:n1",
            "allocations": [None] * 64,
            "unallocated": list(range(64)),
            "attributes": [],
            "sequenceNumber": 1,
            "deleted": False,
        }
        mine, theirs = BlockKey(BLOCK), BlockKey(ip_network("10.65.0.64/26"))
        direct.commit([Write.create(theirs, {**block, "cidr": str(theirs.cidr), "affinity": "host:n2"})], soon())
        direct.commit([Write.create(mine, block)], soon())
        until(lambda: blocks.record(mine) is not None, "the node's block", 30)
        assert blocks.record(theirs) is None
        affinity = AffinityKey("n1", BLOCK)
        direct.commit([Write.create(affinity, {"state": "confirmed", "deleted": False})], soon())
        until(lambda: [each.key for each in relayed.list(BlockList(), soon()).items] == [mine, theirs], "both", 30)
    finally:
        for cache in followed:
            cache.stop()
        relayed.close()
        direct.close()
        process.stop()
