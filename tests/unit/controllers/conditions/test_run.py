"""One look at pools or tiers: what is written, what is asked again, what is left alone."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

from cni_calico.controllers.conditions.pools import FINALIZER
from cni_calico.controllers.conditions.run import POOLS, TIERS, Guarded, ObjectGuard
from cni_calico.datastore.interface import Write
from cni_calico.model.keys import AffinityKey, BlockKey, ResourceKey
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore

BLOCK = ip_network("10.0.0.0/30")
POOL, TIER, POLICY = (
    ResourceKey("IPPool", "a"),
    ResourceKey("Tier", "sec"),
    ResourceKey("NetworkPolicy", "p", "ns"),
)
GOING = {"deletionTimestamp": "2026-08-01T00:00:00Z"}


def put(store: MemoryStore, key: Any, document: Any) -> None:
    store.commit([Write.put(key, document)], soon())


def resource(key: ResourceKey, spec: Any, **metadata: Any) -> dict[str, Any]:
    return {"kind": key.kind, "metadata": {"name": key.name, **metadata}, "spec": spec}


def look(store: MemoryStore, guarded: Guarded, key: ResourceKey, keepers: Any = None) -> Any:
    """The document afterwards; ``keepers``: what the caches know."""
    found = store.get(key, soon())
    assert found is not None
    guard = ObjectGuard(guarded, store, lambda: "2026-08-01T00:00:00Z")
    guard.apply({key: found.value}, keepers or {}, soon())
    after = store.get(key, soon())
    assert after is not None
    return after.value


def test_a_pool_is_held_and_said_to_give_addresses_once() -> None:
    store = MemoryStore()
    put(store, POOL, resource(POOL, {"cidr": "10.0.0.0/24"}))
    after = look(store, POOLS, POOL)
    assert after["metadata"]["finalizers"] == [FINALIZER]
    assert after["status"]["conditions"][0]["reason"] == "OK"
    before = store.get(POOL, soon())
    look(store, POOLS, POOL)
    assert store.get(POOL, soon()) == before, "nothing is written twice"


def block(owner: str | None, *, is_used: bool) -> dict[str, Any]:
    attribute = {"handle_id": "net.c1", "secondary": {}}
    return {
        "cidr": str(BLOCK),
        "affinity": owner,
        "allocations": [0 if is_used else None, None, None, None],
        "unallocated": [1, 2, 3] if is_used else [0, 1, 2, 3],
        "attributes": [attribute] if is_used else [],
        "sequenceNumber": 1,
        "sequenceNumberForAllocation": {},
        "deleted": False,
    }


def test_the_last_address_takes_the_pool_with_it() -> None:
    store = MemoryStore()
    put(store, POOL, resource(POOL, {"cidr": "10.0.0.0/24"}, finalizers=[FINALIZER], **GOING))
    put(store, AffinityKey("n1", BLOCK), {"state": "confirmed", "deleted": False})
    put(store, BlockKey(BLOCK), block("host:n1", is_used=True))
    after = look(store, POOLS, POOL)  # the caches know of no block yet
    assert after["metadata"]["finalizers"] == [FINALIZER]
    assert after["status"]["conditions"][0]["reason"] == "Terminating"
    assert store.get(AffinityKey("n1", BLOCK), soon()) is None
    left = store.get(BlockKey(BLOCK), soon())
    assert left is not None and left.value["affinity"] is None
    put(store, BlockKey(BLOCK), block(None, is_used=False))
    after = look(store, POOLS, POOL)
    assert after["metadata"]["finalizers"] == [] and store.get(BlockKey(BLOCK), soon()) is None


def test_a_tier_waits_for_policies_that_no_cache_knows_yet() -> None:
    store = MemoryStore()
    put(store, TIER, resource(TIER, {}, finalizers=["projectcalico.org/tier-controller", "others/one"], **GOING))
    put(store, POLICY, resource(POLICY, {"tier": "sec"}, namespace="ns"))
    after = look(store, TIERS, TIER)
    assert len(after["metadata"]["finalizers"]) == 2
    assert after["status"]["conditions"][0]["message"].endswith("1 NetworkPolicy")
    store.commit([Write.remove(POLICY)], soon())
    assert look(store, TIERS, TIER)["metadata"]["finalizers"] == ["others/one"]


def test_what_is_gone_meanwhile_is_no_failure() -> None:
    store = MemoryStore()
    guard = ObjectGuard(TIERS, store, lambda: "")
    assert guard.apply({TIER: resource(TIER, {})}, {}, soon()) == 0
