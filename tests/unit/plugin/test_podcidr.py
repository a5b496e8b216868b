"""usePodCidr in the configuration of a delegated IPAM plugin."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from cni_calico.errors import InvalidConfig
from cni_calico.plugin.podcidr import read_pod_cidrs, render_ipam, render_ipam_placeholders, wants_pod_cidr

CIDRS = {4: "10.244.1.0/24", 6: "fd44:1::/64"}
RANGES = {
    "type": "host-local",
    "ranges": [
        [{"subnet": "usePodCidr"}],
        [{"subnet": "usePodCidrIPv6", "rangeStart": "x"}],
        [{"subnet": "10.9.0.0/24"}],
    ],
}


def test_subnet_in_any_case_of_letters() -> None:
    for word in ("usePodCidr", "usepodcidr", "USEPODCIDR"):
        ipam = {"type": "host-local", "subnet": word, "routes": [{"dst": "0.0.0.0/0"}]}
        assert wants_pod_cidr(ipam)
        assert render_ipam(ipam, CIDRS, "n") == {**ipam, "subnet": "10.244.1.0/24"}


def test_ranges_of_both_families() -> None:
    assert wants_pod_cidr(RANGES)
    assert render_ipam(RANGES, CIDRS, "n")["ranges"] == [
        [{"subnet": "10.244.1.0/24"}],
        [{"subnet": "fd44:1::/64", "rangeStart": "x"}],
        [{"subnet": "10.9.0.0/24"}],
    ]
    assert RANGES["ranges"][0] == [{"subnet": "usePodCidr"}]


def test_a_family_the_node_has_not() -> None:
    with pytest.raises(InvalidConfig, match="cannot use usePodCidrIPv6: node n has no IPv6 podCIDR"):
        render_ipam(RANGES, {4: "10.244.1.0/24"}, "n")


@pytest.mark.parametrize("ipam", [{}, {"subnet": "10.0.0.0/8"}, {"subnet": 3}, {"ranges": "x"}, {"ranges": [3, [4]]}])
def test_configurations_that_do_not_ask(ipam: dict[str, Any]) -> None:
    assert not wants_pod_cidr(ipam)
    assert render_ipam(ipam, {}, "n") == ipam and render_ipam_placeholders(ipam) == ipam


def test_placeholders_never_overlap() -> None:
    ipam = {"subnet": "usePodCidr", "ranges": [[{"subnet": "usePodCidr"}], [{"subnet": "usePodCidrIPv6"}]] * 4}
    out = render_ipam_placeholders(ipam)
    networks = [ip_network(out["subnet"]), *(ip_network(group[0]["subnet"]) for group in out["ranges"])]
    assert len(networks) == 9
    for i, one in enumerate(networks):
        assert not any(one.version == other.version and one.overlaps(other) for other in networks[:i])


def test_pod_cidrs_of_a_node() -> None:
    assert read_pod_cidrs({"spec": {"podCIDR": "10.244.1.0/24"}}) == {4: "10.244.1.0/24"}
    both = {"spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24", "fd44:1::/64"]}}
    assert read_pod_cidrs(both) == CIDRS
    assert read_pod_cidrs({}) == {} and read_pod_cidrs({"spec": {"podCIDR": "x", "podCIDRs": [None]}}) == {}
