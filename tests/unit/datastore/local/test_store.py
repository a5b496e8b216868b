"""What is particular to the embedded store: its file, its faults, compaction, forks."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import stat
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cni_calico import faults
from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.datastore.local.file import filesystem_of, marker_path
from cni_calico.datastore.local.sql import CHANGES_BYTES
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.errors import (
    Compacted,
    CorruptRecord,
    DatastoreDamaged,
    DatastoreUnavailable,
    DatastoreUnsupported,
    DeadlineExceeded,
    OutcomeUnknown,
)
from cni_calico.model.keys import EverythingList, HandleKey, HandleList, ResourceKey, ResourceList, etcd_path

ONE, TWO = HandleKey("net.one"), HandleKey("net.two")


@pytest.fixture
def store_path(tmp_path: Path) -> str:
    return str(tmp_path / "state" / "datastore.db")


@pytest.fixture
def local_store(store_path: str) -> Iterator[LocalStore]:
    store = LocalStore(store_path, poll_s=0.005, keep_revisions=100)
    yield store
    store.close()


@pytest.fixture
def plan() -> Iterator:
    yield lambda text: faults.install(faults.FaultPlan(text))
    faults.install(None)


def sql(path: str, statement: str, *values: object) -> list:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def spoil(path: str, key: HandleKey, value: object) -> None:
    sql(path, "UPDATE change SET value = ? WHERE key = ?", value, etcd_path(key))


# -- the file ----------------------------------------------------------------------------------------------------------


def test_file_and_directory_are_private(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    old = os.umask(0)
    try:
        local_store.commit([Write.put(ONE, {})], soon)
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(os.path.dirname(store_path)).st_mode) == 0o700
    modes = {name: stat.S_IMODE(os.stat(f"{store_path}{name}").st_mode) for name in ("", "-wal", "-shm")}
    assert modes == {"": 0o600, "-wal": 0o600, "-shm": 0o600}
    assert sorted(os.listdir(os.path.dirname(store_path))) == [
        "datastore.db",
        "datastore.db-shm",
        "datastore.db-wal",
        "datastore.db.was-made",
    ]


def test_a_store_without_a_marker_gets_it_though_a_read_has_opened_the_connection(
    local_store: LocalStore, store_path: str, soon: Deadline
) -> None:
    """As a store of an earlier release is: the agent reads first, and writes with the connection it has."""
    local_store.commit([Write.put(ONE, {})], soon)
    os.unlink(marker_path(store_path))
    again = LocalStore(store_path)
    assert again.get(ONE, soon) is not None and not os.path.exists(marker_path(store_path))
    again.commit([Write.put(TWO, {})], soon)
    again.close()
    assert os.path.exists(marker_path(store_path))


def test_a_readable_file_is_made_private(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    local_store.commit([Write.put(ONE, {})], soon)
    local_store.close()
    os.chmod(store_path, 0o644)
    LocalStore(store_path).get(ONE, soon)
    assert stat.S_IMODE(os.stat(store_path).st_mode) == 0o600


def test_commits_reach_the_disk(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    local_store.commit([Write.put(ONE, {})], soon)
    connection, file = local_store._pool.borrow(soon)
    try:
        assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
        assert connection.execute("PRAGMA journal_mode").fetchone()[0] == b"wal"
    finally:
        local_store._pool.give_back(connection, file)


def test_many_open_a_new_file_at_once(store_path: str, soon: Deadline) -> None:
    errors: list[BaseException] = []
    start = threading.Barrier(8)

    def first_use(i: int) -> None:
        try:
            start.wait(10)
            LocalStore(store_path).commit([Write.create(HandleKey(f"net.{i}"), {})], soon)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=first_use, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(LocalStore(store_path).list(HandleList(), soon).items) == 8


@pytest.mark.parametrize("content", [b"not a database, but long enough to be read as one. " * 40, b"short"])
def test_a_file_that_is_no_database_is_left_alone(store_path: str, soon: Deadline, content: bytes) -> None:
    os.makedirs(os.path.dirname(store_path))
    Path(store_path).write_bytes(content)
    for call in (lambda s: s.get(ONE, soon), lambda s: s.commit([Write.put(ONE, {})], soon)):
        with pytest.raises(DatastoreDamaged) as caught:
            call(LocalStore(store_path))
        assert store_path in str(caught.value)
    assert Path(store_path).read_bytes() == content


def test_a_damaged_database_is_an_error_and_left_alone(
    local_store: LocalStore, store_path: str, soon: Deadline
) -> None:
    for n in range(200):
        local_store.commit([Write.put(HandleKey(f"net.{n}"), {"x": "y" * 500})], soon)
    local_store.close()
    raw = bytearray(Path(store_path).read_bytes())
    raw[4096:] = b"\xa5" * (len(raw) - 4096)
    Path(store_path).write_bytes(raw)
    damaged = LocalStore(store_path)
    for call in (
        lambda: damaged.get(ONE, soon),
        lambda: damaged.list(EverythingList(), soon),
        lambda: damaged.commit([Write.put(ONE, {})], soon),
    ):
        with pytest.raises(DatastoreDamaged):
            call()
    damaged.close()
    assert Path(store_path).read_bytes() == raw


def test_a_newer_schema_is_refused_by_name(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    local_store.commit([Write.put(ONE, {})], soon)
    local_store.close()
    sql(store_path, "PRAGMA user_version = 7")
    with pytest.raises(DatastoreUnsupported, match="schema version 7"):
        LocalStore(store_path).get(ONE, soon)


@pytest.mark.parametrize("version", [0, 1])
def test_another_programs_database_is_refused(store_path: str, soon: Deadline, version: int) -> None:
    os.makedirs(os.path.dirname(store_path))
    sql(store_path, "CREATE TABLE theirs (a)")
    sql(store_path, f"PRAGMA user_version = {version}")
    with pytest.raises(DatastoreUnsupported, match="another program"):
        LocalStore(store_path).commit([Write.put(ONE, {})], soon)
    assert sql(store_path, "SELECT name FROM sqlite_master") == [("theirs",)]


def test_file_system_of_a_path() -> None:
    mounts = (
        "22 1 254:0 / / rw - ext4 /dev/vda rw\n"
        "30 22 0:40 / /mnt/with\\040blank rw shared:1 - nfs4 server:/x rw\n"
        "31 22 0:41 / /mnt/fuse rw - fuse.sshfs host: rw\n"
        "32 31 0:42 / /mnt/fuse rw - tmpfs tmpfs rw\n"
        "broken line\n"
    )
    assert filesystem_of("/var/lib/calico", mounts) == "ext4"
    assert filesystem_of("/mnt/with blank/a/b", mounts) == "nfs4"
    assert filesystem_of("/mnt/with blanks", mounts) == "ext4"
    assert filesystem_of("/mnt/fuse", mounts) == "tmpfs"


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs"])
def test_network_file_systems_are_refused(store_path: str, soon: Deadline, monkeypatch, kind: str) -> None:
    monkeypatch.setattr("cni_calico.datastore.local.file.filesystem_of", lambda *_: kind)
    monkeypatch.setattr("cni_calico.datastore.local.file.os.major", lambda _: 0)
    with pytest.raises(DatastoreUnsupported, match=f"file system \\({kind}\\)"):
        LocalStore(store_path).commit([Write.put(ONE, {})], soon)
    assert not os.path.exists(store_path)


def test_a_replaced_file_is_noticed(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    """Addresses must not be written into a file that has no name any more."""
    local_store.commit([Write.put(ONE, {"n": 1})], soon)
    watch = local_store.watch(HandleList(), 0)
    assert watch.next(5)
    other = LocalStore(f"{store_path}.other")
    other.commit([Write.put(HandleKey("net.other"), {})], soon)
    other.close()
    for name in ("-wal", "-shm"):
        os.unlink(store_path + name)
    os.rename(other.path, store_path)
    with pytest.raises(DatastoreUnavailable, match="replaced"):
        while not soon.expired():
            watch.next(1)
    local_store.commit([Write.create(TWO, {"n": 2})], soon)
    found = LocalStore(store_path).list(HandleList(), soon).items
    assert [v.key for v in found] == [HandleKey("net.other"), TWO]


# -- what is not ours, not there, or not there any more ---------------------------------------------------------------


def ways(soon: Deadline) -> list:
    return [
        lambda s: s.get(ONE, soon),
        lambda s: s.list(HandleList(), soon),
        lambda s: s.commit([Write.put(ONE, {})], soon),
    ]


def state_of(path: str) -> tuple[int, int, int, int]:
    found = os.lstat(path)
    return stat.S_IFMT(found.st_mode), stat.S_IMODE(found.st_mode), found.st_size, found.st_mtime_ns


def make_directory(path: str) -> None:
    os.mkdir(path, 0o755)


def make_text(path: str) -> None:
    Path(path).write_text("# somebody's configuration\n" * 300)


def make_socket(path: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.close()


def make_device(path: str) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero


def make_database(path: str) -> None:
    sql(path, "CREATE TABLE theirs (a)")


@pytest.mark.parametrize("make", [make_directory, make_text, os.mkfifo, make_socket, make_device, make_database])
def test_what_a_wrong_path_names_is_left_as_it_is(tmp_path: Path, soon: Deadline, make) -> None:
    path = str(tmp_path / "named")
    old = os.umask(0o022)
    try:
        make(path)
    finally:
        os.umask(old)
    before = state_of(path)
    for way in ways(soon):
        with pytest.raises((DatastoreUnsupported, DatastoreDamaged)) as caught:
            way(LocalStore(path))
        assert path in str(caught.value)
    assert state_of(path) == before
    assert os.listdir(tmp_path) == ["named"]


@pytest.mark.parametrize("path", ["/nowhere\0/x", "/nowhere/\ud800"])
def test_a_path_that_no_file_can_have_is_refused(path: str, soon: Deadline) -> None:
    for way in ways(soon):
        with pytest.raises(DatastoreUnsupported):
            way(LocalStore(path))


def test_reading_creates_nothing(tmp_path: Path, soon: Deadline) -> None:
    store = LocalStore(str(tmp_path / "state" / "datastore.db"))
    assert store.get(ONE, soon) is None
    assert store.list(HandleList(), soon).items == []
    assert os.listdir(tmp_path) == []
    store.close()


def test_a_watch_from_before_the_first_write_sees_it(store_path: str, soon: Deadline) -> None:
    store, other = LocalStore(store_path, poll_s=0.005), LocalStore(store_path)
    with store.watch(HandleList(), store.list(HandleList(), soon).revision) as watch:
        other.commit([Write.put(ONE, {"n": 1})], soon)
        assert [e.key for e in watch.next(20)] == [ONE]
        store.commit([Write.put(TWO, {"n": 2})], soon)
        assert [e.key for e in watch.next(20)] == [TWO]
    store.close()
    other.close()


def remove(path: str) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(path + suffix).unlink(missing_ok=True)


def empty(path: str) -> None:
    os.truncate(path, 0)


@pytest.mark.parametrize("lose", [remove, empty])
@pytest.mark.parametrize("still_open", [True, False])
def test_a_lost_store_never_becomes_a_new_one(store_path: str, soon: Deadline, lose, still_open: bool) -> None:
    store = LocalStore(store_path)
    store.commit([Write.put(ONE, {"n": 1})], soon)
    if not still_open:
        store.close()
    lose(store_path)
    for way in ways(soon):
        with pytest.raises(DatastoreDamaged) as caught:
            way(LocalStore(store_path))
        assert store_path in str(caught.value) and "calicoctl datastore rebuild" in caught.value.details
        if still_open and lose is remove:
            with pytest.raises(DatastoreDamaged):
                way(store)
    assert not os.path.exists(store_path) or os.path.getsize(store_path) == 0
    store.close()


def test_an_empty_file_that_was_never_more_becomes_a_store(store_path: str, soon: Deadline) -> None:
    """An earlier release that was killed at the wrong moment left it."""
    os.makedirs(os.path.dirname(store_path))
    Path(store_path).touch(0o600)
    store = LocalStore(store_path)
    assert store.get(ONE, soon) is None and os.path.getsize(store_path) == 0
    with ThreadPoolExecutor(8) as pool:
        stores = [LocalStore(store_path) for _ in range(8)]
        keys = [HandleKey(f"net.{i}") for i in range(8)]
        list(pool.map(lambda n: stores[n].commit([Write.put(keys[n], {"n": n})], soon), range(8)))
    assert [store.get(key, soon).value for key in keys] == [{"n": n} for n in range(8)]
    assert os.path.exists(marker_path(store_path)) and os.stat(store_path).st_mode & 0o777 == 0o600
    for each in (store, *stores):
        each.close()


@pytest.mark.parametrize(("mode", "owner"), [(0o644, 0), (0o640, 0), (0o600, 1)])
def test_an_empty_file_of_somebody_else_is_refused(store_path: str, soon: Deadline, mode: int, owner: int) -> None:
    """Another program's lock file, for example."""
    path = Path(store_path)
    path.parent.mkdir(parents=True)
    path.touch()
    os.chown(path, os.geteuid() + owner, -1)
    path.chmod(mode)
    before = path.stat()
    for way in ways(soon):
        with pytest.raises(DatastoreDamaged, match="an empty file that cni-calico did not make") as caught:
            way(LocalStore(store_path))
        assert "remove this one if nothing needs it" in caught.value.details
    assert path.stat() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("beside", ["-wal", "-journal"])
def test_an_empty_file_beside_what_was_in_it_is_refused(store_path: str, soon: Deadline, beside: str) -> None:
    os.makedirs(os.path.dirname(store_path))
    Path(store_path).touch()
    Path(store_path + beside).write_bytes(b"something")
    for way in ways(soon):
        with pytest.raises(DatastoreDamaged) as caught:
            way(LocalStore(store_path))
        assert store_path + beside in caught.value.details
    assert os.path.getsize(store_path) == 0 and Path(store_path + beside).read_bytes() == b"something"


def test_a_store_of_an_earlier_release_gets_its_marker_at_the_next_write(store_path: str, soon: Deadline) -> None:
    first = LocalStore(store_path)
    first.commit([Write.put(ONE, {"n": 1})], soon)
    first.close()
    os.unlink(marker_path(store_path))
    LocalStore(store_path).get(ONE, soon)
    assert not os.path.exists(marker_path(store_path))
    LocalStore(store_path).commit([Write.put(ONE, {"n": 2})], soon)
    assert os.path.exists(marker_path(store_path))


# -- corrupt records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    ["{", "[1]", "null", '{"a": NaN}', b"{\xff}", 17, '{"a":' * 100000, "9" * 5000],
    ids=["cut", "list", "null", "nan", "utf8", "number", "deep", "digits"],
)
def test_a_corrupt_record_is_named_and_kept(
    local_store: LocalStore, store_path: str, soon: Deadline, raw: object
) -> None:
    [one, _] = local_store.commit([Write.create(ONE, {"n": 1}), Write.create(TWO, {"n": 2})], soon).stored
    spoil(store_path, ONE, raw)
    heard: list = []
    local_store.corrupt = lambda key, why: heard.append((key, why))
    for write in (
        Write.create(ONE, {}),
        Write.update(one, {}),
        Write.put(ONE, {}),
        Write.delete(one),
        Write.expect(one),
    ):
        with pytest.raises(CorruptRecord, match=r"handle/net\.one"):
            local_store.commit([write, Write.put(TWO, {"n": 3})], soon)
    with pytest.raises(CorruptRecord, match=r"handle/net\.one"):
        local_store.get(ONE, soon)
    assert local_store.get(TWO, soon).value == {"n": 2}
    listed = local_store.list(HandleList(), soon)
    assert [v.key for v in listed.items] == [TWO] and [key for key, _ in listed.unreadable] == [ONE]
    assert heard[0][0] == ONE and "net.one" in heard[0][1]
    with local_store.watch(HandleList(), 0) as watch:
        assert [(e.key, e.value) for e in watch.next(5)] == [(ONE, None), (TWO, {"n": 2})]
    [(kept,)] = sql(store_path, "SELECT value FROM change WHERE key = ?", etcd_path(ONE))
    assert kept == ("17" if raw == 17 else raw)
    local_store.commit([Write.remove(ONE)], soon)
    assert local_store.get(ONE, soon) is None


def test_an_empty_value_reads_as_an_empty_document(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    local_store.commit([Write.create(ONE, {"n": 1})], soon)
    spoil(store_path, ONE, "")
    assert local_store.get(ONE, soon).value == {}


# -- faults ------------------------------------------------------------------------------------------------------------


def test_faults_before_a_commit_write_nothing(local_store: LocalStore, soon: Deadline, plan) -> None:
    local_store.commit([Write.put(ONE, {"n": 1})], soon)
    plan("local.commit:before:1:fail")
    with pytest.raises(DatastoreUnavailable) as caught:
        local_store.commit([Write.put(ONE, {"n": 2}), Write.put(TWO, {})], soon)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert local_store.get(ONE, soon).value == {"n": 1} and local_store.get(TWO, soon) is None
    local_store.commit([Write.put(ONE, {"n": 3})], soon)


def test_a_lost_answer_is_an_unknown_outcome(local_store: LocalStore, soon: Deadline, plan) -> None:
    plan("local.commit:after:1:fail")
    with pytest.raises(OutcomeUnknown):
        local_store.commit([Write.put(ONE, {"n": 2})], soon)
    assert local_store.get(ONE, soon).value == {"n": 2}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("point", ["local.open", "local.read"])
def test_faults_of_reading(local_store: LocalStore, soon: Deadline, plan, point: str, when: str) -> None:
    made = LocalStore(local_store.path)
    made.commit([Write.put(ResourceKey("Node", "n"), {})], soon)
    made.close()
    plan(f"{point}:{when}:1:fail")
    with pytest.raises(DatastoreUnavailable, match="injected"):
        local_store.list(HandleList(), soon)
    assert local_store.list(HandleList(), soon).items == []


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_a_writer_waits_for_another_process_until_its_deadline(
    local_store: LocalStore, store_path: str, soon: Deadline
) -> None:
    local_store.commit([Write.put(ONE, {"n": 1})], soon)
    other = sqlite3.connect(store_path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    try:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match="lock"):
            local_store.commit([Write.put(ONE, {"n": 2})], Deadline.after(0.2))
        assert 0.15 < time.monotonic() - began < 5
        assert local_store.get(ONE, soon).value == {"n": 1}
        threading.Timer(0.1, lambda: other.execute("ROLLBACK")).start()
        local_store.commit([Write.put(ONE, {"n": 3})], soon)
    finally:
        if other.in_transaction:
            other.execute("ROLLBACK")
        other.close()
    assert local_store.get(ONE, soon).value == {"n": 3}


# -- history -----------------------------------------------------------------------------------------------------------


def test_history_is_compacted_and_says_so(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    local_store.commit([Write.create(HandleKey("net.kept"), {"n": 0})], soon)
    for n in range(500):
        local_store.commit([Write.put(ONE, {"n": n}), Write.put(TWO, {"n": n})], soon)
        local_store.commit([Write.remove(TWO)], soon)
    [(changes,)] = sql(store_path, "SELECT count(*) FROM change")
    assert changes < 3 * (100 + 64) + 2
    newest = local_store.list(EverythingList(), soon).revision
    for call in (
        lambda: local_store.list(EverythingList(), soon, revision=1),
        lambda: local_store.watch(EverythingList(), 1).next(1),
        lambda: local_store.watch(EverythingList(), newest + 1).next(1),
    ):
        with pytest.raises(Compacted):
            call()
    old = local_store.list(EverythingList(), soon, revision=newest - 99)
    assert {v.key.handle_id: v.value["n"] for v in old.items} == {"net.kept": 0, "net.one": 450, "net.two": 450}
    assert [v.key.handle_id for v in local_store.list(EverythingList(), soon).items] == ["net.kept", "net.one"]


def test_revision_survives_when_everything_was_deleted(
    local_store: LocalStore, store_path: str, soon: Deadline
) -> None:
    for n in range(200):
        local_store.commit([Write.put(ONE, {"n": n})], soon)
    local_store.commit([Write.remove(ONE)], soon)
    at = local_store.list(EverythingList(), soon).revision
    local_store.close()
    again = LocalStore(store_path, keep_revisions=1)
    for n in range(130):
        assert again.commit([Write.put(ONE, {"n": n})], soon).revision == at + 2 * n + 1
        assert again.commit([Write.remove(ONE)], soon).revision == at + 2 * n + 2


def test_creation_revision_stays_over_updates(local_store: LocalStore, store_path: str, soon: Deadline) -> None:
    local_store.commit([Write.create(TWO, {})], soon)
    made = local_store.commit([Write.create(ONE, {})], soon).revision
    local_store.commit([Write.put(ONE, {"n": 1})], soon)
    assert sql(store_path, "SELECT created FROM change WHERE key = ?", etcd_path(ONE)) == [(made,), (made,)]


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_forked_child_uses_connections_of_its_own(local_store: LocalStore, soon: Deadline) -> None:
    current = local_store.commit([Write.create(ONE, {"n": 0})], soon).stored[0]
    watch = local_store.watch(HandleList(), 0)
    assert watch.next(5)
    local_store._writing.acquire()  # as if another thread were writing while this one forks
    child = os.fork()
    if child == 0:
        code = 1
        try:
            local_store.commit([Write.update(current, {"n": 1})], soon)
            assert local_store.watch(HandleList(), current.revision).next(10)
            try:
                watch.next(1)
            except DatastoreUnavailable:
                code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    local_store._writing.release()
    assert status == 0
    with pytest.raises(CommitConflict):
        local_store.commit([Write.update(current, {"n": 2})], soon)
    assert watch.next(10)[0].value == {"n": 1}
    local_store.commit([Write.put(ONE, {"n": 3})], soon)


def test_a_closed_store_is_unavailable(local_store: LocalStore, soon: Deadline) -> None:
    local_store.commit([Write.put(ONE, {})], soon)
    watch = local_store.watch(HandleList(), 0)
    assert watch.next(5)
    local_store.close()
    for call in (
        lambda: local_store.get(ONE, soon),
        lambda: local_store.commit([Write.remove(ONE)], soon),
        lambda: watch.next(5),
    ):
        with pytest.raises(DatastoreUnavailable, match="closed"):
            call()


def test_forking_beside_watches_does_not_lock_the_child(store_path: str, soon: Deadline) -> None:
    """SQLite has locks of its own, for the whole process; the watching threads must not hold one while it forks."""
    stores = [LocalStore(f"{store_path}{i}", poll_s=0.0001) for i in range(4)]
    watches = [store.watch(HandleList(), 0) for store in stores]
    for watch in watches:
        assert not watch.next(0.01)
    for _ in range(100):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(20)
            for store in stores:
                store.commit([Write.put(ONE, {})], Deadline.after(20))
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    for store in stores:
        store.close()


def test_a_watch_reads_only_what_is_its_own(store_path: str, soon: Deadline) -> None:
    """Our own commits say what they changed; a watch of something else does not even look, nor is looking a read."""
    store = LocalStore(store_path, poll_s=60)  # nothing is noticed but what is announced
    asked: list[int] = []
    changes = store.changes
    store.changes = lambda listing, after, *rest: asked.append(after) or changes(listing, after, *rest)
    with store.watch(HandleList(), 0) as watch:
        assert not watch.next(0.01)
        reads, first = store.round_trips.reads, len(asked)
        for i in range(20):
            store.commit([Write.put(ResourceKey("IPPool", f"p{i}"), {})], soon)
        assert not watch.next(0.1)
        assert len(asked) == first
        store.commit([Write.put(ONE, {})], soon)
        assert [event.key for event in watch.next(5)] == [ONE]
        assert store.round_trips.reads == reads
    store.close()


def test_watches_beside_two_writers_see_everything_once(store_path: str, soon: Deadline) -> None:
    """What this process commits and what another one does, mixed; commits that change nothing come in between."""
    ours, theirs = LocalStore(store_path, poll_s=0.0005), LocalStore(store_path, poll_s=0.0005)
    start = int(ours.commit([Write.put(ONE, {})], soon).revision)
    listings = (HandleList(), ResourceList("IPPool"))
    seen: list[list] = [[], []]
    total = 80

    def follow(number: int) -> None:
        with ours.watch(listings[number], start) as watch:
            while len(seen[number]) < 2 * total and not soon.expired():
                seen[number] += [(str(event.key), event.revision) for event in watch.next(1)]

    def write(store: LocalStore, name: str) -> None:
        for i in range(total):
            store.commit([Write.put(HandleKey(f"{name}.{i}"), {})], soon)
            store.commit([Write.remove(HandleKey("never.was"))], soon)
            store.commit([Write.put(ResourceKey("IPPool", f"{name}{i}"), {})], soon)

    threads = [threading.Thread(target=follow, args=(i,)) for i in range(2)]
    threads += [threading.Thread(target=write, args=pair) for pair in ((ours, "ours"), (theirs, "theirs"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for events in seen:
        assert len(events) == len(set(events)) == 2 * total
        assert [revision for _, revision in events] == sorted(revision for _, revision in events)
    ours.close()
    theirs.close()


# -- much at once ------------------------------------------------------------------------------------------------------


def test_a_watch_far_behind_holds_a_bounded_number_of_bytes(local_store: LocalStore, soon: Deadline) -> None:
    local_store.commit([Write.put(ONE, {})], soon)
    start = local_store.list(HandleList(), soon).revision
    for n in range(40):
        local_store.commit([Write.put(ONE, {"n": n, "x": "y" * 100_000}), Write.put(TWO, {"n": n})], soon)
    held, seen = 0, []
    with local_store.watch(HandleList(), start) as watch:
        while len(seen) < 40:
            events = watch.next(20)
            assert [event.key for event in events] == [ONE, TWO], "a commit is never taken apart"
            seen.append(events[0].value["n"])
            held = max(held, len(watch._pending))
    assert seen == list(range(40))
    assert held <= CHANGES_BYTES // 100_000 + 1
