"""Who a container is in podman 5's SQLite: read while podman writes, locked, damaged, absent; in what podman 5.4.2 of
Debian 13 has left (tests/golden/podman: "web" with labels, "other" that is called "renamed" now, the pod "mypod" with
"till"; tests/netns/test_podman_store.py makes another); and in what containerd 2.2.9 and nerdctl 1.7.7 have left
(tests/golden/containerd: two containers, "web" with the label role=front).
"""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cni_calico.cni.environment import Call
from cni_calico.kernel.files import Files
from cni_calico.model.identity import ContainerIdentity
from cni_calico.model.names import runtimes_id
from cni_calico.plugin.identity.labels import read_container_name
from cni_calico.plugin.identity.places import CONTAINERD_BOLT, PODMAN_SQLITE, STORES
from cni_calico.plugin.identity.stores import read_identity

GOLDEN = Path(__file__).parents[3] / "golden"
BOX = "localhost/box:latest"
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


REAL_WEB = "41b56cb34c3fb0efa6807d3be258cf07671e7811b6d311e1e0821a9d8bf91fd0"
REAL = {
    REAL_WEB: ContainerIdentity(
        "web", BOX, "", {"role": "db", "com.docker.compose.project": "shop", "odd key": "a b/c"}
    ),
    "a67f24a33df199fc7f9543b7716e69ee46c66a96ca56d75ef06473f232c440d2": ContainerIdentity("renamed", BOX, "", {}),
    "3ff4e75131c9ec486cca16eb5a4734d9b8773641cb27c8b9b91f28cd14329d94": ContainerIdentity(
        "88b1c3f6a0d9-infra", BOX, "mypod", {}
    ),
    "0ffa87a795d9d2eab51f7fd48d4245d929a7bc5aee7c275b678432a4af1b8f6a": ContainerIdentity(
        "till", BOX, "mypod", {"l": "1"}
    ),
}


@pytest.fixture
def podmans(tmp_path: Path) -> Iterator[tuple[Files, Path]]:
    """A host with the database that a real podman has left, and the file."""
    path = tmp_path / PODMAN_SQLITE.lstrip("/")
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.decompress((GOLDEN / "podman" / "db.sql.gz").read_bytes()))
    root = os.open(tmp_path, os.O_PATH)
    try:
        yield Files(root), path
    finally:
        os.close(root)


def test_what_a_real_podman_5_has_left(podmans: tuple[Files, Path]) -> None:
    found = {container: read_identity(container, podmans[0], 1.0) for container in REAL}
    assert {container: answer.identity for container, answer in found.items()} == REAL
    assert not any(answer.troubles for answer in found.values())
    assert read_identity(WEB, podmans[0], 1.0).identity is None


def test_the_schema_of_these_tests_is_podmans(podmans: tuple[Files, Path]) -> None:
    with closing(sqlite3.connect(podmans[1])) as real, closing(sqlite3.connect(":memory:")) as ours:
        ours.executescript(SCHEMA)
        for table in ("PodConfig", "ContainerConfig"):
            columns = f"PRAGMA table_info({table})"
            assert ours.execute(columns).fetchall() == real.execute(columns).fetchall()


def test_a_text_that_is_none(podmans: tuple[Files, Path]) -> None:
    whole = podmans[1].read_bytes()
    podmans[1].write_bytes(whole.replace(b"web", b"w\x80b"))
    found = read_identity(REAL_WEB, podmans[0], 1.0)
    assert found.identity is None and "cannot read" in found.troubles[0] and PODMAN_SQLITE in found.troubles[0]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example([(89461, b"\x80")], 0)  # in the schema: SQLite's own message is no UTF-8
@given(st.lists(st.tuples(st.integers(0, 172_000), st.binary(min_size=1, max_size=8)), max_size=8), st.integers(0, 2))
def test_a_damaged_real_one_gives_a_trouble_or_what_is_there(
    podmans: tuple[Files, Path], damages: list[tuple[int, bytes]], cut: int
) -> None:
    """Never an exception, and never a container's identity for another's."""
    spoilt = bytearray(gzip.decompress((GOLDEN / "podman" / "db.sql.gz").read_bytes()))
    for at, what in damages:
        spoilt[at : at + len(what)] = what
    podmans[1].write_bytes(bytes(spoilt[: len(spoilt) >> cut]))
    found = read_identity(REAL_WEB, podmans[0], 1.0)
    assert found.identity is None or found.identity.name != "renamed"


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


@pytest.mark.parametrize(("verb", "name"), [("ADD", "web"), ("DEL", "web"), ("CHECK", "")])
def test_the_log_has_the_name_that_a_call_does_not_say(containerd: Files, verb: str, name: str) -> None:
    assert read_container_name(Call(verb, f"default-{NERDCTLS}"), containerd) == name
    assert read_container_name(Call(verb, "c1"), containerd) == ""


def test_another_namespaces_container_is_another_one(containerd: Files) -> None:
    assert read_identity(f"k8s.io-{NERDCTLS}", containerd, 1.0).identity is None
    assert read_identity(f"other-{NERDCTLS}", containerd, 1.0).identity is None


def test_only_ids_of_runtimes_are_looked_up(podman5: tuple[Files, sqlite3.Connection]) -> None:
    assert runtimes_id(WEB) == runtimes_id(f"default-{WEB}") == runtimes_id(f"a-b.c-{WEB}") == WEB
    for other in ("c1", "../" + "a" * 61, "G" * 64, f"default{WEB}", f"default-{WEB[1:]}", f"{WEB}-default", ""):
        assert not runtimes_id(other)
    assert read_identity("c1", podman5[0], 1.0) == read_identity("0" * 64, Files(), 1.0)
