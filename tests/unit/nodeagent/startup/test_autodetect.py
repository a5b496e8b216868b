"""Which address is the node's: methods, order, noise, and what IP and IP6 make of it."""

from ipaddress import ip_address, ip_interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.errors import InvalidConfig
from cni_calico.model.host import HostInterface
from cni_calico.nodeagent.context.address_setting import parse_address_setting, parse_method
from cni_calico.nodeagent.startup.address import HostFacts, plan_address, require_some
from cni_calico.nodeagent.startup.autodetect import is_local_interface, select_addresses


def link(index, name, *addresses, up=True, kind=""):
    return HostInterface(index, name, up, 1500, tuple(map(ip_interface, addresses)), kind=kind)


TWO_NICS = [
    link(1, "lo", "127.0.0.1/8", "::1/128"),
    link(2, "eth0", "10.0.0.5/24", "fe80::5/64", "fd00::5/64"),
    link(3, "eth1", "172.20.1.5/16", "fd01::5/64"),
    link(4, "docker0", "172.17.0.1/16"),
    link(5, "br-3fa8", "172.18.0.1/16"),
    link(6, "cali12345678901", "10.65.0.1/32"),
    link(7, "vxlan.calico", "10.65.1.0/32"),
    link(8, "tunl0", "10.65.2.0/32"),
    link(9, "vethabc", "192.168.9.1/24"),
]


def found(text, family=4, interfaces=TWO_NICS, **facts):
    for choice in select_addresses(parse_method(text), family, interfaces, **facts):
        return (str(choice.address), choice.interface)
    return None


@pytest.mark.parametrize(
    ("method", "family", "expected"),
    [
        ("", 4, ("172.20.1.5/16", "eth1")),  # the highest index first
        ("first-found", 4, ("172.20.1.5/16", "eth1")),
        ("first-found", 6, ("fd01::5/64", "eth1")),
        ("interface=eth0", 4, ("10.0.0.5/24", "eth0")),
        ("interface=eth0", 6, ("fd00::5/64", "eth0")),  # not its link-local address
        ("interface=th0", 4, ("10.0.0.5/24", "eth0")),  # users' patterns are found anywhere
        ("interface=bond.*, eth0 ", 4, ("10.0.0.5/24", "eth0")),
        ("interface=docker0", 4, ("172.17.0.1/16", "docker0")),  # who asks for it gets it
        ("interface=wlan.*", 4, None),
        ("skip-interface=eth1", 4, ("10.0.0.5/24", "eth0")),
        ("skip-interface=eth.*", 4, None),  # the built-in ones stay out too
        ("cidr=10.0.0.0/8", 4, ("10.65.2.0/32", "tunl0")),
        ("cidr=10.0.0.0/24,172.20.0.0/16", 4, ("172.20.1.5/16", "eth1")),
        ("cidr=fd00::/16", 6, ("fd00::5/64", "eth0")),
        ("cidr=192.0.2.0/24", 4, None),
    ],
)
def test_methods(method, family, expected):
    assert found(method, family) == expected


def test_an_interface_that_is_down_is_not_chosen():
    assert found("", interfaces=[link(2, "eth0", "10.0.0.5/24"), link(3, "eth1", "10.1.0.5/24", up=False)]) == (
        "10.0.0.5/24",
        "eth0",
    )


def test_link_local_only_is_no_ipv6():
    assert found("", 6, [link(2, "eth0", "10.0.0.5/24", "fe80::5/64")]) is None


@pytest.mark.parametrize(
    "address", ["169.254.3.4/16", "127.1.0.1/8", "224.0.0.5/32", "0.0.0.0/32", "255.255.255.255/32"]
)
def test_only_global_unicast(address):
    assert found("", 4, [link(2, "eth0", address)]) is None


@pytest.mark.parametrize(
    "name",
    [
        "docker0",
        "cbr0",
        "dummy1",
        "podman1",
        "virbr0",
        "lxcbr0",
        "veth12",
        "lo",
        "br-7",
        "cali1",
        "tunl0",
        "flannel.1",
        "kube-ipvs0",
        "cni0",
        "vxlan.calico",
        "vxlan-v6.calico",
        "wireguard.cali",
        "wg-v6.cali",
        "nodelocaldns",
    ],
)
def test_local_interfaces(name):
    assert is_local_interface(name)


@pytest.mark.parametrize("name", ["ibmveth0", "mydocker0", "eth0", "lo0x", "br0", "ens5", "vxlan.calico2", "bond0"])
def test_built_in_patterns_are_anchored(name):
    assert not is_local_interface(name)


def test_a_tunnels_single_address_is_the_last_choice():
    """Encryption's interface may have any name. Whose default route it is, or who asks for it, gets it."""
    eth0, ours = link(2, "eth0", "10.0.0.5/24"), link(9, "wg7", "10.65.1.7/32", kind="wireguard")
    assert found("", 4, [eth0, ours]) == ("10.0.0.5/24", "eth0")
    assert found("", 4, [ours]) == ("10.65.1.7/32", "wg7")
    assert found("interface=wg.*", 4, [eth0, ours]) == ("10.65.1.7/32", "wg7")
    assert found("", 4, [eth0, ours], default_interface="wg7") == ("10.65.1.7/32", "wg7")
    assert found("", 4, [eth0, link(9, "wg0", "10.9.0.1/24", kind="wireguard")]) == ("10.9.0.1/24", "wg0")


def test_can_reach_takes_the_source_address_of_the_route():
    assert found("can-reach=8.8.8.8", reached_from=ip_address("10.0.0.5")) == ("10.0.0.5/24", "eth0")
    assert found("can-reach=8.8.8.8", reached_from=None) is None
    assert found("can-reach=8.8.8.8", reached_from=ip_address("10.9.9.9")) is None


def test_kubernetes_internal_ip():
    ips = [ip_address("fd00::5"), ip_address("10.0.0.5"), ip_address("172.20.1.5")]
    assert found("kubernetes-internal-ip", 4, internal_ips=ips) == ("10.0.0.5/24", "eth0")
    assert found("kubernetes-internal-ip", 6, internal_ips=ips) == ("fd00::5/64", "eth0")
    assert found("kubernetes-internal-ip", 4, internal_ips=[ip_address("192.0.2.1")]) == ("192.0.2.1/32", "")
    assert found("kubernetes-internal-ip", 4) is None


@given(st.permutations(TWO_NICS))
def test_the_order_of_the_list_does_not_matter(interfaces):
    assert found("", 4, interfaces) == ("172.20.1.5/16", "eth1")


@pytest.mark.parametrize(
    ("default", "internal", "expected"),
    [
        ("eth0", "172.20.1.5", ("10.0.0.5/24", "eth0")),
        ("", "10.0.0.5", ("10.0.0.5/24", "eth0")),
        ("docker0", "10.0.0.5", ("10.0.0.5/24", "eth0")),  # no candidate
        ("ppp0", "192.0.2.1", ("172.20.1.5/16", "eth1")),
    ],
)
def test_the_best_of_several(default, internal, expected):
    assert found("", 4, default_interface=default, internal_ips=[ip_address(internal)]) == expected


# -- IP and IP6 -------------------------------------------------------------------------------------------------------


def planned(family, text, stored=None, interfaces=TWO_NICS, method="", **facts):
    setting = parse_address_setting(family, text)
    facts = HostFacts(interfaces, **facts)
    return plan_address(family, setting, parse_method(method), None if stored is None else ip_interface(stored), facts)


@pytest.mark.parametrize(
    ("family", "text", "stored", "expected"),
    [
        (4, "", None, "172.20.1.5/16"),  # nothing stored: look
        (4, "", "10.0.0.5/24", "10.0.0.5/24"),  # stored: keep
        (4, "autodetect", "10.0.0.5/24", "10.0.0.5/24"),  # a card that came later does not move the node
        (4, "autodetect", "10.0.0.5/16", "10.0.0.5/24"),  # the prefix is the interface's
        (4, "autodetect", "10.0.0.9/24", "172.20.1.5/16"),  # nobody has it any more
        (4, "autodetect", "172.17.0.1/16", "172.17.0.1/16"),  # an interface has it, though the method would skip it
        (4, "none", None, None),
        (4, "none", "10.0.0.5/24", "10.0.0.5/24"),
        (4, "10.0.0.5", None, "10.0.0.5/24"),  # the prefix of the interface
        (4, "10.0.0.5/30", None, "10.0.0.5/30"),  # unless it was given
        (4, "10.9.9.9", None, "10.9.9.9/32"),
        (6, "", None, None),
        (6, "", "fd00::5/64", "fd00::5/64"),
        (6, "autodetect", None, "fd01::5/64"),
        (6, "fd00::5", None, "fd00::5/128"),
        (6, "none", None, None),
    ],
)
def test_settings(family, text, stored, expected):
    address = planned(family, text, stored).address
    assert (None if address is None else str(address)) == expected


def test_a_change_is_told_with_both_addresses():
    assert planned(4, "autodetect", "10.0.0.5/24").warnings == ()
    moved = planned(4, "autodetect", "10.0.0.9/24")
    assert moved.warnings == ("the node's IPv4 address changes from 10.0.0.9/24 to 172.20.1.5/16 (eth1)",)
    changed = planned(4, "autodetect", "10.0.0.5/24", method_changed=True)
    assert str(changed.address) == "172.20.1.5/16" and len(changed.warnings) == 1


BACK = [link(2, "eth0", "10.0.0.5/24", up=False), link(3, "eth1", "172.20.1.5/16")]


@pytest.mark.parametrize(
    ("method", "facts"),
    [
        ("first-found", {}),  # its card is down
        ("interface=eth.*", {}),
        ("cidr=0.0.0.0/0", {}),
        ("can-reach=192.0.2.1", {"reached_from": ip_address("172.20.1.5")}),
        ("kubernetes-internal-ip", {"internal_ips": [ip_address("172.20.1.5")]}),
        ("first-found", {"default_interface": "eth1", "internal_ips": [ip_address("172.20.1.5")]}),
    ],
)
def test_the_stored_address_stays_while_an_interface_has_it(method, facts):
    plan = planned(4, "autodetect", "10.0.0.5/24", BACK, method, **facts)
    assert (str(plan.address), plan.interface, plan.warnings) == ("10.0.0.5/24", "eth0", ())
    (told,) = plan.notes
    assert told.startswith("the node's IPv4 address stays 10.0.0.5/24, because eth0 still has it")
    assert "172.20.1.5/16 (eth1): set IP to that to move" in told
    moved = planned(4, "autodetect", "10.0.0.5/24", BACK, method, method_changed=True, **facts)
    assert str(moved.address) == "172.20.1.5/16" and moved.notes == ()
    lost = planned(4, "autodetect", "10.0.0.9/24", BACK, method, **facts)
    assert str(lost.address) == "172.20.1.5/16" and len(lost.warnings) == 1 and lost.notes == ()


def test_an_internal_ip_on_no_interface_moves_only_a_node_that_lost_its_address():
    facts = {"internal_ips": [ip_address("192.0.2.1")]}
    plan = planned(4, "autodetect", "10.0.0.5/24", BACK, "kubernetes-internal-ip", **facts)
    assert str(plan.address) == "10.0.0.5/24" and "192.0.2.1/32 (on no interface)" in plan.notes[0]
    assert str(planned(4, "autodetect", None, BACK, "kubernetes-internal-ip", **facts).address) == "192.0.2.1/32"


def test_ipv4_that_is_not_found_is_an_error_that_lists_what_there_is():
    with pytest.raises(InvalidConfig) as error:
        planned(4, "autodetect", method="interface=wlan0")
    assert "'interface=wlan0'" in str(error.value)
    assert "eth0: 10.0.0.5/24, fe80::5/64, fd00::5/64" in error.value.details


def test_ipv6_that_is_not_found_degrades():
    plan = planned(6, "autodetect", interfaces=[link(2, "eth0", "10.0.0.5/24", "fe80::5/64")])
    assert plan.address is None
    assert "goes without IPv6" in plan.warnings[0]


def test_an_address_that_vanished_is_kept_and_told():
    plan = planned(4, "autodetect", "10.0.0.77/24", interfaces=[link(2, "eth0", up=False)])
    assert str(plan.address) == "10.0.0.77/24"
    assert "is kept" in plan.warnings[0] and "on none of this host's interfaces" in plan.warnings[1]


def test_an_address_on_no_interface_is_told():
    assert "on none of this host's interfaces" in planned(4, "10.9.9.9").warnings[0]
    assert planned(4, "10.0.0.5").warnings == ()


def test_networking_needs_an_address():
    nothing = [planned(4, "none"), planned(6, "")]
    with pytest.raises(InvalidConfig, match="no IPv4 or IPv6 address"):
        require_some(nothing, "bird")
    require_some(nothing, "none")
