"""What Docker does not know any more, and did not tell, is removed once Docker, asked, has answered."""

from __future__ import annotations

from typing import Any

import pytest

from tests.deadlines import until
from tests.netns.docker.machine import Machine

pytestmark = [pytest.mark.netns, pytest.mark.docker]

OURS = {"AddressSpace": "CalicoGlobalAddressSpace", "Pool": "0.0.0.0/0"}


def ask_for(box: Machine, address: str = "") -> dict[str, Any]:
    fields = {"PoolID": "CalicoPoolIPv4", "Address": address, "Options": None}
    return box.ask("calico-ipam", "IpamDriver.RequestAddress", **fields)


def lone_address(box: Machine) -> str:
    return str(ask_for(box)["Address"])


def lone_endpoint(box: Machine, network: str, endpoint: str, address: str = "") -> None:
    """Of a container that Docker has never had."""
    interface: dict[str, Any] = {"Address": address or lone_address(box), "AddressIPv6": "", "MacAddress": ""}
    ids = {"NetworkID": network, "EndpointID": endpoint}
    made = box.ask("calico", "NetworkDriver.CreateEndpoint", **ids, Interface=interface, Options={})
    assert made["Interface"]["MacAddress"]
    sandbox = f"/run/docker/netns/{endpoint[:12]}"
    joined = box.ask("calico", "NetworkDriver.Join", **ids, SandboxKey=sandbox)
    assert joined["InterfaceName"]["SrcName"] == f"temp{endpoint[:11]}"


def test_what_docker_does_not_know_is_removed_and_what_it_knows_stays(box: Machine) -> None:
    """Endpoints, addresses and networks; also one whose interface Docker has put back to the host."""
    box.network("web")
    for name in ("stays", "torn"):
        box.run(name, "web")
    web = box.inspect("stays")["NetworkSettings"]["Networks"]["web"]
    lone_endpoint(box, web["NetworkID"], "e" * 64)
    lone_address(box)
    box.ask("calico", "NetworkDriver.CreateNetwork", NetworkID="f" * 64, Options={}, IPv4Data=[OURS], IPv6Data=[])
    assert len(box.veths()) == 3 and len(box.handles()) == 4 and len(box.files("networks")) == 2
    until(lambda: "eeeeeeeeeeee" in box.status(), "it is shown")
    torn = str(box.inspect("torn")["State"]["Pid"])
    box.in_machine("nsenter", "-t", torn, "-n", "ip", "link", "set", "eth0", "netns", "1")
    assert len(box.files("endpoints")) == 3, "they are young"
    box.end("driver")
    box.age("endpoints", "addresses", "networks")
    box.start_driver()
    until(lambda: set(box.records()) == {"stays"} and len(box.handles()) == 1, "one is left")
    until(lambda: len(box.files("endpoints")) == len(box.files("addresses")) == len(box.veths()) == 1, "of everything")
    assert box.files("endpoints")[0]["id"] == web["EndpointID"]
    until(lambda: len(box.files("networks")) == 1, "and of networks")


def test_an_address_of_a_dead_endpoint_is_taken_over_and_one_of_a_living_one_is_not(box: Machine) -> None:
    """Docker's API does not serve, so nobody has found out yet which is dead. A young one may be on its way."""
    box.network("web", "--subnet", "10.65.0.0/24")
    lives = box.run("lives", "web", "--ip", "10.65.0.77")
    web = box.inspect("lives")["NetworkSettings"]["Networks"]["web"]["NetworkID"]
    lone_endpoint(box, web, "d" * 64, str(ask_for(box, "10.65.0.88")["Address"]))
    assert "10.65.0.88" in ask_for(box, "10.65.0.88")["Error"], "it is young"
    box.kill_docker()
    box.end("driver")
    box.age("endpoints", "addresses")
    box.start_driver()
    assert lives in ask_for(box, lives)["Error"] and len(box.veths()) == 2
    assert ask_for(box, "10.65.0.88") == {"Address": "10.65.0.88/32", "Data": {}}
    (left,) = box.files("endpoints")
    assert left["addresses"] == [lives] and len(box.veths()) == 1 and len(box.handles()) == 2
    box.ask("calico-ipam", "IpamDriver.ReleaseAddress", PoolID="CalicoPoolIPv4", Address="10.65.0.88")
    until(lambda: {held["address"] for held in box.files("addresses")} == {lives}, "it is released")


def named_address(box: Machine, name: str) -> str:
    """As dockerd 29 asks for it."""
    options = {"com.docker.network.endpoint.name": name}
    fields = {"PoolID": "CalicoPoolIPv4", "Address": "", "Options": options}
    return str(box.ask("calico-ipam", "IpamDriver.RequestAddress", **fields)["Address"])


def test_a_container_that_starts_again_gets_its_last_address_if_nobody_has_it(box: Machine) -> None:
    first = named_address(box, "web")

    def release(address: str) -> None:
        box.ask("calico-ipam", "IpamDriver.ReleaseAddress", PoolID="CalicoPoolIPv4", Address=address.split("/")[0])

    release(first)
    others = [named_address(box, name) for name in ("a", "b")]
    assert first not in others and named_address(box, "web") == first
    box.end("driver")
    box.start_driver()
    release(first)
    assert named_address(box, "web") == first, "also after a restart of the driver"
    second = named_address(box, "web")
    assert second != first, "somebody has it: this is another container of that name, or one that is not released yet"
    for address in (first, second, *others):
        release(address)
    until(box.is_clean, "nothing is left")


def test_a_name_that_docker_gave_while_nobody_listened(box: Machine) -> None:
    box.network("web")
    box.run("old", "web")
    box.end("driver")
    box.docker("rename", "old", "new")
    box.lab.put("IPPool", "wide", {"cidr": "172.16.0.0/12", "blockSize": 28, "nodeSelector": "all()"})
    box.start_driver()
    until(lambda: set(box.records()) == {"new"}, "it is asked when the driver starts")
    until(lambda: "Docker's network bridge (172.17.0.0/16) overlaps IP pool wide" in box.log(), "the pool")
    box.lab.remove("IPPool", "wide")
    assert " new " in box.status() and "the driver answers" in box.status()
    box.end("driver")
    assert "the driver does not answer" in box.status() and " new " in box.status()
