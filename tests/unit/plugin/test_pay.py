"""Recorded DELs are carried out one by one: what keeps one of them does not keep those behind it."""

import json
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace

import pytest

from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.deadline import Deadline
from cni_calico.errors import DecodeFailure, OutcomeUnknown, TryAgain
from cni_calico.ipam.allocator import Allocator
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import IPPool
from cni_calico.nodeagent.keepers.owed import Owed
from cni_calico.plugin import owed as records
from cni_calico.plugin.attachment import Attachment, plan_endpoint
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.endpoints import apply_endpoint, remove_endpoint
from cni_calico.plugin.pay import BATCH, LOOKED_AT, pay_after, pay_owed
from tests.fakes.memory_store import MemoryStore

LOCAL = DatastoreConfig("local", path="/somewhere")


def release(container, ifname="eth0", datastore=LOCAL, **options):
    """All of an attachment of the network "net" on node n1."""
    attachment = Attachment("net", "n1", "cni", "default", container, container, ifname)
    return records.OwedRelease(attachment, datastore, **options)


class OneStore(Services):
    def __init__(self, directory, store):
        environ = {"CALICO_RUN_DIR": f"{directory}/run", "CALICO_STATE_DIR": f"{directory}/state"}
        super().__init__(environ, open_store=self.open_only)
        self.only = store

    def open_only(self, config):
        return self.only


@pytest.fixture
def owed(tmp_path):
    """Services with three recorded DELs, and the endpoints' keys in the order of the records."""
    services = OneStore(tmp_path, MemoryStore())
    releases = []
    for name in ("a", "b", "c"):
        releases.append(release(name))
        records.record(services.files, services.state_dir, releases[-1])
    releases.sort(key=lambda item: records.file_name(item.attachment))
    return services, [item.attachment.endpoint_key for item in releases]


def pay(services):
    return pay_owed(services, LOCAL, Deadline.after(5))


def test_a_record_that_cannot_be_read_keeps_only_its_own(owed):
    services, keys = owed
    services.only.elsewhere(Write.put(keys[0], {"metadata": {"name": keys[0].name}, "spec": 7}))
    report = pay(services)
    assert (report.done, report.kept) == (2, 1)
    assert len(services.files.names(records.directory(services.state_dir))) == 1


def test_a_datastore_that_is_away_is_asked_once(owed):
    services, _ = owed
    services.only.down = True
    report = pay(services)
    assert (report.done, report.kept) == (0, 1)
    services.only.down = False
    assert pay(services).done == 3


@pytest.fixture
def crowd(tmp_path):
    """Services that owe 41 DELs, of which only the last in the order of their names can be carried out; its name."""
    services = OneStore(tmp_path, MemoryStore())
    services.files.make_directory(services.run_dir)
    releases = [release(f"c{i}") for i in range(41)]
    *failing, good = sorted(releases, key=lambda item: records.file_name(item.attachment))
    for item in (*failing, good):
        records.record(services.files, services.state_dir, item)
    for item in failing:
        key = item.attachment.endpoint_key
        services.only.elsewhere(Write.put(key, {"metadata": {"name": key.name}, "spec": 7}))
    return services, records.file_name(good.attachment)


def is_owed(services, name):
    return name in services.files.names(records.directory(services.state_dir))


def test_the_agent_gives_each_its_turn(crowd):
    services, good = crowd
    settings = SimpleNamespace(run_dir=services.run_dir, state_dir=services.state_dir)
    context = SimpleNamespace(
        settings=settings, files=Files(), config=LOCAL, store=services.only, log=Log("none", stderr=False)
    )
    owed = Owed(context)
    for already in range(3):
        assert is_owed(services, good), f"done in round {already}: the test shows nothing"
        with pytest.raises(TryAgain):
            owed.look()
    assert not is_owed(services, good)
    assert len(services.files.names(records.directory(services.state_dir))) == 40


def test_rounds_go_on_where_the_last_one_stopped(crowd):
    services, good = crowd
    services.files.write_atomic(f"{records.directory(services.state_dir)}/{'f' * 40}.json", b"{")
    tried, last = 0, ""
    while is_owed(services, good):
        report = pay_owed(services, LOCAL, Deadline.after(5), after=last)
        tried, last = tried + report.done + report.kept, report.last
        assert report.done + report.kept == BATCH and tried <= 41 + BATCH


def test_calls_begin_anywhere(crowd):
    """Each of them reaches the one that can be done with a probability of 16 in 41."""
    services, good = crowd
    for _ in range(100):
        pay_after(services, LOCAL)
        if not is_owed(services, good):
            return
    pytest.fail("it never had its turn")


def test_what_is_owed_is_paid_however_the_datastore_is_reached_now(tmp_path):
    """Not as the record says: that token may have ended, that endpoint be gone."""
    asked = []

    class Asked(OneStore):
        def open_only(self, config):
            asked.append(config)
            return self.only

    services = Asked(tmp_path, MemoryStore())
    then = DatastoreConfig("etcdv3", etcd_endpoints=("https://a:2379", "https://b:2379"), etcd_password="old")
    now = DatastoreConfig("etcdv3", etcd_endpoints=("https://B:2379/",), etcd_password="new")
    item = release("c", datastore=then)
    records.record(services.files, services.state_dir, item)
    services.files.make_directory(services.run_dir)
    pay_after(services, now)
    assert not is_owed(services, records.file_name(item.attachment))
    assert set(asked) == {now}


def test_five_thousand_that_are_owed_to_others_or_unreadable_cost_a_call_next_to_nothing(tmp_path):
    """Counted in files read and in lines logged: the first call reads a few, those right behind it none."""
    read, said = [], []

    class Counted(Files):
        def read_bytes(self, path):
            read.append(path)
            return super().read_bytes(path)

    class Kept(Log):
        def write(self, level, text):
            said.append(text)

    services = OneStore(tmp_path, MemoryStore())
    services.files, services.log = Counted(), Kept()
    services.files.make_directory(services.run_dir)
    directory = records.directory(services.state_dir)
    services.files.make_directory(directory)
    other = DatastoreConfig("local", path="/elsewhere")
    records.record(services.files, services.state_dir, release("c", "e", other))
    (name,) = services.files.names(directory)
    original = Path(directory, name).read_bytes()
    for i in range(5000):
        Path(directory, f"{i:040x}.json").write_bytes(original if i % 2 else b"{")
    for _ in range(20):
        pay_after(services, LOCAL)
    assert len(read) <= LOOKED_AT and len(said) <= LOOKED_AT
    del read[:], said[:]
    for _ in range(3):
        pay_owed(services, LOCAL, Deadline.after(5))
    assert len(said) == len(set(said)) <= LOOKED_AT, "each that cannot be read is named once"
    assert len(read) == 3 * LOOKED_AT


@pytest.mark.parametrize(("addresses", "left"), [(("10.0.0.2",), ["10.0.0.1"]), ((), ["10.0.0.1", "10.0.0.2"])])
def test_an_address_without_interface_is_released_though_its_endpoint_is_gone(tmp_path, addresses, left):
    """As an earlier release assigned it, to an interface that is not the first: the record says that it was its own."""
    services = OneStore(tmp_path, MemoryStore())
    pool = IPPool(new_metadata("four", uid="u", now="2026-11-20T12:06:00Z"), ip_network("10.0.0.0/24"), 26)
    services.only.elsewhere(Write.put(ResourceKey("IPPool", "four"), encode(pool)))
    allocator, soon = Allocator(services.only), Deadline.after(5)
    for address in ("10.0.0.1", "10.0.0.2"):
        allocator.assign_address(ip_address(address), "net.c", {"node": "n1"}, "n1", soon)
    item = release("c", "net1", addresses=frozenset(map(ip_address, addresses)))
    records.record(services.files, services.state_dir, item)
    assert pay(services).done == 1
    assert sorted(str(item.address) for item in allocator.addresses_of("net.c", soon)) == left


def test_records_with_and_without_addresses_are_read(tmp_path):
    services = OneStore(tmp_path, MemoryStore())
    item = release("c", "net1", addresses=frozenset((ip_address("10.0.0.2"),)))
    records.record(services.files, services.state_dir, item)
    path = Path(records.directory(services.state_dir), records.file_name(item.attachment))
    assert records.read(services.files, services.state_dir, records.file_name(item.attachment)) == item
    document = json.loads(path.read_bytes())
    path.write_text(json.dumps({**document, "addresses": ["10.0.0"]}))
    with pytest.raises(DecodeFailure):
        records.read(services.files, services.state_dir, records.file_name(item.attachment))
    del document["addresses"]  # as earlier releases wrote it
    path.write_text(json.dumps(document))
    found = records.read(services.files, services.state_dir, records.file_name(item.attachment))
    assert found is not None and found.addresses == frozenset()


@pytest.mark.parametrize(("meant", "left"), [("mine", 0), ("another", 1)])
def test_a_debt_of_one_record_takes_no_other(tmp_path, meant, left):
    """An ADD whose write of the endpoint may still be carried out owes that one: what else is there lives."""
    services = OneStore(tmp_path, MemoryStore())
    pool = IPPool(new_metadata("four", uid="u", now="2026-11-20T12:06:00Z"), ip_network("10.0.0.0/24"), 26)
    services.only.elsewhere(Write.put(ResourceKey("IPPool", "four"), encode(pool)))
    allocator, soon = Allocator(services.only), Deadline.after(5)
    allocator.assign_address(ip_address("10.0.0.1"), "net.c", {"node": "n1", "interface": "eth0"}, "n1", soon)
    attachment = Attachment("net", "n1", "cni", "default", "c", "c", "eth0")
    endpoint = plan_endpoint(
        attachment, own=None, veth="cali1", mac="", addresses=(), now="2026-11-20T12:06:00Z", uid="mine"
    )
    services.only.elsewhere(Write.put(attachment.endpoint_key, encode(endpoint)))
    records.record(services.files, services.state_dir, records.OwedRelease(attachment, LOCAL, uids=(meant,)))
    assert pay(services).done == 1
    assert services.files.names(records.directory(services.state_dir)) == []
    assert len(allocator.addresses_of("net.c", soon)) == left
    assert (services.only.get(attachment.endpoint_key, soon) is not None) == bool(left)


def test_what_is_owed_twice_is_owed_together(tmp_path):
    """A debt without a condition is not narrowed by a later one, and no address is forgotten."""
    services = OneStore(tmp_path, MemoryStore())
    attachment = Attachment("net", "n1", "cni", "default", "c", "c", "net1")

    def owe(*addresses, uids=()):
        item = records.OwedRelease(attachment, LOCAL, addresses=frozenset(map(ip_address, addresses)), uids=uids)
        records.record(services.files, services.state_dir, item)
        found = records.read_own(services.files, services.state_dir, attachment)
        return sorted(map(str, found.addresses)), found.uids

    assert owe(uids=("a",)) == ([], ("a",))
    assert owe("10.0.0.1", uids=("b",)) == (["10.0.0.1"], ("a", "b"))
    assert owe("10.0.0.2") == (["10.0.0.1", "10.0.0.2"], ())
    assert owe(uids=("c",)) == (["10.0.0.1", "10.0.0.2"], ())


class Late(MemoryStore):
    """What is written while it is ``slow`` is stored only with ``deliver``; until then nobody knows of it."""

    slow = False

    def __init__(self):
        super().__init__()
        self.kept = []

    def commit(self, writes, deadline):
        if not self.slow:
            return super().commit(writes, deadline)
        self.kept.append(writes)
        raise OutcomeUnknown("no answer")

    def deliver(self):
        """All of it; what no longer fits is refused."""
        for writes in self.kept:
            with suppress(CommitConflict):
                self.elsewhere(*writes)


def test_a_write_that_comes_after_the_undo_has_found_nothing_is_removed_by_what_is_owed(tmp_path):
    services, soon = OneStore(tmp_path, Late()), Deadline.after(5)
    attachment = Attachment("net", "n1", "cni", "default", "c", "c", "eth0")
    endpoint = plan_endpoint(
        attachment, own=None, veth="cali1", mac="", addresses=(), now="2026-11-20T12:06:00Z", uid="u"
    )
    services.only.slow = True
    with pytest.raises(OutcomeUnknown):
        apply_endpoint(services.only, attachment.endpoint_key, None, lambda _: endpoint, soon)
    remove_endpoint(services.only, attachment.endpoint_key, "c", soon)  # the undo: there is nothing
    records.record(services.files, services.state_dir, records.OwedRelease(attachment, LOCAL))
    services.only.slow = False
    services.only.deliver()
    assert services.only.get(attachment.endpoint_key, soon) is not None, "the test shows nothing"
    assert pay(services).done == 1
    assert services.only.get(attachment.endpoint_key, soon) is None
