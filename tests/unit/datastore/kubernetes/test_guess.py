"""Keys guessed from the names of objects that cannot be read."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.datastore.kubernetes.guess import guess_key, parse_cidr_name
from cni_calico.model.keys import AffinityKey, BlockKey, HandleKey, IPAMConfigKey, ResourceKey
from cni_calico.model.kubernetes.custom import affinity_name, cidr_name

NETWORKS = st.ip_addresses(v=4).map(lambda a: ip_network(f"{a}/26", strict=False)) | st.ip_addresses(v=6).map(
    lambda a: ip_network(f"{a}/122", strict=False)
)


@given(NETWORKS)
def test_names_of_networks_are_read_back(network) -> None:
    assert parse_cidr_name(cidr_name(network)) == network


@pytest.mark.parametrize("node", ["node1", "node-1", "a-10", "ip-10-0-0-1.ec2.internal"])
def test_affinities(node: str) -> None:
    obj = {"metadata": {"name": affinity_name(node, ip_network("10.65.0.64/26"))}}
    assert guess_key(obj, "blockaffinities") == AffinityKey(node, ip_network("10.65.0.64/26"))
    obj = {"kind": "BlockAffinity", "metadata": {"name": affinity_name(node, ip_network("fd00:65::40/122"))}}
    assert isinstance(guess_key(obj, "blockaffinities"), ResourceKey)


def test_the_others() -> None:
    def named(name: str, **more: object) -> dict[str, object]:
        return {"metadata": {"name": name, "namespace": "space"}, **more}

    assert guess_key(named("net.abc"), "ipamhandles") == HandleKey("net.abc")
    assert guess_key(named("default"), "ipamconfigs") == IPAMConfigKey()
    assert guess_key(named("10-65-0-0-26"), "ipamblocks") == BlockKey(ip_network("10.65.0.0/26"))
    assert guess_key(named("x", kind="IPAMBlock"), "ipamblocks") == ResourceKey("IPAMBlock", "x", "space")
    pod = named("web-0", spec={"nodeName": "n"})
    assert guess_key(pod, "pods") == ResourceKey("WorkloadEndpoint", "n-k8s-web--0-eth0", "space")
    assert guess_key(named("p"), "pods") == ResourceKey("pods", "p", "space")
    assert guess_key({"kind": "IPPool", "metadata": "x"}, "ippools") == ResourceKey("IPPool", "")
