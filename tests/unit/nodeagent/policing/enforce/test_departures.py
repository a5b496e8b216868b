"""The list of policed addresses: who is on it, and when, whatever happens to the agent and its files."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico import faults
from cni_calico.kernel.files import WRITE, Files
from cni_calico.kernel.netlink.nfnetlink import Nfnetlink
from cni_calico.log import SILENT
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.enforce import connections
from cni_calico.nodeagent.policing.enforce.departures import (
    FILE,
    Departures,
    addresses_in_status,
    parse_addresses,
    render_addresses,
)
from tests.unit.nodeagent.fabric import workload

A, B = ResourceKey("WorkloadEndpoint", "n1-k8s-a-eth0", "default"), ResourceKey("WorkloadEndpoint", "n1-b", "default")


def packed(*addresses: str) -> set[bytes]:
    return {ip_address(address).packed for address in addresses}


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The addresses whose connections were removed."""
    found: list[bytes] = []
    monkeypatch.setattr(connections, "remove_entries", lambda netlink, address, deadline: not found.append(address))
    return found


@pytest.fixture
def netlink() -> Iterator[Nfnetlink]:
    with Nfnetlink() as opened:
        yield opened


def departures(directory: Path, netlink: Nfnetlink) -> Departures:
    made = Departures("n1", netlink, Files(), SILENT, str(directory))
    made.begin(())
    return made


def listed(directory: Path) -> set[str]:
    return set((directory / FILE).read_text().split())


def test_an_address_is_listed_before_it_is_policed_and_until_its_connections_are_gone(
    tmp_path: Path, netlink: Nfnetlink, removed: list[bytes]
) -> None:
    made = departures(tmp_path, netlink)
    made.put(A, workload("a", "calia", "10.0.0.1/32"))
    made.put(B, workload("b", "calib", "10.0.0.2/32"))
    made.before_change()
    assert listed(tmp_path) == {"10.0.0.1", "10.0.0.2"}
    made.after_change()
    made.put(A, None)
    made.put(B, workload("b", "calib", "10.0.0.3/32"))
    made.before_change()
    assert listed(tmp_path) == {"10.0.0.1", "10.0.0.2", "10.0.0.3"} and not removed
    made.after_change()
    assert listed(tmp_path) == {"10.0.0.3"} and set(removed) == packed("10.0.0.1", "10.0.0.2")
    made.forget()
    assert listed(tmp_path) == set()


def test_who_went_meanwhile(tmp_path: Path, netlink: Nfnetlink, removed: list[bytes]) -> None:
    before = departures(tmp_path, netlink)
    before.put(A, workload("a", "calia", "10.0.0.1/32"))
    before.put(B, workload("b", "calib", "10.0.0.2/32"))
    before.before_change()
    made = departures(tmp_path, netlink)
    made.put(A, workload("a", "calia", "10.0.0.1/32"))
    made.before_change()
    assert listed(tmp_path) == {"10.0.0.1", "10.0.0.2"} and not removed
    made.after_change()
    assert removed == [ip_address("10.0.0.2").packed] and listed(tmp_path) == {"10.0.0.1"}


def test_a_list_that_cannot_be_written(
    tmp_path: Path, netlink: Nfnetlink, removed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said and tried again, and connections are removed all the same."""
    made = departures(tmp_path, netlink)
    made.put(A, workload("a", "calia", "10.0.0.1/32"))
    monkeypatch.setattr(faults, "_hook", faults.FaultPlan(f"{WRITE}:before:1:fail,{WRITE}:before:2:fail"))
    made.before_change()
    assert str(tmp_path) in made.trouble
    made.put(A, None)
    made.after_change()
    assert removed
    made.before_change()
    made.after_change()
    made.put(A, workload("a", "calia", "10.0.0.1/32"))
    made.before_change()
    assert listed(tmp_path) == {"10.0.0.1"} and not made.trouble


@given(st.text())
def test_a_damaged_list_stops_nothing(text: str) -> None:
    found = parse_addresses(text + "\n10.0.0.1\n" + text[::-1])
    assert found >= packed("10.0.0.1")
    assert parse_addresses(render_addresses(found)) == found


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b'{"ipv4Nets": 3}', b'{"ipv4Nets": ["x"]}', b"\xff"])
def test_a_status_file_that_is_none(content: bytes) -> None:
    assert addresses_in_status(content) == set()


def test_a_status_file() -> None:
    content = b'{"ifaceName":"calia","ipv4Nets":["10.0.0.1/32"],"ipv6Nets":["fd00::1/128"]}'
    assert addresses_in_status(content) == packed("10.0.0.1", "fd00::1")
