"""What an Installation cannot say together."""

from __future__ import annotations

from typing import Any

import pytest

from cni_calico.ctl.convert.combinations import find_contradictions
from cni_calico.ctl.convert.installation import convert_installation
from cni_calico.errors import InvalidConfig


def pool(encapsulation: str = "", cidr: str = "10.0.0.0/16") -> dict[str, Any]:
    return {"cidr": cidr, "encapsulation": encapsulation} if encapsulation else {"cidr": cidr}


HOST_LOCAL = {"cni": {"ipam": {"type": "HostLocal"}}}


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ({"calicoNetwork": {"bgp": "Disabled", "ipPools": [pool("VXLAN"), pool("IPIP")]}}, "calicoNetwork.ipPools[1]."),
        ({"calicoNetwork": {"bgp": "Disabled", "ipPools": [pool()]}}, "calicoNetwork.ipPools[0].encapsulation"),
        ({"calicoNetwork": {"bgp": "Disabled", "ipPools": [pool("None")]}}, "calicoNetwork.ipPools[0].encapsulation"),
        ({"calicoNetwork": {"bgp": "Disabled", "ipPools": [pool(cidr="fd00::/64")]}}, "calicoNetwork.ipPools[0]."),
        ({**HOST_LOCAL, "calicoNetwork": {"ipPools": [pool("VXLANCrossSubnet")]}}, "calicoNetwork.ipPools[0]."),
        ({"cni": {"type": "AmazonVPC"}, "calicoNetwork": {"bgp": "Enabled"}}, "calicoNetwork.bgp: "),
        ({"kubernetesProvider": "AKS", "cni": {"type": "AmazonVPC"}}, "cni.type: expected Calico or AzureVNET"),
        ({"calicoNetwork": {"ipPools": [pool("Foo")]}}, "calicoNetwork.ipPools[0].encapsulation"),
        ({"calicoNetwork": {"ipPools": [pool("IPIP", "fd00::/64")]}}, "calicoNetwork.ipPools[0].encapsulation"),
        ({"calicoNetwork": {"ipPools": [{**pool(), "colour": "red"}]}}, "calicoNetwork.ipPools[0].colour"),
        (
            {"calicoNetwork": {"nodeAddressAutodetectionV4": {"firstFound": True, "interface": "a"}}},
            "calicoNetwork.nodeAddressAutodetectionV4",
        ),
    ],
)
def test_it_is_refused_by_the_field(spec: Any, at: str) -> None:
    with pytest.raises(InvalidConfig) as refused:
        convert_installation(spec, "i.yaml")
    assert at in f"{refused.value}"


@pytest.mark.parametrize(
    "spec",
    [
        {"calicoNetwork": {"bgp": "Disabled", "ipPools": [pool("VXLAN"), pool("VXLANCrossSubnet", "fd00::/64")]}},
        {"calicoNetwork": {"bgp": "Disabled", "clusterRoutingMode": "Felix", "ipPools": [pool("IPIP"), pool("None")]}},
        {**HOST_LOCAL, "calicoNetwork": {"bgp": "Disabled", "ipPools": [pool("None")]}},
        {"kubernetesProvider": "EKS", "cni": {"type": "Calico"}, "calicoNetwork": {"bgp": "Enabled"}},
        {"kubernetesProvider": "AKS", "cni": {"type": "AzureVNET"}, "calicoNetwork": {"bgp": "Disabled"}},
        {"cni": 7, "calicoNetwork": {"ipPools": [3]}},
    ],
)
def test_what_can_hold_together(spec: Any) -> None:
    assert not list(find_contradictions(spec))
