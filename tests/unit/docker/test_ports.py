"""Published ports: bound before they are forwarded, by one program only."""

from __future__ import annotations

import socket
from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.docker.descriptors import DescriptorStore
from cni_calico.docker.documents import PortRequest
from cni_calico.docker.ports import PortPublisher, parse_forward, render_forward
from cni_calico.errors import InvalidConfig
from cni_calico.kernel.filter.port_table import PortForward
from cni_calico.log import SILENT

BOTH = (ip_address("10.65.0.7"), ip_address("fd00::7"))
ports = st.integers(1, 65535)


@given(st.sampled_from(["tcp", "udp", "sctp"]), ports, st.ip_addresses(), ports, st.none() | st.ip_addresses())
def test_a_file_has_what_was_published(
    protocol: str, host_port: int, address: str, port: int, host: str | None
) -> None:
    own = None if host is None else ip_address(host)
    forward = PortForward(protocol, host_port, ip_address(address), port, own)
    assert parse_forward(render_forward(forward)) == forward


@pytest.mark.parametrize("text", ["", "tcp * 80 10.0.0.1", "icmp * 80 10.0.0.1 80", "tcp * x 10.0.0.1 80"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_forward(text)


def test_any_port_is_the_same_in_both_families_and_taken() -> None:
    publisher = PortPublisher(SILENT, DescriptorStore({}))
    found = publisher.bind("one", [PortRequest("tcp", 80)], BOTH)
    (host_port,) = {each.host_port for each in found}
    assert [each.address for each in found] == list(BOTH) and host_port
    with pytest.raises(InvalidConfig, match="is in use on"):
        publisher.bind("two", [PortRequest("tcp", 80, host_port)], BOTH)
    (next_one, _) = publisher.bind("two", [PortRequest("tcp", 80, host_port, host_port + 20)], BOTH)
    assert host_port < next_one.host_port <= host_port + 20
    publisher.bind("one", [], BOTH)
    with socket.socket() as free:
        free.bind(("", host_port))


def test_if_one_port_is_taken_none_is() -> None:
    publisher = PortPublisher(SILENT, DescriptorStore({}))
    with socket.socket() as taken, socket.socket() as free:
        taken.bind(("", 0))
        with pytest.raises(InvalidConfig):
            free_port = _free_port()
            publisher.bind(
                "one", [PortRequest("tcp", 80, free_port), PortRequest("tcp", 81, taken.getsockname()[1])], BOTH
            )
        free.bind(("", free_port))


def test_an_address_of_a_family_that_the_container_lacks() -> None:
    with pytest.raises(InvalidConfig, match="no address of that family"):
        PortPublisher(SILENT, DescriptorStore({})).bind(
            "one", [PortRequest("tcp", 80, 80, 80, ip_address("::1"))], BOTH[:1]
        )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
