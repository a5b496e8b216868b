"""What the elected janitor does, how often, and what it leaves alone."""

import threading
from dataclasses import replace

import pytest

from cni_calico.controllers.cluster import Cluster
from cni_calico.controllers.janitor.work import JanitorWork
from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.ipam.lost.leaks import IdleHandle
from cni_calico.model.documents.codec import new_metadata
from cni_calico.model.keys import CLUSTER, HandleKey, ResourceKey
from cni_calico.model.resources import ClusterInformation, Handle
from tests.deadlines import soon, until
from tests.unit.controllers.janitor.field import QUICK, Field


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
