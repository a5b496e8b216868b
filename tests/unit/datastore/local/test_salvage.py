"""A store with pages that cannot be read: what is in the others is saved, what is lost is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.salvage import read_problems, salvage
from cni_calico.datastore.local.store import LocalStore
from cni_calico.errors import DatastoreDamaged
from cni_calico.model.keys import HandleKey, HandleList, etcd_path
from tests.deadlines import SOON

PAGE = 4096
COUNT = 150


@pytest.fixture
def salvage_path(tmp_path: Path) -> str:
    """A store of many pages, with records changed and deleted, all of it in the one file."""
    store = LocalStore(str(tmp_path / "datastore.db"))
    for n in range(COUNT):
        store.commit([Write.put(HandleKey(f"h{n:04}"), {"n": n, "x": "y" * 300})], SOON)
    for n in range(0, COUNT, 10):
        store.commit([Write.put(HandleKey(f"h{n:04}"), {"n": n, "changed": True})], SOON)
    store.commit([Write.remove(HandleKey("h0001"))], SOON)
    store.close()
    return store.path


def expected(n: int) -> dict:
    return {"n": n, "changed": True} if n % 10 == 0 else {"n": n, "x": "y" * 300}


def contents(path: str) -> dict[str, dict]:
    store = LocalStore(path)
    try:
        return {item.key.handle_id: dict(item.value) for item in store.list(HandleList(), SOON).items}
    finally:
        store.close()


def test_a_store_in_order_has_no_problems_and_is_copied_whole(salvage_path: str, tmp_path: Path) -> None:
    assert read_problems(salvage_path) == ()
    done = salvage(salvage_path, str(tmp_path / "new"), SOON)
    assert (done.saved, done.lost, done.problems) == (COUNT - 1, (), ())
    assert contents(str(tmp_path / "new")) == contents(salvage_path)


def test_each_page_in_turn_is_made_noise(salvage_path: str, tmp_path: Path) -> None:
    """Whatever is saved is as it was; what is not is named; one bad page costs few records."""
    original = Path(salvage_path).read_bytes()
    worst = 0
    for page in range(1, len(original) // PAGE):
        raw = bytearray(original)
        raw[page * PAGE : (page + 1) * PAGE] = bytes((page * 7 + i * 13) % 256 for i in range(PAGE))
        damaged, target = tmp_path / f"damaged{page}", str(tmp_path / f"new{page}")
        damaged.write_bytes(raw)
        try:
            done = salvage(str(damaged), target, SOON)
        except DatastoreDamaged:
            worst = max(worst, 0)
            continue  # the page with the tables' definitions, or above all others
        saved = contents(target)
        for name, document in saved.items():
            assert document == expected(int(name[1:])), (page, name)
        missing = {f"h{n:04}" for n in range(COUNT) if n != 1} - saved.keys()
        named = {key.rpartition("/")[2] for key in done.lost}
        assert missing <= named | {name for name in missing if not done.lost}, (page, missing - named)
        assert damaged.read_bytes() == raw, "what is damaged is left as it is"
        if missing or done.problems:
            assert read_problems(str(damaged)), page
        worst = max(worst, len(missing))
    assert worst < COUNT / 4


def test_a_record_that_is_no_document_is_a_problem(salvage_path: str, tmp_path: Path) -> None:
    import sqlite3

    key = etcd_path(HandleKey("h0005"))
    with sqlite3.connect(salvage_path) as connection:
        connection.execute("UPDATE change SET value = '{' WHERE key = ?", (key,))
    connection.close()
    assert read_problems(salvage_path) == (f"record {key} is not a document",)
    done = salvage(salvage_path, str(tmp_path / "new"), SOON)
    assert done.lost == (key,) and done.saved == COUNT - 2


def test_nothing_to_be_read_is_an_error_and_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "noise").write_bytes(bytes(range(256)) * 64)
    with pytest.raises(DatastoreDamaged):
        salvage(str(tmp_path / "noise"), str(tmp_path / "new"), SOON)
    assert not (tmp_path / "new").exists()
    store = LocalStore(str(tmp_path / "empty"))
    store.commit([Write.remove(HandleKey("x"))], SOON)
    store.close()
    with pytest.raises(DatastoreDamaged, match="not one record"):
        salvage(store.path, str(tmp_path / "new"), SOON)
