"""Who a container is in podman 5's SQLite: read while podman writes, locked, damaged, absent; and in what containerd
2.2.9 and nerdctl 1.7.7 have left (tests/golden/containerd: two containers, "web" with the label role=front).
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.kernel.files import Files
from cni_calico.model.identity import ContainerIdentity
from cni_calico.model.names import runtimes_id
from cni_calico.plugin.identity.places import CONTAINERD_BOLT, PODMAN_SQLITE, STORES
from cni_calico.plugin.identity.stores import read_identity

GOLDEN = Path(__file__).parents[3] / "golden"
WEB, INFRA, POD = "ab" * 32, "cd" * 32, "ef" * 32
# what podman 5 makes: its libpod/sqlite_state_internal.go, without the tables that nobody reads here
SCHEMA = """
CREATE TABLE PodConfig(ID TEXT PRIMARY KEY NOT NULL, Name TEXT UNIQUE NOT NULL, JSON TEXT NOT NULL);
CREATE TABLE ContainerConfig(ID TEXT PRIMARY KEY NOT NULL, Name TEXT UNIQUE NOT NULL, PodID TEXT, JSON TEXT NOT NULL,
    FOREIGN KEY (PodID) REFERENCES PodConfig(ID));
"""


@pytest.fixture
def podman5(tmp_path: Path) -> Iterator[tuple[Files, sqlite3.Connection]]:
    """A host's files, with podman's connection to its database."""
    path = tmp_path / PODMAN_SQLITE.lstrip("/")
    path.parent.mkdir(parents=True)
    podman = sqlite3.connect(path, isolation_level=None)
    podman.executescript(SCHEMA)
    podman.execute("INSERT INTO PodConfig VALUES (?, ?, '{}')", (POD, "mypod"))
    config = {"name": "web", "labels": {"role": "db"}, "rootfsImageName": "box", "secret": "not ours"}
    podman.execute("INSERT INTO ContainerConfig VALUES (?, ?, NULL, ?)", (WEB, "web", json.dumps(config)))
    podman.execute("INSERT INTO ContainerConfig VALUES (?, ?, ?, '{}')", (INFRA, "ef-infra", POD))
    root = os.open(tmp_path, os.O_PATH)
    try:
        yield Files(root), podman
    finally:
        os.close(root)
        podman.close()


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_containers_and_pods(podman5: tuple[Files, sqlite3.Connection], journal: str) -> None:
    files, podman = podman5
    podman.execute(f"PRAGMA journal_mode = {journal}")
    podman.execute("UPDATE ContainerConfig SET Name = 'renamed' WHERE ID = ?", (WEB,))
    found = read_identity(WEB, files, 1.0)
    assert found.identity == ContainerIdentity("renamed", "box", "", {"role": "db"}) and found.troubles == ()
    found = read_identity(INFRA, files, 1.0)
    assert found.identity == ContainerIdentity("ef-infra", "", "mypod", {})
    assert read_identity("0" * 64, files, 1.0).identity is None


def test_a_locked_database(podman5: tuple[Files, sqlite3.Connection]) -> None:
    files, podman = podman5
    podman.execute("BEGIN EXCLUSIVE")
    found = read_identity(WEB, files, 0.01)
    assert found.identity is None and len(found.troubles) == 1 and "locked" in found.troubles[0]
    podman.execute("COMMIT")
    assert read_identity(WEB, files, 0.01).troubles == ()


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\0" + b"\xff" * 5000, b"no database" * 100])
def test_a_damaged_database(podman5: tuple[Files, sqlite3.Connection], content: bytes) -> None:
    files, _ = podman5
    Path(files.path(PODMAN_SQLITE)).write_bytes(content)
    found = read_identity(WEB, files, 0.01)
    assert found.identity is None and found.troubles and PODMAN_SQLITE in found.troubles[0]


@pytest.mark.parametrize("config", ["[]", "no json", '{"labels": [1]}', "[" * 100_000])
def test_a_configuration_that_is_none(podman5: tuple[Files, sqlite3.Connection], config: str) -> None:
    files, podman = podman5
    podman.execute("UPDATE ContainerConfig SET JSON = ?", (config,))
    found = read_identity(WEB, files, 1.0)
    assert found.identity is None and "cannot read podman's database" in found.troubles[0]


@pytest.mark.parametrize("place", STORES)
def test_what_is_no_regular_file_neither_blocks_nor_fails(tmp_path: Path, place: str) -> None:
    path = tmp_path / place.lstrip("/")
    path.parent.mkdir(parents=True)
    os.mkfifo(path)
    root = os.open(tmp_path, os.O_PATH)
    try:
        found = read_identity(WEB, Files(root), 1.0)
    finally:
        os.close(root)
    assert found.identity is None and found.troubles == (f"{place}: cannot read it: it is not a regular file",)


NERDCTLS = "17bbafd44a6fcfb95bb8784b8b76e7c1b0e314b95f80bf157ada6f761366e9c4"


@pytest.fixture
def containerd(tmp_path: Path) -> Iterator[Files]:
    path = tmp_path / CONTAINERD_BOLT.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.decompress((GOLDEN / "containerd" / "meta.db.gz").read_bytes()))
    root = os.open(tmp_path, os.O_PATH)
    try:
        yield Files(root)
    finally:
        os.close(root)


@pytest.mark.parametrize("named", [f"default-{NERDCTLS}", NERDCTLS])
def test_a_call_of_nerdctl_names_the_namespace_too(containerd: Files, named: str) -> None:
    found = read_identity(named, containerd, 1.0)
    assert found.identity is not None and not found.troubles
    assert (found.identity.name, found.identity.labels["role"]) == ("web", "front")
    assert not any(label.startswith("nerdctl/") for label in found.identity.labels)


def test_another_namespaces_container_is_another_one(containerd: Files) -> None:
    assert read_identity(f"k8s.io-{NERDCTLS}", containerd, 1.0).identity is None
    assert read_identity(f"other-{NERDCTLS}", containerd, 1.0).identity is None


def test_only_ids_of_runtimes_are_looked_up(podman5: tuple[Files, sqlite3.Connection]) -> None:
    assert runtimes_id(WEB) == runtimes_id(f"default-{WEB}") == runtimes_id(f"a-b.c-{WEB}") == WEB
    for other in ("c1", "../" + "a" * 61, "G" * 64, f"default{WEB}", f"default-{WEB[1:]}", f"{WEB}-default", ""):
        assert not runtimes_id(other)
    assert read_identity("c1", podman5[0], 1.0) == read_identity("0" * 64, Files(), 1.0)
