"""Which host endpoint a connection passes on a node, as far as records tell."""

from ipaddress import ip_address, ip_interface

import pytest

from cni_calico.ctl.addresses import addresses_of_node
from cni_calico.ctl.policy.interfaces import node_hosts
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import Metadata, Node
from cni_calico.nodeagent.context.felix import FelixSettings
from cni_calico.policy.hosts import HostRecord
from cni_calico.policy.records import Labelled

MAIN, SECOND, TUNNEL, OTHER = "192.0.2.1", "192.0.2.2", "10.65.0.0", "198.51.100.1"
NODE = Node(
    Metadata("n1"),
    ipv4=ip_interface(f"{MAIN}/24"),
    ipv4_vxlan_tunnel=ip_address(TUNNEL),
    addresses=({"address": MAIN, "type": "InternalIP"}, {"address": "203.0.113.1", "type": "ExternalIP"}),
    interfaces=({"name": "eth1", "addresses": [f"{SECOND}/24"]},),
)


def view(node=NODE, **hosts):
    """The host endpoints by name: an interface and the addresses that it expects."""
    records = {}
    for name, (interface, *expected) in sorted(hosts.items()):
        packed = tuple(ip_address(address).packed for address in expected)
        records[ResourceKey("HostEndpoint", name)] = HostRecord(
            "n1", interface, Labelled(frozenset(), addresses=packed)
        )
    elsewhere = HostRecord("n2", "eth0", Labelled(frozenset(), addresses=(ip_address(MAIN).packed,)))
    return node_hosts({ResourceKey("HostEndpoint", "0"): elsewhere, **records}, "n1", node, FelixSettings())


def name(key):
    return key and key.name


@pytest.mark.parametrize(
    ("hosts", "at", "uplink"),
    [
        ({}, None, None),
        ({"b": ("eth0", MAIN)}, "b", "b"),
        ({"b": ("eth0", MAIN), "a": ("eth0",)}, "a", "a"),  # one interface: the agent takes the smallest name
        ({"a": ("eth0",), "b": ("", MAIN)}, "b", "b"),
        ({"b": ("eth0", MAIN), "a": ("", MAIN)}, "a", "a"),
        ({"a": ("*", MAIN), "b": ("eth0", MAIN)}, "b", "b"),
        ({"a": ("*", MAIN), "b": ("eth0",)}, "b", "b"),
        ({"b": ("*",), "a": ("eth9", OTHER)}, "b", "b"),
        ({"b": ("*",), "a": ("*",)}, "a", "a"),
        ({"a": ("eth9", OTHER)}, None, "a"),
        ({"a": ("lo",), "b": ("vxlan.calico",), "c": ("cali1",), "d": ("kube-ipvs0",)}, None, None),
        ({"a": ("lo",), "b": ("vxlan.calico",), "z": ("*",)}, "z", "z"),
    ],
)
def test_what_leads_to_other_hosts(hosts, at, uplink):
    found = view(**hosts)
    assert (name(found.at_address(ip_address(MAIN))), name(found.at_uplink())) == (at, uplink)


def test_interfaces_that_records_name():
    found = view(a=("*",), b=("eth1",), c=("vxlan.calico",), d=("lo",), e=("eth0", MAIN, SECOND))
    at = {text: name(found.at_address(ip_address(text))) for text in (MAIN, SECOND, TUNNEL, "127.0.0.1", "::1")}
    assert at == {MAIN: "e", SECOND: "b", TUNNEL: "c", "127.0.0.1": "d", "::1": "d"}
    assert name(found.at_loopback()) == "d" and name(view(a=("*",)).at_loopback()) == "a"
    assert name(view(a=("", "::1"), b=("lo",)).at_loopback()) == "a"


def test_without_a_node_the_first_that_names_an_interface():
    found = view(None, a=("*", MAIN), b=("eth0", OTHER), c=("lo",))
    assert (name(found.at_uplink()), name(found.at_address(ip_address(OTHER)))) == ("a", "b")


def test_a_nodes_addresses():
    assert [str(address) for address in addresses_of_node(NODE)] == [MAIN, TUNNEL, SECOND]
