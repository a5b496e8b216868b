"""The loops beside the data plane: when they look, what wakes them, how they wait for a datastore."""

import errno
import threading
from dataclasses import replace

import pytest

from cni_calico.daemon.keeper import RETRY_S, Keeper
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable
from cni_calico.model.resources import Metadata
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.settings import parse_settings
from cni_calico.nodeagent.keepers.tunnel_addresses import TunnelKeeper
from cni_calico.nodeagent.startup.run import wait_for_datastore
from cni_calico.nodeagent.view.follow import follow
from tests.deadlines import until
from tests.fakes.memory_store import MemoryStore
from tests.fakes.notes import Notes
from tests.unit.nodeagent.fabric import NODES, pool, snapshot, workload


def context(store=None, wait=lambda _: True):
    return Context(parse_settings({}), store or MemoryStore(), Notes(), wait)


@pytest.fixture
def running():
    """Runs a keeper in a thread; ended with the test."""
    stopping, threads = threading.Event(), []

    def run(work):
        threads.append(threading.Thread(target=work, args=(stopping,)))
        threads[-1].start()

    yield run
    stopping.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_keeper_does_it_at_once_and_when_woken(running):
    done = []
    keeper = Keeper("it", lambda: done.append(1), 3600.0, Notes(), {})
    running(keeper.run)
    until(lambda: len(done) == 1, "at the start")
    keeper.wake()
    until(lambda: len(done) == 2, "when woken")


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (OSError(errno.EMFILE, "Too many open files"), "file descriptors"),
        (RuntimeError("can't start new thread"), "threads"),
    ],
)
def test_a_shortage_that_passes_is_tried_again(error, lacking):
    """It must not end the agent, and with it everything else that it does."""

    def fail():
        raise error

    keeper = Keeper("it", fail, 3600.0, Notes(), {})
    assert not keeper._try() and keeper.troubles == {"it": f"this host is short of {lacking}"}
    keeper.do = lambda: None
    assert keeper._try() and keeper.troubles == {}


@pytest.mark.parametrize("error", [MemoryError(), ZeroDivisionError()])
def test_what_is_no_passing_shortage_ends_the_part(error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        Keeper("it", fail, 3600.0, Notes(), {})._try()


def test_a_failure_is_told_once_and_tried_again():
    def fail():
        raise DatastoreUnavailable("cannot reach it")

    keeper = Keeper("it", fail, 3600.0, Notes(), {})
    assert not keeper._try() and not keeper._try()
    assert [text for text in keeper.log.texts if "cannot reach it" in text] == keeper.log.texts[:1]
    assert (keeper._retry.next(), keeper._retry.next()) == (RETRY_S, 2 * RETRY_S)
    assert keeper.troubles == {"it": "cannot reach it"}  # for calicoctl node status
    keeper.do = lambda: None
    assert keeper._try() and keeper._retry.next() == RETRY_S
    assert keeper.troubles == {}


def test_tunnel_addresses_are_looked_at_when_what_they_depend_on_changes():
    keeper = TunnelKeeper(context(), "n1")
    woken = keeper.keeper._wake

    def follow_wakes(snap):
        woken.clear()
        keeper.use(snap)
        return woken.is_set()

    vxlan = pool("10.65.0.0/16", "Always")
    assert follow_wakes(snapshot(vxlan))
    assert not follow_wakes(snapshot(vxlan))
    assert not follow_wakes(snapshot(vxlan, endpoints=[workload("w", "calia", "10.65.1.5/32")], problems=("one",)))
    assert follow_wakes(snapshot(vxlan, pool("10.66.0.0/16")))
    told = {**NODES, "n1": replace(NODES["n1"], ipv4_vxlan_tunnel=None)}
    assert follow_wakes(snapshot(vxlan, nodes=told))
    labelled = {**NODES, "n1": replace(NODES["n1"], metadata=Metadata("n1", labels={"rack": "a"}))}
    assert follow_wakes(snapshot(vxlan, nodes=labelled))
    elsewhere = {**labelled, "n2": replace(NODES["n2"], ipv4=None)}
    assert not follow_wakes(snapshot(vxlan, nodes=elsewhere))


def test_following_without_an_agent(running):
    store, seen = MemoryStore(), []
    running(lambda stopping: follow(store, "n1", seen.append, stopping))
    from cni_calico.datastore.interface import Write
    from cni_calico.model.documents.codec import encode_pool
    from cni_calico.model.keys import ResourceKey

    item = pool("10.65.0.0/16", "Always")
    store.elsewhere(Write.put(ResourceKey("IPPool", item.metadata.name), encode_pool(item)))
    until(lambda: seen and seen[-1].pools, "the pool is seen")
    assert seen[-1].node == "n1"


# -- waiting for the datastore ----------------------------------------------------------------------------------------


def test_waiting_for_a_datastore():
    store, waits = MemoryStore(), []
    store.set_down(True)

    def wait(seconds):
        waits.append(seconds)
        if len(waits) == 3:
            store.set_down(False)
        return False

    it = context(store, wait)
    told = []
    wait_for_datastore(it, told.append)
    assert len(waits) == 3
    assert len(told) == 1 and told[0].startswith("waiting for the datastore: ")  # for the probes to say
    assert len(it.log.texts) == 1  # the same outage is told once


def test_a_signal_ends_the_waiting():
    store = MemoryStore()
    store.set_down(True)
    with pytest.raises(DatastoreUnavailable):
        wait_for_datastore(context(store, lambda _: True))


def test_wrong_credentials_are_not_waited_for():
    class Denying(MemoryStore):
        def get(self, key, deadline):
            raise DatastoreDenied("cannot read: who are you?")

    with pytest.raises(DatastoreDenied):
        wait_for_datastore(context(Denying(), lambda _: False))
