"""Whose flows are shown, and what cannot be asked there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cni_calico.ctl.flows.places import HostFlows
from cni_calico.directories import FLOW_SOCKET
from cni_calico.errors import InvalidConfig
from cni_calico.flows.query import Condition, FlowQuery
from tests.fakes.recorder import ScriptedRecorder, address, flow, rule

ALLOWED = rule("egress", "shop", "web", 0)


def test_a_recorder_knows_services_by_their_addresses(tmp_path: Path) -> None:
    recorder = ScriptedRecorder(str(tmp_path))
    try:
        place = HostFlows(f"{tmp_path}/{FLOW_SOCKET}")
        to_service = flow(address("10.0.0.1"), address("10.0.0.2", 80), ALLOWED)
        to_service["destination"]["asked"] = {"ip": "10.96.0.1", "port": 80}
        recorder.flows = [flow(address("10.0.0.1"), address("10.0.0.2", 80), ALLOWED), to_service]
        query = FlowQuery((Condition("service", ("10.96.0.1",)),))
        assert [one for one in place.ask(query, 10) if "verdict" in one] == [to_service]
        named = FlowQuery((Condition("service", ("shop/db",)),))
        with pytest.raises(InvalidConfig, match="the name 'shop/db' needs an API server"):
            place.ask(named, 10)
        recorder.services = 1
        to_service["destination"]["service"] = {"namespace": "shop", "name": "db", "port": "pg"}
        assert [one for one in place.ask(named, 10) if "verdict" in one] == [to_service]
        other = FlowQuery((Condition("service", ("bank/db",)),))
        assert [one for one in place.ask(other, 10) if "verdict" in one] == []
    finally:
        recorder.close()


def test_the_oldest_are_those_that_a_recorder_has_first(tmp_path: Path) -> None:
    recorder = ScriptedRecorder(str(tmp_path))
    try:
        recorder.flows = [flow(address(f"10.0.0.{i}"), address("10.0.1.1", 80), ALLOWED) for i in range(5)]
        found = [one for one in HostFlows(f"{tmp_path}/{FLOW_SOCKET}").ask(FlowQuery(first=2), 10) if "verdict" in one]
        assert [one["source"]["ip"] for one in found] == ["10.0.0.0", "10.0.0.1"]
    finally:
        recorder.close()
