"""A node that gets no new key is named, and so is who does not follow one."""

from __future__ import annotations

from argparse import Namespace
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.encryption import rotate as command
from cni_calico.ctl.session import CommandFailed, ResourceMissing, Session
from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import decode_node, encode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Node
from cni_calico.model.wireguard import ROTATE, published_key, with_awaited, with_published_key

KEY = ResourceKey("Node", "a")
BEFORE, AFTER = (b64encode(bytes([number]) * 32).decode() for number in (1, 2))


def put(store: LocalStore, node: Node) -> None:
    store.commit([Write.put(KEY, encode_node(node))], Deadline.after(5))


def stored(store: LocalStore) -> Node:
    found = store.get(KEY, Deadline.after(5))
    assert found is not None
    return decode_node(KEY, found.value)


def rotate(store: LocalStore, node: str = "", *, of_all: bool = False) -> str:
    session = Session(store, Deadline.after(30), lambda: "2026-01-01T00:00:00Z", lambda: "uid")
    return command.rotate(session, Namespace(node=node, all=of_all))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ANSWER_S", 0.4)


def test_what_is_wrong_is_told(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path / "store.db"))
    with pytest.raises(CommandFailed, match="expected the name of a node, or --all"):
        rotate(store)
    with pytest.raises(ResourceMissing):
        rotate(store, "b")
    put(store, Node(Metadata("a", uid="u")))
    with pytest.raises(CommandFailed, match="no WireGuard key"):
        rotate(store, of_all=True)
    put(store, with_published_key(Node(Metadata("a", uid="u")), 4, BEFORE))
    with pytest.raises(CommandFailed, match=r"node a has told no new key .* does its agent run\?; no other node was"):
        rotate(store, "a")
    assert stored(store).metadata.annotations[ROTATE] == "2026-01-01T00:00:00Z"
    store.close()


def test_who_does_not_follow_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(str(tmp_path / "store.db"))
    ensure_record = command.ensure_record
    awaited: tuple[str, ...] = ()

    def answered(*arguments: Any) -> Any:
        """As the agent does it after it was asked."""
        done = ensure_record(*arguments)
        node = with_published_key(stored(store), 4, AFTER)
        put(store, with_awaited(node, 4, awaited))
        return done

    monkeypatch.setattr(command, "ensure_record", answered)
    put(store, with_published_key(Node(Metadata("a", uid="u")), 4, BEFORE))
    assert rotate(store, of_all=True) == "Node a has a new key.\n" and published_key(stored(store), 4) == AFTER
    awaited = ("b", "c")
    put(store, with_published_key(stored(store), 4, BEFORE))
    with pytest.raises(CommandFailed, match="node a has a new key, which b, c did not follow"):
        rotate(store, "a")
    store.close()
