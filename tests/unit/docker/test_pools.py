"""IP pools beside the networks that Docker makes by itself."""

from __future__ import annotations

from ipaddress import ip_network

from cni_calico.docker.pools import overlaps
from cni_calico.model.resources import IPPool, Metadata


def pool(name: str, cidr: str, *, disabled: bool = False) -> IPPool:
    return IPPool(metadata=Metadata(name=name), cidr=ip_network(cidr), block_size=26, disabled=disabled)


def test_a_bridge_that_has_a_pool_s_addresses_is_named() -> None:
    pools = [pool("a", "172.16.0.0/12"), pool("b", "10.0.0.0/8"), pool("c", "172.18.0.0/16", disabled=True)]
    pools.append(pool("d", "fd00::/64"))
    bridges = {
        "bridge": [ip_network("172.17.0.0/16"), ip_network("fd01::/64")],
        "other": [ip_network("192.168.0.0/20")],
    }
    (said,) = overlaps(pools, bridges)
    assert "bridge (172.17.0.0/16) overlaps IP pool a (172.16.0.0/12)" in said
