"""Labels of identity are kept as the runtime's store has them, and nothing else of an endpoint changes."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.errors import TryAgain
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.documents.codec import encode
from cni_calico.model.keys import ResourceKey, ResourceList
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.runtimes.names import LIST_S, TOPIC, ContainerNames
from cni_calico.plugin.attachment import Attachment, plan_endpoint
from cni_calico.plugin.identity.places import PODMAN_SQLITE
from tests.deadlines import soon
from tests.netns.policing.lab import private_settings
from tests.unit.ipam.world import World
from tests.unit.plugin.identity.test_stores import SCHEMA

WEB, OTHER = "ab" * 32, "cd" * 32
NAME = "cni-calico.io/container"


class Host:
    """Node n1 with podman 5's database; ``node`` n2 is another one's."""

    def __init__(self, root: Path) -> None:
        self.world = World()
        path = root / "host" / PODMAN_SQLITE.lstrip("/")
        path.parent.mkdir(parents=True)
        self.podman = sqlite3.connect(path, isolation_level=None)
        self.podman.executescript(SCHEMA)
        self.root_fd = os.open(root / "host", os.O_PATH)
        self.log = root / "log"
        log = Log("info", str(self.log), stderr=False)
        self.context = Context(private_settings(root), self.world.store, log, lambda _: True)
        self.context.files = Files(self.root_fd)
        self.now = 1000.0
        self.names = ContainerNames(self.context, "n1", lambda: self.now)

    def run(self, container: str, name: str, config: str = "{}") -> None:
        self.podman.execute("INSERT INTO ContainerConfig VALUES (?, ?, NULL, ?)", (container, name, config))

    def record(self, container: str, node: str = "n1", **labels: str) -> ResourceKey:
        attachment = Attachment("pods", node, "cni", "default", container, container, "eth0")
        made = plan_endpoint(
            attachment, own=None, veth="cali1", mac="", addresses=(), now="", uid=f"uid-{container[:4]}"
        )
        made = replace(made, metadata=replace(made.metadata, labels={**made.metadata.labels, **labels}))
        self.world.store.elsewhere(Write.put(attachment.endpoint_key, encode(made)))
        return attachment.endpoint_key

    def labels(self, key: ResourceKey) -> dict[str, Any]:
        found = self.world.store.get(key, soon())
        assert found is not None
        labels: dict[str, Any] = dict(found.value["metadata"]["labels"])
        return {name: value for name, value in labels.items() if not name.startswith("projectcalico.org/")}


@pytest.fixture
def podman_host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    os.close(host.root_fd)
    host.podman.close()


def test_an_add_that_could_not_ask_is_completed_and_a_rename_followed(podman_host: Host) -> None:
    host = podman_host
    host.run(WEB, "web", '{"labels": {"role": "db"}}')
    key, foreign = host.record(WEB, mine="stays"), host.record(WEB, node="n1-2")
    host.names.look()
    expected = {NAME: "web", "cni-calico.io/network": "pods", "org.projectcalico.label.role": "db", "mine": "stays"}
    assert host.labels(key) == expected and host.labels(foreign) == {}
    assert "is web" in host.log.read_text()
    host.podman.execute("UPDATE ContainerConfig SET Name = 'renamed'")
    host.names.look()
    assert host.labels(key) == {**expected, NAME: "renamed"} and "is renamed, was web" in host.log.read_text()


def test_nothing_is_listed_while_no_store_changes(podman_host: Host) -> None:
    host = podman_host
    host.run(WEB, "web")
    key = host.record(WEB)
    host.names.look()
    assert host.labels(key)[NAME] == "web"
    other = host.record(OTHER)
    host.names.look()
    host.run(OTHER, "other")
    host.names.look()
    assert host.labels(other)[NAME] == "other"
    before = host.world.store.list(ResourceList("WorkloadEndpoint"), soon())
    host.podman.execute("UPDATE ContainerConfig SET JSON = '{ }'")
    host.names.look()
    assert host.world.store.list(ResourceList("WorkloadEndpoint"), soon()).items == before.items


def test_an_endpoint_that_comes_after_the_stores_last_change_gets_its_labels(podman_host: Host) -> None:
    """Its ADD found the store locked, and the runtime writes nothing more."""
    host = podman_host
    host.run(WEB, "web", '{"labels": {"role": "db"}}')
    host.names.look()
    key = host.record(WEB, **{NAME: "as the call knew"})
    host.now += LIST_S - 1
    host.names.look()
    assert host.labels(key) == {NAME: "as the call knew"}, "nothing is listed meanwhile"
    host.now += 1
    host.names.look()
    assert host.labels(key)[NAME] == "web" and host.labels(key)["org.projectcalico.label.role"] == "db"


def test_a_locked_store_is_told_and_made_up_for(podman_host: Host) -> None:
    host = podman_host
    host.run(WEB, "web")
    key = host.record(WEB, **{NAME: "as the call knew"})
    host.podman.execute("BEGIN EXCLUSIVE")
    with pytest.raises(TryAgain, match=r"labels may be missing: .*db\.sql.*locked"):
        host.names.look()
    assert host.labels(key) == {NAME: "as the call knew"}
    host.podman.execute("COMMIT")
    host.names.look()
    assert host.labels(key)[NAME] == "web"


def test_what_cannot_be_a_label_is_told_until_it_is_gone(podman_host: Host) -> None:
    host = podman_host
    host.run(WEB, "web", '{"labels": {"big": "' + "x" * 4096 + '", "bell": "\\u0007", "ok": "1"}}')
    key = host.record(WEB)
    host.names.look()
    assert host.labels(key)["org.projectcalico.label.ok"] == "1"
    assert "'web': the container's label 'big' is left out" in host.context.troubles[TOPIC]
    assert "'bell'" in host.context.troubles[TOPIC] and "'bell'" in host.log.read_text()
    host.podman.execute("DELETE FROM ContainerConfig")
    host.names.look()
    assert TOPIC not in host.context.troubles and host.labels(key)[NAME] == "web"
