"""The janitor's own loop, on the memory store: leading, stepping down, its grace, its numbers."""

import threading
from dataclasses import replace

import pytest

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.counters import JanitorCounters
from cni_calico.controllers.janitor.options import JanitorOptions, parse_grace
from cni_calico.controllers.janitor.run import Janitor
from cni_calico.controllers.janitor.work import JanitorWork
from cni_calico.datastore.election import FencedStore, SoleElection, Terms
from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.ipam.lost.leaks import IdleHandle
from cni_calico.model.documents.codec import new_metadata
from cni_calico.model.keys import CLUSTER, HandleKey, ResourceKey
from cni_calico.model.resources import ClusterInformation, Handle
from cni_calico.nodeagent.status.metrics import Metrics
from cni_calico.nodeagent.status.numbers import Numbers
from tests.deadlines import soon, until
from tests.fakes.notes import Notes
from tests.unit.ipam.world import World, request

QUICK = JanitorOptions(
    Terms(lasts_s=60, renew_s=0.05, look_s=0.05), 0.0, 1000.0, look_s=0.05, settings_s=0.05, again_s=0.2, calls_s=0.0
)


class Election(SoleElection):
    """Decided by the test."""

    def __init__(self, ours=True):
        self.ours, self.asked, self.resigned, self.error = ours, 0, 0, None

    def campaign(self, deadline):
        self.asked += 1
        if self.error is not None:
            raise self.error
        return self.ours

    def remaining_s(self):
        return 60.0 if self.ours else 0.0

    def resign(self, deadline):
        self.resigned += 1

    def fenced(self, store):
        return FencedStore(store, self)


class Field:
    def __init__(self, options=QUICK, ours=True):
        self.world, self.log, self.counters, self.election = World(), Notes(), JanitorCounters(), Election(ours)
        self.world.pool("four", "10.65.0.0/26", 28)
        self.world.node("n1")
        cluster = Cluster(self.world.store, self.log)
        self.stopping = threading.Event()
        self.janitor = Janitor(cluster, self.election, self.counters, options)
        self.thread = threading.Thread(target=self.janitor.run, args=(self.stopping,))

    def leave_tunnel(self):
        wanted = request("ipip-tunnel-addr-gone", "gone", use="Tunnel")
        attributes = {"node": "gone", "type": "ipipTunnelAddress"}
        fields = {name: getattr(wanted, name) for name in wanted.__dataclass_fields__}
        self.world.allocator().assign(type(wanted)(**{**fields, "attributes": attributes}), soon())

    def stop(self):
        self.stopping.set()
        self.thread.join(10)
        assert not self.thread.is_alive()


@pytest.fixture
def janitor_field():
    made = []

    def make(**options):
        made.append(Field(**options))
        made[-1].thread.start()
        return made[-1]

    yield make
    for one in made:
        one.stop()


def test_what_a_node_left_goes_and_is_counted(janitor_field):
    one = janitor_field()
    until(lambda: one.counters.is_leader, "it leads")
    one.leave_tunnel()
    until(lambda: not one.world.held() and not one.world.affinities(), "it is released")
    until(lambda: one.counters.released["block"], "it is counted")
    assert one.counters.released["address"] == 1 and one.counters.released["block"] >= 1
    until(lambda: not sum(one.counters.candidates.values()), "the watch has seen it")
    assert any("released 10.65.0" in text and "there is no Node gone" in text for text in one.log.texts)
    page = _page(one.counters)
    assert "calico_janitor_leader 1.0" in page and 'calico_janitor_released_total{kind="address"} 1.0' in page
    one.stop()
    assert one.election.resigned and not one.counters.is_leader and "calico_janitor_leader 0.0" in _page(one.counters)


def _page(counters):
    metrics = Metrics(Numbers(), "/nonexistent", "/nonexistent")
    metrics.janitor = counters
    return metrics.page()[2].decode()


def test_every_number_is_told():
    """Each with a value of its own, that changes."""

    def told(counters):
        lines = (line.rsplit(" ", 1) for line in _page(counters).splitlines() if line.startswith("calico_janitor"))
        return {name: float(value) for name, value in lines if "_created" not in name}

    counters = JanitorCounters()
    before = {"calico_janitor_leader": 0, "calico_janitor_kept_total": 0, "calico_janitor_failures_total": 0}
    assert told(counters) == before
    counters.is_leader, counters.candidates = True, {"address": 5, "handle": 4}
    counters.kept, counters.failures = 6, 7
    counters.confirmed.update({"address": 3, "block": 2})
    counters.released.update({"address": 1})
    assert told(counters) == {
        "calico_janitor_leader": 1,
        'calico_janitor_candidates{kind="address"}': 5,
        'calico_janitor_candidates{kind="handle"}': 4,
        'calico_janitor_confirmed_total{kind="address"}': 3,
        'calico_janitor_confirmed_total{kind="block"}': 2,
        'calico_janitor_released_total{kind="address"}': 1,
        "calico_janitor_kept_total": 6,
        "calico_janitor_failures_total": 7,
    }
    counters.candidates = {}
    assert not any("candidates" in name for name in told(counters)), "a kind that is gone is not told for ever"


class Waits(threading.Event):
    """``stopping`` that never waits, and remembers how long it was to; the last of ``last`` waits ends it."""

    def __init__(self, last=0):
        super().__init__()
        self.asked, self.last = [], last

    def wait(self, timeout=None):
        self.asked.append(timeout)
        if self.last and len(self.asked) >= self.last:
            self.set()
        return self.is_set()


@pytest.mark.parametrize("per_second", [4.0, 10.0])
def test_each_suspect_has_its_share_of_a_second(per_second):
    """Not more looks and releases in a second than the options allow."""
    options = replace(QUICK, per_second=per_second)
    one = Field(options=options)
    work = JanitorWork(
        Cluster(one.world.store, one.log),
        one.election,
        one.counters,
        options,
        keep_lease=lambda: True,
        attempt=lambda doing, do: do(),
    )

    def suspects():
        keys = [HandleKey(f"net.{number}") for number in range(6)]
        for key in keys:
            one.world.put(key, Handle({}))
        return [IdleHandle(key.handle_id, str(one.world.store.get(key, soon()).revision)) for key in keys]

    def reclaim(subjects, waits):
        return work._reclaim(work._reclaimer(waits), subjects).released

    waits, subjects = Waits(), suspects()
    assert reclaim(subjects, waits) == subjects and not one.world.handles()
    assert waits.asked == [1 / per_second] * 6

    waits, subjects = Waits(last=3), suspects()
    assert reclaim(subjects, waits) == subjects[:2], "it stops where it is told to"
    assert waits.asked == [1 / per_second] * 3


def test_who_is_not_elected_does_nothing(janitor_field):
    one = janitor_field(ours=False)
    one.leave_tunnel()
    until(lambda: one.election.asked >= 3, "it asks again")
    assert one.world.held() and not one.counters.is_leader
    assert one.world.store.round_trips.by_operation.get("list", 0) < 5, "it has no caches"
    one.election.ours = True
    until(lambda: not one.world.held(), "now it is")


def test_who_loses_the_lease_stops(janitor_field):
    one = janitor_field()
    until(lambda: one.counters.is_leader, "it leads")
    one.election.ours = False
    one.leave_tunnel()
    until(lambda: not one.counters.is_leader, "it stepped down")
    assert one.world.held()
    one.election.ours = True
    until(lambda: not one.world.held(), "it leads again")


def test_a_write_without_the_lease_fails_and_is_done_later(janitor_field):
    one = janitor_field()
    until(lambda: one.counters.is_leader, "it leads")
    inner, armed = one.election.remaining_s, threading.Event()
    one.election.remaining_s = lambda: 0.0 if armed.is_set() and "commit" in _callers() else inner()
    armed.set()
    one.leave_tunnel()
    until(lambda: one.counters.failures, "it was refused")
    assert one.world.held()
    armed.clear()
    until(lambda: not one.world.held(), "it is released")


def _callers():
    import sys

    frame, found = sys._getframe(1), set()
    while frame is not None:
        found.add(frame.f_code.co_name)
        frame = frame.f_back
    return found


def test_a_datastore_that_does_not_answer(janitor_field):
    one = janitor_field()
    until(lambda: one.counters.is_leader, "it leads")
    one.leave_tunnel()
    one.world.store.set_down(True)
    one.election.error = DatastoreUnavailable("cannot campaign: scripted")
    until(lambda: one.counters.failures, "it is noticed")
    assert one.thread.is_alive()
    one.election.error = None
    one.world.store.set_down(False)
    until(lambda: not one.world.held(), "it goes on", 20)
    assert len([text for text in one.log.texts if "scripted" in text]) < 20, "said once, not each time"


def test_a_bug_ends_the_term_and_not_the_agent(janitor_field):
    one = janitor_field()
    until(lambda: one.counters.is_leader, "it leads")

    def broken():
        raise RuntimeError("nobody thought of this")

    one.election.remaining_s = broken
    until(lambda: one.election.resigned, "it resigned")
    assert one.thread.is_alive() and any("nobody thought of this" in text for text in one.log.texts)
    del one.election.remaining_s
    one.leave_tunnel()
    until(lambda: not one.world.held(), "it goes on")


def test_the_grace_is_the_clusters(janitor_field):
    def configure(one, period):
        spec = {"controllers": {"node": {"leakGracePeriod": period}}}
        one.world.store.elsewhere(Write.put(ResourceKey("KubeControllersConfiguration", "default"), {"spec": spec}))

    one = Field()
    configure(one, "1h")
    one.leave_tunnel()
    one.thread.start()
    try:
        until(lambda: one.counters.candidates.get("address"), "it is suspected")
        reads = one.world.store.round_trips.by_operation["get"]
        until(lambda: one.world.store.round_trips.by_operation["get"] > reads + 2, "it looks on")
        assert one.world.held()
        configure(one, "0.1s")
        until(lambda: not one.world.held(), "the grace is over")
    finally:
        one.stop()


def test_a_grace_that_cannot_be_read_may_be_none(janitor_field):
    """It would be 0 to leave pods alone: nothing is done before it is known; who is not allowed to ask goes on."""
    one = Field()
    get, error = one.world.store.get, [DatastoreUnavailable("cannot read: scripted")]

    def asked(key, deadline):
        if key.__class__ is ResourceKey and key.kind == "KubeControllersConfiguration" and error:
            raise error[0]
        return get(key, deadline)

    one.world.store.get = asked
    one.leave_tunnel()
    one.thread.start()
    try:
        until(lambda: any("scripted" in text for text in one.log.texts), "it could not be read")
        assert one.world.held() and not one.counters.candidates
        error[:] = [DatastoreDenied("cannot read: not granted")]
        until(lambda: not one.world.held(), "it goes on")
        assert sum("scripted" in text for text in one.log.texts) == 1, "said once"
    finally:
        one.stop()


def test_a_locked_datastore_is_left_alone(janitor_field):
    one = Field()

    def lock(ready):
        metadata = new_metadata("default", uid="u", now="2026-11-20T12:06:00Z")
        one.world.put(CLUSTER, ClusterInformation(metadata, datastore_ready=ready))

    lock(False)
    one.leave_tunnel()
    one.thread.start()
    try:
        until(lambda: one.counters.candidates.get("address"), "it is suspected")
        reads = one.world.store.round_trips.by_operation["get"]
        until(lambda: one.world.store.round_trips.by_operation["get"] > reads + 5, "it looks on")
        assert one.world.held() and not one.counters.confirmed
        lock(True)
        until(lambda: not one.world.held(), "unlocked")
    finally:
        one.stop()


def test_graces():
    def grace(value):
        return parse_grace({"spec": {"controllers": {"node": {"leakGracePeriod": value}}}}, 900.0)

    assert (grace("30m"), grace("1m30s"), grace("0s"), grace("soon"), grace(7)) == (1800.0, 90.0, None, 900.0, 900.0)
    assert parse_grace({}, 900.0) == parse_grace({"spec": {"controllers": None}}, 900.0) == 900.0


def test_switched_off_pods_are_left_alone_and_nodes_are_not(janitor_field):
    one = Field()
    spec = {"controllers": {"node": {"leakGracePeriod": "0s"}}}
    one.world.store.elsewhere(Write.put(ResourceKey("KubeControllersConfiguration", "default"), {"spec": spec}))
    one.leave_tunnel()
    one.world.put(HandleKey("net.idle"), Handle({}))
    one.thread.start()
    try:
        until(lambda: not one.world.held() and "net.idle" not in one.world.handles(), "nodes and handles")
    finally:
        one.stop()


def test_a_pod_is_gone_for_fifteen_minutes_before_its_addresses_go():
    """What is documented where nobody says otherwise."""
    options = JanitorOptions()
    assert options.grace_s == 15 * 60
    assert parse_grace({"spec": {}}, options.grace_s) == 15 * 60


def test_what_an_add_may_still_be_writing_is_left_alone_for_two_minutes():
    assert JanitorOptions().calls_s == 120


def test_the_datastore_is_asked_ten_times_a_second_at_most():
    assert JanitorOptions().per_second == 10
