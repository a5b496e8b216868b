"""Which routes of a BIRD are ours."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.ctl.node.setup.bird import select_routes
from cni_calico.model.host import HostRoute

POOLS = (ip_network("10.65.0.0/16"), ip_network("fd00:65::/48"))


@pytest.mark.parametrize(
    ("dst", "protocol", "is_ours"),
    [
        ("10.65.1.0/26", 12, True),
        ("10.65.0.0/16", 12, True),
        ("fd00:65::/64", 12, True),
        ("0.0.0.0/0", 12, False),
        ("::/0", 12, False),
        ("10.64.0.0/15", 12, False),
        ("10.66.0.0/26", 12, False),
        ("10.65.1.0/26", 3, None),
        ("10.65.1.0/26", 80, None),
    ],
)
def test_only_those_to_addresses_of_pools(dst: str, protocol: int, is_ours: bool | None) -> None:
    route = HostRoute(ip_network(dst), device="eth0", protocol=protocol)
    assert select_routes([route], POOLS) == ([route] if is_ours else [], [route] if is_ours is False else [])
    assert select_routes([route], ())[0] == [], "pools that are not known"
