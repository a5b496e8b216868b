"""What can be moved of a flannel network, what stands against it, and that the plan's records are what nodes need."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cni_calico.ctl.migrate.flannel_plan import (
    FlannelNetwork,
    MovedNode,
    find_masquerading,
    find_obstacles,
    judge_node,
    parse_network,
    render_check,
    render_plan,
)
from cni_calico.errors import InvalidConfig
from cni_calico.model.documents.codec import decode_node, decode_resource
from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.flannel import ANNOTATIONS, PREFIX, FlannelEnd, parse_end, read_end, render_end
from cni_calico.model.kubernetes.nodes import read_node
from cni_calico.nodeagent.dataplane.encapsulation import derived_mac, endpoint_of
from cni_calico.relay.reduction import reduce_node

NETWORK = FlannelNetwork(IPv4Network("10.244.0.0/16"), daemon="kube-flannel/kube-flannel-ds")
MAC = "3a:aa:bb:cc:dd:ee"
GIVEN = {
    f"{PREFIX}backend-data": json.dumps({"VNI": 1, "VtepMAC": MAC}),
    f"{PREFIX}backend-type": "vxlan",
    f"{PREFIX}kube-subnet-manager": "true",
    f"{PREFIX}public-ip": "10.0.0.1",
}
END = FlannelEnd(IPv4Address("10.0.0.1"), IPv4Address("10.244.1.0"), MAC, 1)
FITTING = {"cidr": "10.244.0.0/16", "vxlanMode": "Always"}


def node(cidr: Any = "10.244.1.0/24", **annotations: Any) -> dict[str, Any]:
    metadata = {"name": "a", "annotations": {**GIVEN, **annotations}}
    return {"metadata": metadata, "spec": {"podCIDR": cidr, "podCIDRs": [cidr]}}


def conf(**backend: Any) -> str:
    return json.dumps({"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", **backend}})


def test_flannels_defaults() -> None:
    assert parse_network(conf(), "x") == replace(NETWORK, daemon="")
    found = parse_network(conf(VNI=7, Port=4789, DirectRouting=True), "x")
    assert (found.vni, found.port, found.mode) == (7, 4789, "CrossSubnet")
    assert parse_network(conf(Port=0), "x").port == 8472


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is not JSON"),
        (None, "is not JSON"),
        ("[" * 100000, "is not JSON"),
        ("[]", "no JSON object"),
        ("{}", "Backend.Type is 'udp'"),
        (conf(Type="host-gw"), "Backend.Type is 'host-gw'"),
        (conf(VNI=0), "Backend.VNI is 0, and not a number from 1 to 16777215"),
        (conf(VNI=True), "Backend.VNI is True"),
        (conf(Port=70000), "Backend.Port is 70000"),
        (json.dumps({"Network": "10.244.0.1/16", "Backend": {"Type": "vxlan"}}), "Network is '10.244.0.1/16'"),
        (json.dumps({"Network": "fd00::/64", "Backend": {"Type": "vxlan"}}), "Network is 'fd00::/64'"),
        (json.dumps({"Network": "10.0.0.0/8", "EnableIPv6": True, "Backend": {"Type": "vxlan"}}), "EnableIPv6 is true"),
    ],
)
def test_what_cannot_be_moved_is_refused_by_name(text: Any, says: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        parse_network(text, "net-conf.json")
    assert says in f"{caught.value} {caught.value.details}"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["/opt/bin/flanneld", "--ip-masq", "--kube-subnet-mgr"], True),
        (["--kube-subnet-mgr", "--ip-masq=false"], False),
        (["/bin/other"], None),
    ],
)
def test_a_daemonset_that_is_flannels(words: list[str], found: bool | None) -> None:
    assert find_masquerading({"spec": {"template": {"spec": {"containers": [{"command": words}]}}}}) is found
    assert find_masquerading({}) is None


@pytest.mark.parametrize(
    ("given", "state", "why"),
    [
        (node(), "flannel", ""),
        (node(**{"projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.0"}), "calico", ""),
        (node("10.1.0.0/24"), "", "is not a part of 10.244.0.0/16"),
        (node(None), "", "podCIDR is None"),
        (node("fd00::/64"), "", "podCIDR is fd00::/64"),
        (node(**{f"{PREFIX}backend-type": "host-gw"}), "", "no annotations"),
        (node(**{f"{PREFIX}backend-data": json.dumps({"VNI": 2, "VtepMAC": MAC})}), "", "uses VNI 2"),
    ],
)
def test_the_state_of_a_node(given: dict[str, Any], state: str, why: str) -> None:
    found = judge_node(given, NETWORK)
    assert found.state == state and why in found.why and bool(found.why) is not bool(state)


@pytest.mark.parametrize(
    ("pools", "felix", "says"),
    [
        ([], {}, ""),
        ([FITTING], {"vxlanVNI": 1, "vxlanPort": 8472}, ""),
        ([{"cidr": "192.168.0.0/16"}, {"cidr": "nonsense"}, {}], {}, ""),
        (
            [{**FITTING, "vxlanMode": "CrossSubnet"}],
            {},
            "with vxlanMode CrossSubnet; it has to be 10.244.0.0/16, Always",
        ),
        ([{"cidr": "10.0.0.0/8", "vxlanMode": "Always"}], {}, "there is an IPPool 10.0.0.0/8"),
        ([], {"vxlanVNI": 4096, "vxlanPort": 8472}, "has vxlanVNI 4096; it has to be 1"),
        ([], {"vxlanVNI": 1}, "has vxlanPort 4789; it has to be 8472"),
    ],
)
def test_what_stands_against_it(pools: list[dict[str, Any]], felix: dict[str, Any], says: str) -> None:
    found = list(find_obstacles(NETWORK, [MovedNode("a", "flannel")], pools, felix))
    assert (not found) if not says else says in " ".join(found)
    assert ("nothing stands against" in render_check(NETWORK, [MovedNode("a", "flannel")], found)) is not says


def test_a_cluster_without_nodes() -> None:
    assert list(find_obstacles(NETWORK, [], [], {})) == ["there are no nodes"]


def test_the_plans_records_are_records() -> None:
    nodes = [MovedNode("a", "flannel"), MovedNode("b", "calico")]
    plan = render_plan(replace(NETWORK, vni=7, masquerades=False), nodes)
    records = list(yaml.safe_load_all(plan.partition("<<'END'\n")[2].partition("# END")[0]))
    for record in records:
        decode_resource(ResourceKey(record["kind"], record["metadata"]["name"]), record)
    assert [record["spec"] for record in records] == [
        {**FITTING, "natOutgoing": False},
        {"vxlanVNI": 7, "vxlanPort": 8472},
    ]
    assert "kubectl drain a " in plan and "kubectl drain b " not in plan
    assert "every node is moved" in render_plan(NETWORK, nodes[1:])


# -- what nodes make of the annotations -------------------------------------------------------------------------------


@given(st.dictionaries(st.sampled_from(ANNOTATIONS), st.text() | st.sampled_from(list(GIVEN.values()))), st.text())
def test_annotations_that_anybody_may_have_written(annotations: dict[str, str], cidr: str) -> None:
    read_end(annotations, "10.244.1.0/24")
    assert read_end(GIVEN, cidr) is None or IPv4Network(cidr)


def test_the_end_of_a_node_that_is_not_moved() -> None:
    end = read_end(GIVEN, "10.244.1.0/24")
    assert end == END == parse_end({"flannel": render_end(END)})
    assert parse_end(None) is parse_end({"flannel": "x"}) is None
    key, document = read_node(node())
    found = endpoint_of(decode_node(key, document), 4)
    assert found is not None and (found.address, found.vtep, found.mac) == (END.address, END.vtep, MAC)
    assert endpoint_of(decode_node(key, document), 6) is None


def test_a_moved_node_keeps_the_mac_that_flannels_nodes_use() -> None:
    own = {"projectcalico.org/IPv4Address": "10.0.0.7/24", "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.9"}
    found = endpoint_of(decode_node(*read_node(node(**own))), 4)
    assert found is not None
    assert (str(found.address), str(found.vtep), found.mac) == ("10.0.0.7", "10.244.1.9", MAC)
    bare = node(**own)
    bare["metadata"]["annotations"] = own
    found = endpoint_of(decode_node(*read_node(bare)), 4)
    assert found is not None and found.mac == derived_mac("a", 4)


def test_a_relay_passes_them_on() -> None:
    reduced = reduce_node({**node(), "apiVersion": "v1", "kind": "Node"})
    assert reduced is not None
    assert read_node(reduced) == read_node(node())
