"""Keys noted by several threads reach whoever takes them, each exactly once per change."""

from __future__ import annotations

import threading

from cni_calico.datastore.changed_keys import ChangedKeys
from cni_calico.model.keys import HandleKey


def test_a_key_noted_twice_is_taken_once() -> None:
    changed = ChangedKeys()
    changed.note([HandleKey("a")])
    changed.note([HandleKey("a"), HandleKey("b")])
    assert changed.any.is_set()
    assert changed.take() == {HandleKey("a"), HandleKey("b")}
    assert not changed.any.is_set()
    assert changed.take() == frozenset()


def test_nothing_noted_by_threads_is_lost_and_the_event_never_lags() -> None:
    changed = ChangedKeys()
    taken: set[HandleKey] = set()

    def note(number: int) -> None:
        for i in range(300):
            changed.note([HandleKey(f"{number}-{i}")])

    threads = [threading.Thread(target=note, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    while len(taken) < 1200:
        assert changed.any.wait(30)
        taken |= changed.take()
    for thread in threads:
        thread.join()
    assert len(taken) == 1200
