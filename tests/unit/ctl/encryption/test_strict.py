"""Mandatory encryption is refused while it would cut somebody off; and what is said of the way between two nodes."""

from __future__ import annotations

from argparse import Namespace
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest

from cni_calico.ctl.encryption.between import describe_between
from cni_calico.ctl.encryption.strict import strict
from cni_calico.ctl.session import CommandFailed, Session
from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.documents.codec import encode_node
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Node
from cni_calico.model.wireguard import with_published_key

FELIX = ResourceKey("FelixConfiguration", "default")
STRICT, EXEMPT = "cni-calico.io/wireguard-strict", "cni-calico.io/wireguard-exempt"


class Cluster:
    def __init__(self, store: LocalStore) -> None:
        self.session = Session(store, Deadline.after(30), lambda: "2026-01-01T00:00:00Z", lambda: "uid")

    def put_node(self, name: str, number: int) -> Node:
        """``number`` 0: it has no key."""
        node = Node(Metadata(name, uid=name), ipv4=IPv4Interface("192.0.2.1/24"))
        node = with_published_key(node, 4, b64encode(bytes([number]) * 32).decode() if number else "")
        self.session.store.commit([Write.put(ResourceKey("Node", name), encode_node(node))], Deadline.after(5))
        return node

    def put_felix(self, annotations: dict[str, str], **spec: Any) -> None:
        document = {"kind": FELIX.kind, "metadata": {"name": "default", "annotations": annotations}, "spec": spec}
        self.session.store.commit([Write.put(FELIX, document)], Deadline.after(5))

    def felix(self) -> dict[str, Any] | None:
        found = self.session.store.get(FELIX, Deadline.after(5))
        return None if found is None else dict(found.value)

    def strict(self, state: str, *, force: bool = False) -> str:
        return strict(self.session, Namespace(state=state, force=force))


@pytest.fixture
def encryption_cluster(tmp_path: Path) -> Iterator[Cluster]:
    store = LocalStore(str(tmp_path / "store.db"))
    yield Cluster(store)
    store.close()


def test_strict_cuts_nobody_off_unasked(encryption_cluster: Cluster) -> None:
    encryption_cluster.put_node("a", 1)
    encryption_cluster.put_node("b", 0)
    assert "was not mandatory" in encryption_cluster.strict("off") and encryption_cluster.felix() is None
    with pytest.raises(CommandFailed, match="it is not enabled"):
        encryption_cluster.strict("on")
    encryption_cluster.put_felix({"theirs": "stays"}, wireguardEnabled=True, other=1)
    with pytest.raises(CommandFailed, match=r"cut off b \(IPv4: it has no key"):
        encryption_cluster.strict("on")
    assert (encryption_cluster.felix() or {})["metadata"]["annotations"] == {"theirs": "stays"}
    encryption_cluster.put_felix({"theirs": "stays", EXEMPT: "b"}, wireguardEnabled=True)
    assert "mandatory now" in encryption_cluster.strict("on") and "already" in encryption_cluster.strict("on")
    encryption_cluster.put_felix({}, wireguardEnabled=True, other=1)
    assert "mandatory now" in encryption_cluster.strict("on", force=True)
    found = encryption_cluster.felix() or {}
    assert found["metadata"]["annotations"] == {STRICT: "true"} and found["spec"] == {
        "wireguardEnabled": True,
        "other": 1,
    }
    assert "not mandatory any more" in encryption_cluster.strict("off")
    assert "annotations" not in (encryption_cluster.felix() or {})["metadata"]


def test_the_way_between_two_nodes(encryption_cluster: Cluster) -> None:
    nodes = {name: encryption_cluster.put_node(name, number) for name, number in (("a", 1), ("b", 2), ("c", 0))}
    assert describe_between(encryption_cluster.session, nodes, ("a", "a"), 4) == ""
    assert describe_between(encryption_cluster.session, nodes, ("a", "b"), 6) == ""
    assert "it is encrypted" in describe_between(encryption_cluster.session, nodes, ("a", "b"), 4)
    assert "NOT encrypted: node c: it has no key" in describe_between(encryption_cluster.session, nodes, ("c", "b"), 4)
    assert "no Node d" in describe_between(encryption_cluster.session, nodes, ("a", "d"), 4)
    encryption_cluster.put_felix({STRICT: "true"}, wireguardEnabled=True)
    assert "does NOT go" in describe_between(encryption_cluster.session, nodes, ("a", "c"), 4)
    encryption_cluster.put_felix({STRICT: "true", EXEMPT: "c"}, wireguardEnabled=True)
    assert "NOT encrypted" in describe_between(encryption_cluster.session, nodes, ("a", "c"), 4)
    off = {name: replace(node, status=None) for name, node in nodes.items()}
    assert describe_between(encryption_cluster.session, off, ("a", "b"), 4) == ""
