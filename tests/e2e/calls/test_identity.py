"""Who a container is, in the record that its ADD writes: from the runtime's arguments and its store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from cni_calico.plugin.identity import places
from cni_calico.plugin.identity.boot import BOOT_ID
from tests.e2e.host import Node, added, cleaned
from tests.netns.namespaces import Namespace
from tests.unit.plugin.identity.test_stores import SCHEMA

pytestmark = pytest.mark.netns

WEB = "ab" * 32
PODMAN = "IgnoreUnknown=1;K8S_POD_NAME={}"
ALWAYS = {"projectcalico.org/namespace": "default", "projectcalico.org/orchestrator": "cni"}


def metadata(node: Node) -> dict[str, Any]:
    (endpoint,) = node.endpoints()
    found: dict[str, Any] = endpoint["metadata"]
    return found


@pytest.fixture
def podmans_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> sqlite3.Connection:
    """podman's connection to its database, in another place than on this machine."""
    path = str(tmp_path / "db.sql")
    monkeypatch.setattr(places, "PODMAN_SQLITE", path)
    for module in ("stores", "labels"):
        monkeypatch.setattr(f"cni_calico.plugin.identity.{module}.STORES", (path, *places.STORES[1:]))
    monkeypatch.setattr("cni_calico.plugin.identity.podman.PODMAN_SQLITE", path)
    podman = sqlite3.connect(path, isolation_level=None)
    podman.executescript(SCHEMA)
    return podman


def test_podmans_name(plain_node: Node, pod_ns: Namespace) -> None:
    added(plain_node, WEB, pod_ns, args=PODMAN.format("web"))
    found = metadata(plain_node)
    assert found["labels"] == {
        **ALWAYS,
        "cni-calico.io/container": "web",
        "cni-calico.io/network": "calnet",
    }
    assert found["annotations"] == {"cni-calico.io/boot-id": Path(BOOT_ID).read_text().strip()}
    cleaned(plain_node, WEB, args=PODMAN.format("web"))


@pytest.mark.parametrize("name", ["", "a/b", "bell\x07", "x" * 300])
def test_a_container_without_a_usable_name_starts(plain_node: Node, pod_ns: Namespace, name: str) -> None:
    added(plain_node, WEB, pod_ns, args=PODMAN.format(name))
    assert metadata(plain_node)["labels"] == ALWAYS
    cleaned(plain_node, WEB, args=PODMAN.format(name))


def test_what_the_store_says_and_again_after_a_rename(
    plain_node: Node, pod_ns: Namespace, podmans_store: sqlite3.Connection
) -> None:
    config = {"labels": {"role": "db", "cni-calico.io/container": "forged"}, "rootfsImageName": "box"}
    podmans_store.execute("INSERT INTO ContainerConfig VALUES (?, 'web', NULL, ?)", (WEB, json.dumps(config)))
    added(plain_node, WEB, pod_ns)
    expected = {
        **ALWAYS,
        "cni-calico.io/container": "web",
        "cni-calico.io/image": "box",
        "cni-calico.io/network": "calnet",
        "org.projectcalico.label.cni-calico.io/container": "forged",
        "org.projectcalico.label.role": "db",
    }
    assert metadata(plain_node)["labels"] == expected
    podmans_store.execute("UPDATE ContainerConfig SET Name = 'renamed', JSON = '{}'")
    added(plain_node, WEB, pod_ns)
    assert metadata(plain_node)["labels"] == {
        **ALWAYS,
        "cni-calico.io/container": "renamed",
        "cni-calico.io/network": "calnet",
    }
    podmans_store.execute("BEGIN EXCLUSIVE")
    added(plain_node, WEB, pod_ns)  # what is known already stays
    assert metadata(plain_node)["labels"]["cni-calico.io/container"] == "renamed"
    cleaned(plain_node, WEB)


def test_a_locked_store_does_not_keep_a_container_from_starting(
    plain_node: Node, pod_ns: Namespace, podmans_store: sqlite3.Connection
) -> None:
    podmans_store.execute("BEGIN EXCLUSIVE")
    added(plain_node, WEB, pod_ns, args=PODMAN.format("web"))
    assert metadata(plain_node)["labels"]["cni-calico.io/container"] == "web"
    cleaned(plain_node, WEB)
