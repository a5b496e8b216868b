"""What a call does at the same time: in the server at once, in a process of its own afterwards."""

from __future__ import annotations

import socket
import threading

import pytest

from cni_calico.errors import TeardownIncomplete
from cni_calico.log import SILENT
from cni_calico.plugin.call.services import Services
from cni_calico.server.connections import CallRequest
from cni_calico.server.metrics import CniMetrics
from cni_calico.server.resident import Resident


@pytest.fixture
def server_services():
    resident = Resident(SILENT, CniMetrics())
    with socket.socket(socket.AF_UNIX) as connection:
        request = CallRequest(connection, 1, "calico", {}, b"")
        with resident.services(request) as services:
            yield services
    resident.end_worker()
    resident.close()


def test_in_the_server_both_are_under_way_at_once(server_services: Services):
    begun, answered = threading.Event(), threading.Event()

    def act() -> str:
        begun.set()
        assert answered.wait(10)
        return "done"

    with server_services.meanwhile(act) as outcome:
        assert begun.wait(10)  # else it would be carried out after this
        answered.set()
    assert outcome() == "done"


def test_the_server_waits_for_it_when_the_body_fails(server_services: Services):
    begun, ended = threading.Event(), threading.Event()

    def act() -> None:
        begun.wait(10)
        ended.set()

    with pytest.raises(TeardownIncomplete), server_services.meanwhile(act):
        begun.set()
        raise TeardownIncomplete("cannot delete interface cali1")
    assert ended.is_set()  # nothing of a call goes on once its lock is free


def test_its_error_is_the_callers(server_services: Services):
    def act() -> None:
        raise TeardownIncomplete("cannot")

    with server_services.meanwhile(act) as outcome:
        pass
    with pytest.raises(TeardownIncomplete):
        outcome()


def test_alone_it_comes_after_the_body_and_not_at_all_when_that_fails():
    services, order = Services(), []
    with services.meanwhile(lambda: order.append("act")) as outcome:
        order.append("body")
    outcome()
    with pytest.raises(TeardownIncomplete), services.meanwhile(lambda: order.append("never")):
        raise TeardownIncomplete("cannot")
    assert order == ["body", "act"]
