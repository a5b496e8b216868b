"""What was read comes out of its packing as it was, and a list that was begun again counts once."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.ipam.packed import Alike, PackedItems, kind_of
from cni_calico.ctl.ipam.records import StoredItems, read_records
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Listing, PodDocument, Reading, Versioned
from cni_calico.deadline import Deadline
from cni_calico.errors import CorruptRecord
from cni_calico.model.keys import AffinityKey, BlockKey, EverythingList, HandleKey, IPAMConfigKey, Key, ResourceKey

TEXTS = st.text(max_size=12)
NETWORKS = st.ip_addresses().map(ip_network)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(TEXTS, JSON, max_size=4)
KEYS: st.SearchStrategy[Key] = st.one_of(
    st.builds(ResourceKey, TEXTS, TEXTS, TEXTS),
    st.builds(BlockKey, NETWORKS),
    st.builds(AffinityKey, TEXTS, NETWORKS, st.sampled_from(("host", "virtual"))),
    st.builds(HandleKey, TEXTS),
    st.just(IPAMConfigKey()),
)
ITEMS = st.builds(
    Versioned,
    KEYS,
    DOCUMENTS | st.builds(PodDocument, DOCUMENTS, DOCUMENTS),
    st.integers(0, 2**63) | TEXTS,
    TEXTS,
)


def pod_in(item: Versioned) -> Any:
    return item.value.pod if isinstance(item.value, PodDocument) else None


@given(st.lists(ITEMS, max_size=6), st.integers(1, 60), st.data())
def test_what_comes_out_is_what_was_put_in(few: list[Versioned], times: int, data: st.DataObject) -> None:
    items, packed = few * times, PackedItems()  # so many that there are pieces, and a beginning of the next one
    assert [packed.add(item) for item in items] == list(range(len(items)))
    for _ in range(2):
        assert list(packed) == items and [*map(pod_in, packed)] == [*map(pod_in, items)]
    if items:
        kept = data.draw(st.sets(st.integers(0, len(items) - 1)))
        packed.keep(sorted(kept))
        assert list(packed) == [item for number, item in enumerate(items) if number in kept]
        assert len(packed) == len(kept)


def handle(name: str, *, count: int = 1) -> Versioned:
    return Versioned(HandleKey(name), {"block": {"10.0.0.0/26": count}, "deleted": False}, 7)


class Interrupted:
    """A datastore whose list has to be read again from its beginning: by then ``gone`` is gone."""

    kind = "etcdv3"

    def list(self, listing: Any, deadline: Deadline, *, reading: Reading) -> Listing:
        for name in ("gone", "a"):
            reading.receive(handle(name))
        policy = Versioned(ResourceKey("NetworkPolicy", "p", "n"), {}, 3)
        return Listing([reading.receive(item) for item in (handle("a", count=2), policy, handle("b"))], 9)


def session_on(store: Any) -> Session:
    return Session(store, Deadline.after(10), lambda: "", lambda: "")


def test_a_list_that_was_begun_again_counts_once() -> None:
    items, told = StoredItems(), []
    items.read(session_on(Interrupted()), EverythingList(), lambda: told.append(1))
    assert list(items.of("handle")) == [handle("a", count=2), handle("b")]
    assert len(told) == 5
    assert not list(items.of("block", "Node", "affinity"))


@pytest.mark.parametrize("wrong", [{"spec": 5}, {"spec": {"ipNetworks": ["x"]}}])
def test_endpoints_that_cannot_be_read_are_reported_once(wrong: dict[str, Any]) -> None:
    items = StoredItems()

    class Store:
        def list(self, listing: Any, deadline: Deadline, *, reading: Reading) -> Listing:
            return Listing([reading.receive(Versioned(ResourceKey("WorkloadEndpoint", "x", "n"), wrong, 1))], 1)

    session = session_on(Store())
    items.read(session, EverythingList(), lambda: None)
    records = read_records(session, items)
    for _ in range(3):
        assert list(records.endpoints) == []
        ((subject, why),) = cast("list[tuple[str, str]]", records.corrupt)
        assert subject == "WorkloadEndpoint n/x" and why.startswith("cannot read WorkloadEndpoint n/x: spec")


def test_equal_documents_are_decoded_once_and_wrong_ones_blamed_each() -> None:
    asked = []

    def read(item: Versioned) -> str:
        asked.append(item.key)
        if item.value["block"]["10.0.0.0/26"] == 3:
            raise CorruptRecord(f"cannot read {item.key}")
        return f"{item.value}"

    alike = Alike(read)
    assert alike(handle("a")) == alike(handle("b")) != alike(handle("c", count=2))
    assert asked == [HandleKey("a"), HandleKey("c")]
    for name in ("d", "e"):
        with pytest.raises(CorruptRecord, match=f"'{name}'"):
            alike(handle(name, count=3))


def test_kinds_that_have_records_of_addresses() -> None:
    network = ip_network("10.0.0.0/26")
    keys = [BlockKey(network), AffinityKey("n", network), AffinityKey("v", network, "virtual"), HandleKey("h")]
    assert [kind_of(key) for key in keys] == ["block", "affinity", "virtual affinity", "handle"]
    assert kind_of(ResourceKey("Node", "n")) == "Node" and kind_of(IPAMConfigKey()) == ""
