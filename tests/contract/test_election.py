"""Who does what is done once: on a real etcd, and on a real API server."""

from __future__ import annotations

import threading
import time
import uuid

import pytest

from cni_calico import faults
from cni_calico.datastore.election import SoleElection, Terms
from cni_calico.datastore.etcd.election import KEYS, EtcdElection
from cni_calico.datastore.etcd.messages import pb
from cni_calico.datastore.etcd.store import EtcdConfig, EtcdStore
from cni_calico.datastore.interface import Write
from cni_calico.datastore.kubernetes.election import KubernetesElection
from cni_calico.errors import DatastoreError, DatastoreUnavailable, LeaseLost, OutcomeUnknown
from cni_calico.model.keys import EverythingList, HandleKey, HandleList
from tests.conftest import LAB_CACHE
from tests.contract.etcd_process import etcd_binary, grpc_proxy, single
from tests.deadlines import soon, until

KEY = HandleKey("net.a")
HANDLE = {"block": {}, "deleted": False}
SHORT = Terms(lasts_s=2, renew_s=0.2, look_s=0.2)
LONG = Terms(lasts_s=600)


class Clock:
    """The monotonic clock, put forward at will."""

    def __init__(self):
        self.ahead_s = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead_s


class EtcdField:
    """A store, and elections of one name on it."""

    def __init__(self, url):
        self.url, self.name, self.opened = url, uuid.uuid4().hex[:8], []
        self.store = self.open()

    def open(self):
        store = EtcdStore(EtcdConfig(endpoints=(self.url,)))
        self.opened.append(store)
        return store

    def election(self, holder, terms, clock=time.monotonic):
        return EtcdElection(self.open(), self.name, holder, terms, clock=clock)

    def close(self):
        for store in self.opened:
            store.close()


class KubernetesField:
    def __init__(self, cluster):
        self.cluster, self.name, self.store = cluster, f"cct-{uuid.uuid4().hex[:8]}", cluster.store()
        self.apis = []

    def election(self, holder, terms, clock=time.monotonic):
        self.apis.append(self.cluster.api())
        return KubernetesElection(self.apis[-1], "kube-system", self.name, holder, terms, clock=clock)

    def close(self):
        try:
            path = f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{self.name}"
            self.cluster.request("DELETE", path)
        finally:
            for api in self.apis:
                api.close()
            self.store.close()


@pytest.fixture(scope="module")
def election_etcd():
    if etcd_binary() is None:
        pytest.skip("needs etcd: run tests/setup/build-go-tools.sh")
    with single() as cluster:
        yield cluster.urls[0]


@pytest.fixture(scope="module")
def etcd_proxy(election_etcd):
    """etcd's own gRPC proxy before it."""
    with grpc_proxy(election_etcd) as url:
        yield url


@pytest.fixture(
    params=[
        pytest.param("etcd", marks=pytest.mark.etcd),
        pytest.param("proxy", marks=pytest.mark.etcd),
        pytest.param("kubernetes", marks=pytest.mark.kubernetes),
    ]
)
def election_field(request):
    if request.param != "kubernetes":
        made = EtcdField(request.getfixturevalue({"etcd": "election_etcd", "proxy": "etcd_proxy"}[request.param]))
    else:
        if not (LAB_CACHE / "bin" / "kube-apiserver").exists():
            pytest.skip("needs kube-apiserver: run tests/setup/kubernetes.sh")
        from tests.e2e.kubernetes.cluster import shared_cluster

        made = KubernetesField(shared_cluster())
        made.cluster.ensure_namespace("kube-system")
    yield made
    made.close()


def test_one_holds_it_and_stays_the_holder(election_field):
    first, second = election_field.election("first", LONG), election_field.election("second", LONG)
    assert first.campaign(soon()) and not second.campaign(soon())
    assert 470 < first.remaining_s() <= 480 and second.remaining_s() == 0
    assert first.campaign(soon()) and not second.campaign(soon())


def test_who_resigns_is_followed_at_once(election_field):
    first, second = election_field.election("first", LONG), election_field.election("second", LONG)
    assert first.campaign(soon())
    first.resign(soon())
    assert first.remaining_s() == 0
    assert second.campaign(soon()) and not first.campaign(soon())
    first.resign(soon())  # of one who holds nothing: no effect
    assert second.campaign(soon())


def test_who_is_gone_is_followed_when_the_lease_is_over(election_field):
    first, second = election_field.election("first", SHORT), election_field.election("second", SHORT)
    assert first.campaign(soon())
    began = time.monotonic()
    assert not second.campaign(soon())
    until(lambda: second.campaign(soon()))
    assert time.monotonic() - began > 1.5
    assert first.remaining_s() == 0, "two hold it"
    assert not first.campaign(soon())
    assert not first.campaign(soon())


def test_who_renews_is_not_followed(election_field):
    first, second = election_field.election("first", SHORT), election_field.election("second", SHORT)
    end, pause = time.monotonic() + 4, threading.Event()
    while time.monotonic() < end:
        assert first.campaign(soon()) and first.remaining_s() > 0
        assert not second.campaign(soon())
        pause.wait(0.3)


PRIORITY = Terms(lasts_s=600, priority=True)


def test_a_holder_without_priority_hands_it_over_to_one_with(election_field):
    agent, controllers = election_field.election("agent", LONG), election_field.election("controllers", PRIORITY)
    assert agent.campaign(soon())
    assert not controllers.campaign(soon())  # it asks
    assert agent.remaining_s() > 0
    until(lambda: not agent.campaign(soon()))  # its next renewal
    assert agent.remaining_s() == 0
    until(lambda: controllers.campaign(soon()))
    assert not agent.campaign(soon())
    assert controllers.campaign(soon())


def test_those_with_priority_do_not_take_it_from_one_another(election_field):
    one, other = election_field.election("one", PRIORITY), election_field.election("other", PRIORITY)
    assert one.campaign(soon())
    for _ in range(3):
        assert not other.campaign(soon())
        assert one.campaign(soon())
    one.resign(soon())
    assert other.campaign(soon())


def test_who_asked_and_died_keeps_nobody_out(election_field):
    agent, other = election_field.election("agent", SHORT), election_field.election("other", SHORT)
    assert agent.campaign(soon())
    election_field.election("controllers", Terms(lasts_s=2, priority=True)).campaign(soon())
    until(lambda: not agent.campaign(soon()))
    until(lambda: other.campaign(soon()) or agent.campaign(soon()))


def test_many_at_once(election_field):
    elections = [election_field.election(f"c{i}", LONG) for i in range(6)]
    won, barrier = [], threading.Barrier(6)

    def run(election):
        barrier.wait()
        if election.campaign(soon()):
            won.append(election)

    threads = [threading.Thread(target=run, args=(e,)) for e in elections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) <= 1
    assert sum(e.campaign(soon()) for e in elections) == 1
    assert sum(e.remaining_s() > 0 for e in elections) == 1


def test_without_the_lease_nothing_is_written(election_field):
    clock = Clock()
    first = election_field.election("first", LONG, clock)
    store = first.fenced(election_field.store)
    with pytest.raises(LeaseLost):
        store.commit([Write.create(KEY, HANDLE)], soon())
    assert first.campaign(soon())
    written = store.commit([Write.create(KEY, HANDLE)], soon()).stored[0]
    clock.ahead_s += 481
    with pytest.raises(LeaseLost):
        store.commit([Write.delete(written)], soon())
    assert election_field.store.get(KEY, soon()) is not None
    assert first.campaign(soon())
    store.commit([Write.delete(written)], soon())
    assert election_field.store.get(KEY, soon()) is None


@pytest.mark.etcd
def test_etcd_refuses_what_a_former_holder_writes(election_etcd):
    """Even if its clock has stopped: it believes to hold a lease that another has."""
    stopped = time.monotonic()
    field = EtcdField(election_etcd)
    try:
        first = field.election("first", Terms(lasts_s=2), lambda: stopped)
        second = field.election("second", LONG)
        assert first.campaign(soon())
        store = first.fenced(field.open())
        written = store.commit([Write.create(KEY, HANDLE)], soon()).stored[0]
        until(lambda: second.campaign(soon()))
        assert first.remaining_s() > 0
        with pytest.raises(LeaseLost):
            store.commit([Write.delete(written)], soon())
        assert field.store.get(KEY, soon()) is not None
        second.fenced(field.store).commit([Write.delete(written)], soon())
        assert not any("cni-calico" in str(item.key) for item in field.store.list(EverythingList(), soon()).items)
    finally:
        field.close()


@pytest.mark.etcd
def test_a_key_without_a_lease_is_nobodys(election_etcd):
    """As a mirror of the datastore has it: not everybody's, and not in the way for ever."""
    field = EtcdField(election_etcd)
    try:
        put = pb.RequestOp(request_put=pb.PutRequest(key=f"{KEYS}{field.name}".encode(), value=b"{}"))
        field.store.cluster.write("Txn", pb.TxnRequest(success=[put]), "copy a key", soon())
        elections = [field.election(name, LONG) for name in ("first", "second")]
        assert [election.campaign(soon()) for election in elections] == [True, False]
        assert [election.campaign(soon()) for election in elections] == [True, False]
    finally:
        field.close()


def test_one_host_has_nobody_to_ask():
    election, store = SoleElection(), object()
    assert election.campaign(soon()) and election.remaining_s() == float("inf") and election.fenced(store) is store


@pytest.mark.etcd
@pytest.mark.parametrize(("when", "error"), [("before", DatastoreUnavailable), ("after", OutcomeUnknown)])
def test_an_election_whose_outcome_is_not_known_is_won_or_lost_the_next_time(election_etcd, when, error):
    made = EtcdField(election_etcd)
    faults.install(faults.FaultPlan(f"etcd.take-lease:{when}:1:fail"))
    try:
        one, other = made.election("one", LONG), made.election("other", LONG)
        with pytest.raises(DatastoreUnavailable) as caught:
            one.campaign(soon())
        assert type(caught.value) is error
        assert one.campaign(soon()) and not other.campaign(soon())
        one.resign(soon())
        assert other.campaign(soon())
        other.resign(soon())
    finally:
        faults.install(None)
        made.close()


@pytest.mark.kubernetes
@pytest.mark.parametrize("election_field", ["kubernetes"], indirect=True)
def test_a_namespace_that_is_missing_is_an_error(election_field):
    """Not a lease that somebody else was faster to take: else there would be no janitor and nobody would say so."""
    assert election_field.election("a", LONG).campaign(soon())
    api = election_field.cluster.api()
    try:
        election = KubernetesElection(api, "cct-nowhere", election_field.name, "a", LONG)
        with pytest.raises(DatastoreError, match="cct-nowhere"):
            election.campaign(soon())
    finally:
        api.close()


@pytest.mark.etcd
def test_records_are_written_listed_and_watched_through_the_proxy(etcd_proxy):
    made = EtcdField(etcd_proxy)
    try:
        store, key = made.open(), HandleKey(f"net.{uuid.uuid4().hex}")
        created = store.commit([Write.create(key, HANDLE)], soon())
        assert [item.key for item in store.list(HandleList(), soon()).items if item.key == key] == [key]
        with store.watch(HandleList(), created.revision) as watch:
            other = made.open()
            other.commit([Write.update(other.get(key, soon()), {**HANDLE, "n": 1})], soon())
            events = []
            until(lambda: events.extend(watch.next(1)) or any(event.key == key for event in events))
        store.commit([Write.remove(key)], soon())
    finally:
        made.close()
