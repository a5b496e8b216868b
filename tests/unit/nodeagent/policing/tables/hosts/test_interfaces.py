"""Which interface gets which host endpoint, also where they contradict each other."""

from ipaddress import ip_address

import pytest

from cni_calico.model.interface_patterns import is_excluded
from cni_calico.model.keys import ResourceKey
from cni_calico.nodeagent.policing.tables.hosts.interfaces import select_interfaces
from cni_calico.policy.wanted import WantedHost

ETH0, ETH1 = ip_address("192.0.2.1").packed, ip_address("192.0.2.2").packed
THERE = {"lo": frozenset[bytes](), "eth0": frozenset((ETH0,)), "eth1": frozenset((ETH1,))}


def host(name: str, interface: str = "", *expected: bytes) -> WantedHost:
    return WantedHost(ResourceKey("HostEndpoint", name), interface, "h", expected)


@pytest.mark.parametrize(
    ("hosts", "by_name", "everywhere", "idle"),
    [
        ([host("a", "eth0"), host("b", "", ETH1)], {"eth0": "a", "eth1": "b"}, None, {}),
        ([host("b", "eth0"), host("a", "", ETH0)], {"eth0": "a"}, None, {"b": "HostEndpoint a has its interface"}),
        ([host("a", "", ETH0, ETH1)], {"eth0": "a", "eth1": "a"}, None, {}),
        ([host("a", "", ETH0, ETH1), host("b", "eth1")], {"eth0": "a", "eth1": "a"}, None, {"b": "comes first"}),
        ([host("b", "", ETH0, ETH1), host("a", "eth1")], {"eth0": "b", "eth1": "a"}, None, {}),
        ([host("a", "eth0", ETH1)], {"eth0": "a"}, None, {}),
        ([host("a", "eth7")], {"eth7": "a"}, None, {"a": "there is no interface eth7"}),
        ([host("a", "", b"1234")], {}, None, {"a": "no interface of this node has"}),
        ([host("b", "*"), host("a", "*")], {}, "a", {"b": "HostEndpoint a is for all interfaces too"}),
        ([host("a", "kube-ipvs0"), host("b", "veth1")], {}, None, {"a": "InterfaceExclude", "b": "InterfaceExclude"}),
    ],
)
def test_who_gets_an_interface(
    hosts: list[WantedHost], by_name: dict[str, str], everywhere: str | None, idle: dict[str, str]
) -> None:
    for ordered in (hosts, hosts[::-1]):
        found = select_interfaces(ordered, THERE, ("kube-ipvs0", "/^veth/"))
        assert {name: key.name for name, key in found.by_name.items()} == by_name
        assert (found.everywhere and found.everywhere.name) == everywhere
        assert found.idle.keys() == {ResourceKey("HostEndpoint", name) for name in idle}
        assert all(idle[key.name] in why for key, why in found.idle.items())


def test_excluded_interfaces() -> None:
    assert is_excluded("veth12", ("/^veth/",)) and not is_excluded("myveth", ("/^veth/",))
    assert is_excluded("eth0", ("eth0",)) and not is_excluded("eth01", ("eth0",))
    assert select_interfaces([], {"veth1": frozenset()}, ("dummy0", "/^veth/")).excluded == ("dummy0", "veth1")
