"""Docker's documents: golden ones of dockerd, and anything at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.cni.netconf import ANYONE, MEMBERS
from cni_calico.docker.documents import (
    HOPS,
    EndpointRequest,
    MalformedRequest,
    NetworkRequest,
    PoolRequest,
    PortRequest,
    RequestFields,
    host_name,
    next_hops,
    parse_address,
    parse_endpoint,
    parse_network,
    parse_pool,
    parse_ports,
    parse_request,
    peer_name,
    render_join,
)
from cni_calico.errors import CalicoError, InvalidConfig
from cni_calico.model.names import valid_ifname

ID = "37638c72f0462afa3d8023c22aea552f042a8b21eca945f229ee725ba9877afc"
# as Debian's dockerd 20.10.24 sends them
NETWORK = {
    "NetworkID": ID,
    "Options": {"com.docker.network.enable_ipv6": False, "com.docker.network.generic": {"mtu": "1400"}},
    "IPv4Data": [{"AddressSpace": "CalicoGlobalAddressSpace", "Gateway": "169.254.1.1/32", "Pool": "0.0.0.0/0"}],
    "IPv6Data": [],
}
ENDPOINT: dict[str, Any] = {
    "NetworkID": ID,
    "EndpointID": ID,
    "Interface": {"Address": "10.65.0.208/32", "AddressIPv6": "", "MacAddress": ""},
    "Options": {"com.docker.network.endpoint.exposedports": [], "com.docker.network.portmap": []},
}
PORTMAP = "com.docker.network.portmap"
PORT = {"Proto": 6, "IP": "", "Port": 80, "HostIP": "", "HostPort": 8080, "HostPortEnd": 8080}
PORTS = {"Options": {PORTMAP: [{"Proto": 6, "IP": "", "Port": 80, "HostPort": 8080}]}}
PARSERS: tuple[Callable[[RequestFields], object], ...] = (
    parse_network,
    parse_pool,
    parse_address,
    parse_endpoint,
    parse_ports,
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from([ID, "10.65.0.1/32", "::/0"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
KEYS = sorted({*NETWORK, *ENDPOINT, "Pool", "SubPool", "PoolID", "Address", "V6", "AddressSpace"})


def fields_of(document: Any) -> RequestFields:
    return parse_request("Call", json.dumps(document).encode())


def test_dockerds_documents() -> None:
    assert parse_network(fields_of(NETWORK)) == NetworkRequest(ID, 1400, ANYONE)
    generic = {"Options": {"com.docker.network.generic": {"profile_ingress": "members"}}}
    assert parse_network(fields_of({**NETWORK, **generic})).ingress == MEMBERS
    (v4,) = (ip_address("10.65.0.208"),)
    assert parse_endpoint(fields_of(ENDPOINT)) == EndpointRequest(ID, ID, (v4,))
    given_mac = {**ENDPOINT["Interface"], "MacAddress": "02:42:AC:11:00:02"}
    options = {"org.projectcalico.label.role": "db", "other": "x"}
    parsed = parse_endpoint(fields_of({**ENDPOINT, "Interface": given_mac, "Options": options}))
    assert parsed.mac == "02:42:ac:11:00:02" and parsed.labels == {"org.projectcalico.label.role": "db"}
    assert parse_pool(fields_of({"Pool": "", "V6": True})) == PoolRequest(6, None)
    assert parse_pool(fields_of({"Pool": "10.65.0.0/24"})) == PoolRequest(4, ip_network("10.65.0.0/24"))
    assert parse_ports(fields_of(PORTS)) == (PortRequest("tcp", 80, 8080),)
    (some,) = parse_ports(fields_of({"Options": {PORTMAP: [{**PORT, "Proto": 17, "HostPortEnd": 8082}]}}))
    assert list(some.candidates()) == [8080, 8081, 8082] and str(some) == "8080-8082/udp"
    (own,) = parse_ports(fields_of({"Options": {PORTMAP: [{**PORT, "HostIP": "192.0.2.1", "HostPort": 0}]}}))
    assert own.host == ip_address("192.0.2.1") and not list(own.candidates())


@pytest.mark.parametrize("wrong", [{"Proto": 1}, {"Proto": "tcp"}, {"Port": 0}, {"HostPort": 65536}, {"HostIP": "x"}])
def test_a_port_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(MalformedRequest):
        parse_ports(fields_of({"Options": {PORTMAP: [{**PORT, **wrong}]}}))


def test_join_gives_each_family_its_gateway() -> None:
    answer = render_join(ID, (ip_address("10.65.0.1"), ip_address("fd00::1")), "eth", 1)
    assert answer == {
        "InterfaceName": {"SrcName": "temp37638c72f04", "DstPrefix": "eth"},
        "Gateway": "169.254.1.1",
        "GatewayIPv6": "fe80::ecee:eeff:feee:eeee",
        "StaticRoutes": [
            {"Destination": "169.254.1.1/32", "RouteType": 1, "NextHop": ""},
            {"Destination": "fe80::ecee:eeff:feee:eeee/128", "RouteType": 1, "NextHop": ""},
        ],
    }
    further = render_join(ID, (ip_address("10.65.0.1"), ip_address("fd00::1")), "eth", HOPS)
    assert (further["Gateway"], further["GatewayIPv6"]) == ("169.254.1.254", "fe80::ecee:eeff:feee:fe")
    hops = [next_hops(hop)[family] for hop in range(1, HOPS + 1) for family in (4, 6)]
    assert len(set(map(ip_address, hops))) == 2 * HOPS
    assert all(map(valid_ifname, (host_name(ID), peer_name(ID))))


@pytest.mark.parametrize("body", [b"", b"  ", b"{", b"[]", b"null", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_object_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_request("Join", body)


@pytest.mark.parametrize("id", ["", "../x", "a/b", "a" * 129, "é", "a b", 7])
def test_an_id_never_leaves_the_driver_s_directory(id: Any) -> None:
    with pytest.raises(MalformedRequest):
        fields_of({"EndpointID": id}).id("EndpointID")


@given(st.dictionaries(st.sampled_from(KEYS), anything, max_size=6), st.sampled_from(PARSERS))
def test_whatever_comes_is_parsed_or_refused(
    document: dict[str, Any], parse: Callable[[RequestFields], object]
) -> None:
    try:
        parse(fields_of(document))
    except CalicoError as e:
        assert isinstance(e, InvalidConfig) and e.message.startswith("cannot ")
