"""Which network a rule of kube-proxy takes for pods."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from cni_calico.kernel.filter.nf_tables.printer import print_rule
from cni_calico.kernel.filter.service_rules import parse_source
from cni_calico.netfilter.rules import DROP, AddressInNet, IsProtocol, NftRule, jump
from tests.unit.netfilter.rules import rule

V4 = (12, 4)


def outside(text: str, *, is_source: bool = True, negated: bool = True) -> AddressInNet:
    network = ip_network(text)
    return AddressInNet(is_source, network.network_address.packed, network.prefixlen, negated)


@pytest.mark.parametrize("text", ["10.244.0.0/16", "10.96.0.0/12", "192.0.2.1/32"])
def test_the_network_whose_packets_are_not_masqueraded(text: str) -> None:
    printed = print_rule(rule(IsProtocol(6), outside(text), jump("mark")), "ip")
    assert parse_source(printed, "mark", *V4) == ip_network(text)


@pytest.mark.parametrize(
    "other",
    [
        rule(outside("10.0.0.0/8"), jump("elsewhere")),
        rule(outside("10.0.0.0/8"), DROP),
        rule(outside("10.0.0.0/8", negated=False), jump("mark")),
        rule(outside("10.0.0.0/8", is_source=False), jump("mark")),
        rule(jump("mark")),
    ],
)
def test_any_other_rule(other: NftRule) -> None:
    assert parse_source(print_rule(other, "ip"), "mark", *V4) is None
