"""A document that has not been read is one all the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.datastore.unread import UnreadDocument


def test_it_is_read_when_it_is_looked_into_and_not_before() -> None:
    times = 0

    def read() -> Mapping[str, Any]:
        nonlocal times
        times += 1
        return {"spec": {"a": 1}, "kind": "k"}

    unread = UnreadDocument(17, read)
    assert unread.size == 17 and times == 0
    assert unread.read() == {"spec": {"a": 1}, "kind": "k"} and times == 1
    assert unread["kind"] == "k" and unread.get("none") is None and len(unread) == 2 and dict(unread) == unread.read()
