"""Start-up on hosts with real interfaces: the node's address with every method, and whether doubts are told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cni_calico.errors import InvalidConfig
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.netns.namespaces import namespace
from tests.netns.startups import Host, add_card, internal_ips

pytestmark = pytest.mark.netns


@pytest.fixture
def two_cards_host(tmp_path: Path) -> Iterator[Host]:
    """Two cards in different subnets, the default route on the first, and interfaces that are no cards."""
    with namespace("twonic") as ns:
        add_card(ns, "eth0", "10.0.0.5/24", "fd00::5/64")
        add_card(ns, "eth1", "172.20.1.5/16", "fd01::5/64")
        ns.do("link", "add", "docker0", "type", "bridge")
        ns.do("addr", "add", "172.17.0.1/16", "dev", "docker0")
        ns.do("link", "set", "docker0", "up")
        ns.do("link", "add", "br-3fa8c1", "type", "bridge")
        ns.do("addr", "add", "172.18.0.1/16", "dev", "br-3fa8c1")
        ns.do("link", "set", "br-3fa8c1", "up")
        add_card(ns, "cali123", "10.65.0.9/32")
        ns.do("route", "add", "default", "via", "10.0.0.1")
        ns.do("-6", "route", "add", "default", "via", "fd00::1")
        yield Host(ns, tmp_path, tmp_path / "store.db")


def addresses(host: Host, **environ: str) -> tuple[str | None, str | None]:
    host.start(NODENAME="n1", **environ)
    bgp = host.node("n1")["spec"].get("bgp", {})
    return bgp.get("ipv4Address"), bgp.get("ipv6Address")


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("10.0.0.5/24", None)),  # the default route's card, not the newest
        ({"IP6": "autodetect"}, ("10.0.0.5/24", "fd00::5/64")),
        ({"IP_AUTODETECTION_METHOD": "skip-interface=eth0"}, ("172.20.1.5/16", None)),
        ({"IP_AUTODETECTION_METHOD": "interface=eth0"}, ("10.0.0.5/24", None)),
        ({"IP_AUTODETECTION_METHOD": "skip-interface=eth1"}, ("10.0.0.5/24", None)),
        ({"IP_AUTODETECTION_METHOD": "cidr=10.0.0.0/24,192.0.2.0/24"}, ("10.0.0.5/24", None)),
        ({"IP_AUTODETECTION_METHOD": "can-reach=192.0.2.9"}, ("10.0.0.5/24", None)),
        ({"IP_AUTODETECTION_METHOD": "can-reach=172.20.7.7"}, ("172.20.1.5/16", None)),
        ({"IP_AUTODETECTION_METHOD": "can-reach=localhost", "IP": "10.0.0.5"}, ("10.0.0.5/24", None)),
        (
            {"IP6": "autodetect", "IP6_AUTODETECTION_METHOD": "can-reach=fd01::99"},
            ("10.0.0.5/24", "fd01::5/64"),
        ),
        ({"IP": "10.0.0.5"}, ("10.0.0.5/24", None)),
        ({"IP": "10.0.0.5/25", "IP6": "fd00::5"}, ("10.0.0.5/25", "fd00::5/128")),
        ({"IP": "none", "IP6": "autodetect"}, (None, "fd00::5/64")),
    ],
)
def test_methods(two_cards_host: Host, environ: dict[str, str], expected: tuple[str | None, str | None]) -> None:
    assert addresses(two_cards_host, **environ) == expected


def test_kubernetes_internal_ip(two_cards_host: Host) -> None:
    two_cards_host.facts = internal_ips("10.0.0.5", "fd00::5")
    both = {"IP_AUTODETECTION_METHOD": "kubernetes-internal-ip", "IP6_AUTODETECTION_METHOD": "kubernetes-internal-ip"}
    assert addresses(two_cards_host, IP6="autodetect", **both) == ("10.0.0.5/24", "fd00::5/64")


def test_a_wrong_card_is_told(two_cards_host: Host) -> None:
    two_cards_host.facts = internal_ips("10.0.0.5")
    two_cards_host.put(
        ResourceKey("BGPPeer", "tor"), {"metadata": {"name": "tor"}, "spec": {"node": "n1", "peerIP": "10.0.0.1"}}
    )
    outcome = two_cards_host.start(NODENAME="n1", IP_AUTODETECTION_METHOD="interface=eth1")
    assert [text.split(" is not ")[1].split(" (")[0] for text in outcome.doubts] == [
        "the InternalIP that Kubernetes has for it",
        "on the interface of the default route",
        "in the subnet of BGPPeer tor",
    ]
    assert "10.0.0.5/24 (eth0)" in outcome.doubts[2]
    assert all(any(text in line for line in outcome.log if line.startswith("warning")) for text in outcome.doubts)
    assert two_cards_host.start(NODENAME="n1", IP="autodetect", IP_AUTODETECTION_METHOD="interface=eth0").doubts == ()


def test_a_method_that_finds_nothing_writes_nothing(two_cards_host: Host) -> None:
    with pytest.raises(InvalidConfig, match="'interface=bond0' matches none") as error:
        two_cards_host.start(NODENAME="n1", IP_AUTODETECTION_METHOD="interface=bond0")
    assert "docker0: 172.17.0.1/16" in error.value.details
    assert two_cards_host.stored() == {}
    assert not two_cards_host.nodename_file.exists()


def test_link_local_ipv6_only_degrades(two_cards_host: Host) -> None:
    for address, card in (("fd00::5/64", "eth0"), ("fd01::5/64", "eth1")):
        two_cards_host.ns.do("addr", "del", address, "dev", card)
    until(
        lambda: all("fe80" in str(two_cards_host.ns.ip("-6", "addr", "show", "dev", c)) for c in ("eth0", "eth1")),
        "fe80",
    )
    outcome = two_cards_host.start(NODENAME="n1", IP6="autodetect")
    assert "ipv6Address" not in two_cards_host.node("n1")["spec"]["bgp"]
    assert any("goes without IPv6" in line for line in outcome.log)


def test_an_address_that_disappears_is_kept_and_told(two_cards_host: Host) -> None:
    method = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": "interface=eth0"}
    assert addresses(two_cards_host, **method) == ("10.0.0.5/24", None)
    two_cards_host.ns.do("addr", "del", "10.0.0.5/24", "dev", "eth0")
    outcome = two_cards_host.start(NODENAME="n1", **method)
    assert two_cards_host.node("n1")["spec"]["bgp"]["ipv4Address"] == "10.0.0.5/24"
    assert any("is kept" in line for line in outcome.log)
    two_cards_host.ns.do("addr", "add", "10.0.0.77/24", "dev", "eth0")
    assert addresses(two_cards_host, **method) == ("10.0.0.77/24", None)


def test_a_card_that_is_down_is_not_chosen(two_cards_host: Host) -> None:
    two_cards_host.ns.do("link", "set", "eth1", "down")
    assert addresses(two_cards_host) == ("10.0.0.5/24", None)


def test_what_is_stored_is_kept_unless_detection_is_asked_for(two_cards_host: Host) -> None:
    assert addresses(two_cards_host, IP="10.0.0.5") == ("10.0.0.5/24", None)
    assert addresses(two_cards_host) == ("10.0.0.5/24", None)
    assert addresses(two_cards_host, IP="none") == ("10.0.0.5/24", None)
    assert addresses(two_cards_host, IP="autodetect", IP_AUTODETECTION_METHOD="interface=eth1") == (
        "172.20.1.5/16",
        None,
    )


def test_a_newer_card_does_not_move_a_node(two_cards_host: Host) -> None:
    two_cards_host.ns.do("route", "del", "default")
    two_cards_host.ns.do("link", "set", "eth1", "down")
    detect = {"IP": "autodetect"}
    assert addresses(two_cards_host, **detect) == ("10.0.0.5/24", None)
    two_cards_host.ns.do("link", "set", "eth1", "up")
    assert addresses(two_cards_host, **detect) == ("10.0.0.5/24", None)
    moved = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": "cidr=0.0.0.0/0"}
    two_cards_host.ns.do("link", "set", "docker0", "down")
    two_cards_host.ns.do("link", "set", "br-3fa8c1", "down")
    two_cards_host.ns.do("link", "set", "cali123", "down")
    outcome = two_cards_host.start(NODENAME="n1", **moved)  # another method decides again
    assert two_cards_host.node("n1")["spec"]["bgp"]["ipv4Address"] == "172.20.1.5/16"
    assert any("changes from 10.0.0.5/24 to 172.20.1.5/16" in line for line in outcome.log)
    two_cards_host.ns.do("addr", "del", "172.20.1.5/16", "dev", "eth1")
    assert addresses(two_cards_host, **moved) == ("10.0.0.5/24", None)  # nobody has it any more


@pytest.mark.parametrize("method", ["first-found", "interface=eth.*", "cidr=10.0.0.0/24,172.20.0.0/16"])
def test_a_card_that_is_down_keeps_the_node(two_cards_host: Host, method: str) -> None:
    detect = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": method}
    assert addresses(two_cards_host, **detect) == ("10.0.0.5/24", None)
    two_cards_host.ns.do("link", "set", "eth0", "down")
    outcome = two_cards_host.start(NODENAME="n1", **detect)
    assert two_cards_host.node("n1")["spec"]["bgp"]["ipv4Address"] == "10.0.0.5/24"
    assert any("stays 10.0.0.5/24, because eth0" in text and "172.20.1.5/16" in text for text in outcome.log)
    assert addresses(two_cards_host, IP="172.20.1.5") == ("172.20.1.5/16", None)  # who says so moves it


def test_another_route_to_the_target_does_not_move_a_node(two_cards_host: Host) -> None:
    detect = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": "can-reach=192.0.2.9"}
    assert addresses(two_cards_host, **detect) == ("10.0.0.5/24", None)
    two_cards_host.ns.do("route", "add", "192.0.2.0/24", "via", "172.20.0.1")
    outcome = two_cards_host.start(NODENAME="n1", **detect)
    assert two_cards_host.node("n1")["spec"]["bgp"]["ipv4Address"] == "10.0.0.5/24"
    assert any("with nothing stored it would be 172.20.1.5/16 (eth1)" in text for text in outcome.log)
    two_cards_host.ns.do("addr", "del", "10.0.0.5/24", "dev", "eth0")
    assert addresses(two_cards_host, **detect) == ("172.20.1.5/16", None)


def test_another_internal_ip_does_not_move_a_node(two_cards_host: Host) -> None:
    detect = {"IP": "autodetect", "IP_AUTODETECTION_METHOD": "kubernetes-internal-ip"}
    two_cards_host.facts = internal_ips("10.0.0.5")
    assert addresses(two_cards_host, **detect) == ("10.0.0.5/24", None)
    two_cards_host.facts = internal_ips("172.20.1.5")
    outcome = two_cards_host.start(NODENAME="n1", **detect)
    assert two_cards_host.node("n1")["spec"]["bgp"]["ipv4Address"] == "10.0.0.5/24"
    assert any("with nothing stored it would be 172.20.1.5/16 (eth1)" in text for text in outcome.log)
    assert any("is not the InternalIP" in text for text in outcome.doubts)


def test_with_nothing_stored_the_internal_ip_comes_before_the_newest_card(two_cards_host: Host) -> None:
    two_cards_host.ns.do("route", "del", "default")
    two_cards_host.facts = internal_ips("10.0.0.5")
    assert addresses(two_cards_host) == ("10.0.0.5/24", None)


def test_with_nothing_stored_the_default_route_comes_before_the_internal_ip(two_cards_host: Host) -> None:
    two_cards_host.facts = internal_ips("172.20.1.5")
    assert addresses(two_cards_host) == ("10.0.0.5/24", None)


def test_the_interfaces_are_recorded(two_cards_host: Host) -> None:
    two_cards_host.start(NODENAME="n1", IP="autodetect", IP6="autodetect")
    recorded = {entry["name"]: entry["addresses"] for entry in two_cards_host.node("n1")["spec"]["interfaces"]}
    assert list(recorded) == ["eth0", "eth1"]
    assert recorded["eth0"][:2] == ["10.0.0.5", "fd00::5"]


def test_an_address_another_node_has(two_cards_host: Host) -> None:
    other = Host(two_cards_host.ns, two_cards_host.root / "other", two_cards_host.datastore)
    other.start(NODENAME="n1", IP="172.20.1.5")
    assert addresses(two_cards_host, IP="10.0.0.5") == ("10.0.0.5/24", None)
    other.start(NODENAME="n1", IP="172.20.1.5")
    before = two_cards_host.stored()
    with pytest.raises(InvalidConfig, match=r"node n1 already has the IPv4 address 172.20.1.5"):
        two_cards_host.start(NODENAME="n2", IP="172.20.1.5")
    assert two_cards_host.stored() == before
    two_cards_host.start(NODENAME="n2", IP="172.20.1.5", DISABLE_NODE_IP_CHECK="true")


def test_a_detected_conflict_clears_our_stale_record(two_cards_host: Host) -> None:
    two_cards_host.start(NODENAME="n2", IP="10.0.0.5")
    Host(two_cards_host.ns, two_cards_host.root / "other", two_cards_host.datastore).start(
        NODENAME="n1", IP="172.20.1.5"
    )
    with pytest.raises(InvalidConfig, match="node n1 already has"):
        two_cards_host.start(NODENAME="n2", IP="autodetect", IP_AUTODETECTION_METHOD="interface=eth1")
    assert "ipv4Address" not in two_cards_host.node("n2")["spec"].get("bgp", {})
