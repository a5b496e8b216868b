"""What a traced store says, beside doing what the other one does."""

import pytest

from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.datastore.traced import TracedStore
from cni_calico.deadline import Deadline
from cni_calico.model.keys import ResourceKey, ResourceList

KEY = ResourceKey("NetworkSet", "s", "space")
PATH = "/calico/resources/v3/projectcalico.org/networksets/space/s"


def test_every_request_is_said_without_what_is_stored(tmp_path):
    said = []
    store = LocalStore(str(tmp_path / "store.db"))
    try:
        traced = TracedStore(store, said.append)
        deadline = Deadline.after(10)
        traced.commit([Write.create(KEY, {"spec": {"secret": "hidden"}})], deadline)
        assert traced.get(KEY, deadline) == store.get(KEY, deadline)
        assert traced.get_many([KEY], deadline) == store.get_many([KEY], deadline)
        listing = traced.list(ResourceList("NetworkSet"), deadline)
        assert [item.key for item in listing.items] == [KEY]
        with traced.watch(ResourceList("NetworkSet"), listing.revision):
            pass
        with pytest.raises(CommitConflict):
            traced.commit([Write.create(KEY, {})], deadline)
    finally:
        store.close()
    listed = PATH.removesuffix("space/s")
    begins = [f"commit create {PATH}", f"get {PATH}", f"get {PATH}", f"list {listed}", f"watch {listed}"]
    assert [line.partition(":")[0] for line in said] == [*begins, f"commit create {PATH}"]
    assert "changed by somebody else after " in said[-1] and said[-1].endswith(" ms")
    assert not any("hidden" in line for line in said)
