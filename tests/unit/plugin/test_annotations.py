"""Annotations of pods and namespaces, good and malformed."""

from __future__ import annotations

import json
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.cni.netconf import NetConf, parse_netconf
from cni_calico.errors import FeatureDisabled, InvalidAnnotation
from cni_calico.plugin.annotations import PREFIX, PodRequest, parse_pod_annotations


def conf(ipam: str = "calico-ipam", **features: bool) -> NetConf:
    document = {
        "cniVersion": "1.0.0",
        "name": "net",
        "type": "calico",
        "ipam": {"type": ipam},
        "feature_control": features,
    }
    return parse_netconf(document, {})


def obj(annotations: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    texts = {PREFIX + k: v if isinstance(v, str) else json.dumps(v) for k, v in annotations.items()}
    return {"metadata": {"name": "web", "namespace": "prod", "annotations": texts, **metadata}}


def request(pod: dict[str, Any], namespace: dict[str, Any] | None = None, using: NetConf | None = None) -> PodRequest:
    return parse_pod_annotations(obj(pod), obj(namespace or {}, name="prod", namespace=""), using or conf())


ALL = conf(ip_addrs_no_ipam=True, floating_ips=True)


def test_a_pod_without_annotations_asks_for_nothing() -> None:
    plain = PodRequest(namespace_labels={})
    assert request({}) == plain
    assert parse_pod_annotations({"metadata": {"name": "web"}}, None, conf()) == PodRequest()
    assert parse_pod_annotations({}, {"metadata": {"labels": {"a": "b"}}}, conf()).namespace_labels == {"a": "b"}
    empty = dict.fromkeys(
        ("ipAddrs", "ipAddrsNoIpam", "hwAddr", "floatingIPs", "ipv4pools", "allowedSourcePrefixes"), ""
    )
    assert request(empty) == plain


def test_the_pods_pools_come_before_the_namespaces() -> None:
    namespace = {"ipv4pools": ["ns"], "ipv6pools": ["fd00::/48"], "ipFamilies": ["IPv6"]}
    found = request({"ipv4pools": ["own", "10.0.0.0/16"]}, namespace)
    assert (found.pools4, found.pools6, found.families) == (("own", "10.0.0.0/16"), ("fd00::/48",), {6})
    assert request({"ipFamilies": ["IPv4", "IPv6"]}, namespace).families == {4, 6}
    assert request({"ipv4pools": []}, namespace).pools4 == ()


def test_addresses() -> None:
    found = request({"ipAddrs": ["10.0.0.1", "fd00::1"]})
    assert found.addresses == (ip_address("10.0.0.1"), ip_address("fd00::1"))
    found = request({"ipAddrsNoIpam": ["fd00::1"]}, using=ALL)
    assert (found.addresses, found.addresses_no_ipam) == ((), (ip_address("fd00::1"),))


def test_floating_addresses() -> None:
    assert request({"floatingIPs": ["1.2.3.4"]}, using=ALL).floating_ips == (ip_address("1.2.3.4"),)


@pytest.mark.parametrize("text", ["1e:2f:3a:4b:5c:6d", "1E-2F-3A-4B-5C-6D", "1e2f.3a4b.5c6d"])
def test_mac(text: str) -> None:
    assert request({"hwAddr": text}).mac == bytes.fromhex("1e2f3a4b5c6d")


def test_source_prefixes() -> None:
    found = request({"allowedSourcePrefixes": ["8.8.8.8/32", "fd00::/8", "10.1.2.3/16"]})
    assert found.source_prefixes == tuple(map(ip_network, ("8.8.8.8/32", "fd00::/8", "10.1.0.0/16")))


MALFORMED = [
    ("ipv4pools", "pool4", "a JSON list"),
    ("ipv4pools", '{"a": 1}', "a JSON list"),
    ("ipv4pools", "[1]", "a JSON list"),
    ("ipv4pools", '["fd00::/48"]', "IPv4 pools"),
    ("ipv4pools", '["10.0.0.0/33"]', "invalid CIDR address: 10.0.0.0/33"),
    ("ipv4pools", '[""]', "names or CIDRs"),
    ("ipv6pools", '["10.0.0.0/16"]', "IPv6 pools"),
    ("ipFamilies", '["IPv5"]', "IPv4, IPv6"),
    ("ipFamilies", "[]", "IPv4, IPv6"),
    ("ipFamilies", "IPv4", "IPv4, IPv6"),
    ("ipAddrs", '["10.0.0.1/32"]', "IP addresses"),
    ("ipAddrs", '["10.0.0.1", "10.0.0.2"]', "one IPv4 address, one IPv6"),
    ("ipAddrs", "[]", "one IPv4 address, one IPv6"),
    ("ipAddrs", '["fe80::1%eth0"]', "addresses that a pod can have"),
    ("ipAddrs", '["0.0.0.0"]', "addresses that a pod can have"),
    ("ipAddrs", '["10.0.0.1"', "IP addresses"),
    ("ipAddrsNoIpam", '["10.0.0.256"]', "IP addresses"),
    ("ipAddrsNoIpam", '["224.0.0.1"]', "addresses that a pod can have"),
    ("floatingIPs", '["1.2.3.4/33"]', "IP addresses"),
    ("floatingIPs", "1.2.3.4", "IP addresses"),
    ("hwAddr", "1e:2f:3a:4b:5c", "a MAC address"),
    ("hwAddr", "1e:2f:3a:4b:5c:zz", "a MAC address"),
    ("hwAddr", "01:00:5e:00:00:01", "neither zero nor a group address"),
    ("hwAddr", "00:00:00:00:00:00", "neither zero nor a group address"),
    ("allowedSourcePrefixes", '["10.0.0.1"]', "networks in CIDR notation"),
    ("allowedSourcePrefixes", '["10.0.0.0/99"]', "networks in CIDR notation"),
    ("allowedSourcePrefixes", "10.0.0.0/8", "networks in CIDR notation"),
]


@pytest.mark.parametrize(("name", "text", "expected"), MALFORMED)
def test_a_malformed_annotation_is_named_with_its_owner_and_value(name: str, text: str, expected: str) -> None:
    with pytest.raises(InvalidAnnotation) as caught:
        request({name: text}, using=ALL)
    message = str(caught.value)
    assert f"annotation {PREFIX}{name} of pod prod/web: " in message
    assert expected in message and f"got {text!r}" in message


def test_a_malformed_annotation_of_the_namespace_counts_only_without_the_pods() -> None:
    with pytest.raises(InvalidAnnotation, match="of namespace prod: "):
        request({}, {"ipv4pools": "x"})
    assert request({"ipv4pools": ["a"]}, {"ipv4pools": "x"}).pools4 == ("a",)


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(InvalidAnnotation) as caught:
        request({"ipv4pools": "x" * 9999})
    assert len(str(caught.value)) < 400


def test_both_kinds_of_addresses() -> None:
    with pytest.raises(InvalidAnnotation) as caught:
        request({"ipAddrs": ["10.0.0.1"], "ipAddrsNoIpam": ["10.0.0.1"]}, using=ALL)
    assert str(caught.value) == ("can't have both annotations: 'ipAddrs' and 'ipAddrsNoIpam' in use at the same time")


@pytest.mark.parametrize(
    ("annotation", "feature"), [("ipAddrsNoIpam", "ip_addrs_no_ipam"), ("floatingIPs", "floating_ips")]
)
def test_features_that_are_off(annotation: str, feature: str) -> None:
    with pytest.raises(FeatureDisabled, match=f"^requested feature is not enabled: {feature}$"):
        request({annotation: ["10.0.0.1"]})


def test_addresses_through_another_ipam() -> None:
    with pytest.raises(InvalidAnnotation, match="ipAddrs is not compatible with configured IPAM: host-local"):
        request({"ipAddrs": ["10.0.0.1"]}, using=conf("host-local"))


@given(
    st.sampled_from([name for name, _, _ in MALFORMED]),
    st.text() | st.recursive(st.none() | st.text() | st.integers(), st.lists).map(json.dumps),
)
def test_no_value_raises_anything_else(name: str, text: str) -> None:
    try:
        request({name: text}, using=ALL)
    except (InvalidAnnotation, FeatureDisabled):
        pass
