"""The janitor's own loop, on the memory store: leading, stepping down, its grace, its numbers."""

import threading

from cni_calico.controllers.counters import JanitorCounters
from cni_calico.errors import DatastoreUnavailable
from cni_calico.nodeagent.status.metrics import Metrics
from cni_calico.nodeagent.status.numbers import Numbers
from tests.deadlines import until


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


def test_the_pools_are_on_the_page_only_while_the_lease_is_held(janitor_field):
    """At once, also before the loop notices that somebody else may hold it: two pages would be added up."""
    one = janitor_field()
    until(lambda: 'ipam_ippool_size{ippool="four"} 64\n' in _page(one.counters), "the pool")
    numbers = one.counters.ipam
    one.election.ours = False
    assert numbers() is None
    until(lambda: not one.counters.is_leader, "it steps down")
    assert "ipam_" not in _page(one.counters).replace("calico_ipam_", "")
    one.election.ours = True
    until(lambda: "ipam_ippool_size{" in _page(one.counters), "it leads again")


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
