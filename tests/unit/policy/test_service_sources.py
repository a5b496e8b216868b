"""Which pools' pods lose their address on the way to a service."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.model.resources import IPPool, Metadata
from cni_calico.policy.service_sources import (
    ServiceSources,
    masqueraded_pools,
    parse_flags,
    parse_networks,
    parse_settings,
    render_masqueraded,
)


def pool(cidr: str, *uses: str) -> IPPool:
    return IPPool(Metadata(cidr.replace("/", "-")), ip_network(cidr), 26, allowed_uses=uses or ("Workload", "Tunnel"))


@pytest.mark.parametrize(
    ("settings", "inside", "outside"),
    [
        ({}, ["10.65.0.0/16", "fd00::/48"], []),
        ({"clusterCIDR": "10.244.0.0/16"}, ["10.244.0.0/16", "10.244.8.0/24", "fd00::/48"], ["10.65.0.0/16"]),
        ({"clusterCIDR": "10.65.0.0/17"}, ["10.65.0.0/18"], ["10.65.0.0/16"]),
        ({"clusterCIDR": "10.0.0.0/8, fd00::/64"}, ["10.65.0.0/16"], ["fd00::/48"]),
        ({"clusterCIDR": "10.244.0.0/16", "detectLocalMode": "InterfaceNamePrefix"}, ["10.65.0.0/16"], []),
        ({"detectLocalMode": "NodeCIDR"}, [], ["10.65.0.0/16"]),
        ({"iptables": {"masqueradeAll": True}}, [], ["10.65.0.0/16", "fd00::/48"]),
        ({"iptables": {"masqueradeAll": False}, "clusterCIDR": "ten"}, ["10.65.0.0/16"], []),
    ],
)
def test_pools(settings: dict[str, object], inside: list[str], outside: list[str]) -> None:
    sources = parse_settings(settings, "there")
    pools = [*map(pool, inside), *map(pool, outside)]
    assert [str(one.cidr) for one in masqueraded_pools(pools, sources)] == outside
    text = render_masqueraded(masqueraded_pools(pools, sources), sources)
    assert bool(text) == bool(outside) and all(f"({cidr})" in text for cidr in outside)


def test_pools_that_no_pod_gets_are_left_out() -> None:
    sources = ServiceSources(parse_networks("10.244.0.0/16"))
    assert masqueraded_pools([pool("10.65.0.0/16", "LoadBalancer"), pool("10.66.0.0/16", "Tunnel")], sources) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["kube-proxy", "--cluster-cidr=10.0.0.0/8"], {"clusterCIDR": "10.0.0.0/8"}),
        (
            ["kube-proxy", "--cluster-cidr", "10.0.0.0/8", "--masquerade-all"],
            {"clusterCIDR": "10.0.0.0/8", "masqueradeAll": True},
        ),
        (
            ["--masquerade-all=false", "--detect-local-mode=NodeCIDR"],
            {"masqueradeAll": False, "detectLocalMode": "NodeCIDR"},
        ),
        (["--config=/x", "--cluster-cidr=10.0.0.0/8"], {}),
        (["--cluster-cidr"], {"clusterCIDR": ""}),
        ([], {}),
    ],
)
def test_flags(words: list[str], found: dict[str, object]) -> None:
    assert parse_flags(words) == found
