"""Who works: with a lease, without the right to one, and after that right was there."""

from __future__ import annotations

import pytest

from cni_calico.controllers.leader import UpstreamsElection
from cni_calico.datastore.election import Held, Terms
from cni_calico.datastore.interface import Write
from cni_calico.errors import DatastoreDenied, DatastoreUnavailable, LeaseLost
from cni_calico.log import Log
from cni_calico.model.keys import HandleKey
from tests.deadlines import soon
from tests.fakes.memory_store import MemoryStore

TERMS = Terms(lasts_s=30)
LASTS_S = TERMS.lasts_s - TERMS.margin_s


class Scripted:
    """An election that does what it is told."""

    def __init__(self, clock) -> None:
        self.held, self.answer, self.resigned = Held(clock), True, 0

    def campaign(self, deadline):
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer:
            self.held.extend(self.held.clock(), LASTS_S)
        else:
            self.held.give_up()
        return self.answer

    def remaining_s(self):
        return self.held.remaining_s()

    def resign(self, deadline):
        self.resigned += 1
        self.held.give_up()


@pytest.fixture
def make_leader():
    now = [0.0]
    inner = Scripted(lambda: now[0])
    return now, inner, UpstreamsElection(inner, TERMS, Log("none"), clock=lambda: now[0])


def test_without_the_right_everybody_works_for_a_while(make_leader):
    now, inner, election = make_leader
    inner.answer = DatastoreDenied("forbidden")
    store = election.fenced(MemoryStore())
    with pytest.raises(LeaseLost):
        store.commit([Write.put(HandleKey("a"), {})], soon())
    assert election.campaign(soon()) and election.remaining_s() == LASTS_S
    store.commit([Write.put(HandleKey("a"), {})], soon())
    now[0] = LASTS_S + 1
    assert election.remaining_s() == 0
    with pytest.raises(LeaseLost):
        store.commit([Write.put(HandleKey("a"), {})], soon())
    election.campaign(soon())
    election.resign(soon())
    assert election.remaining_s() == 0 and inner.resigned == 0


def test_an_outage_is_no_lack_of_rights(make_leader):
    _, inner, election = make_leader
    inner.answer = DatastoreUnavailable("away")
    with pytest.raises(DatastoreUnavailable):
        election.campaign(soon())
    assert election.remaining_s() == 0


def test_who_was_answered_goes_on_needing_it(make_leader):
    _, inner, election = make_leader
    inner.answer = False
    assert not election.campaign(soon()) and election.remaining_s() == 0
    inner.answer = DatastoreDenied("the token has expired")
    with pytest.raises(DatastoreDenied):
        election.campaign(soon())
    assert election.remaining_s() == 0


def test_the_lease_counts_once_the_right_is_there(make_leader):
    _, inner, election = make_leader
    inner.answer = DatastoreDenied("forbidden")
    assert election.campaign(soon())
    inner.answer = False
    assert not election.campaign(soon()) and election.remaining_s() == 0
    inner.answer = True
    assert election.campaign(soon()) and election.remaining_s() == LASTS_S
    election.resign(soon())
    assert inner.resigned == 1 and election.remaining_s() == 0
