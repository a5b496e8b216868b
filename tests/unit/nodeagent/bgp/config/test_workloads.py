"""BGP with workloads of the node: who is whose peer, and what is said of those who are none."""

from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from cni_calico.model.resources import Metadata, Resource
from cni_calico.nodeagent.bgp.config.configuration import parse_configuration
from cni_calico.nodeagent.bgp.config.findings import BgpProblem
from cni_calico.nodeagent.bgp.config.lifelines import desired_lifelines
from cni_calico.nodeagent.bgp.config.peers import desired_peers
from cni_calico.nodeagent.bgp.config.peerspec import parse_peer_spec
from cni_calico.nodeagent.bgp.config.render import MAIN, render_bird_config
from cni_calico.nodeagent.bgp.config.workloads import LocalWorkload, describe_workload, select_peerings
from tests.unit.nodeagent.bgp.config.clusters import make_snapshot, read_documents
from tests.unit.nodeagent.fabric import workload

HOST = {4: ip_address("169.254.9.9"), 6: ip_address("fd99::9")}
POD = LocalWorkload("cali1", "default/p", {"role": "router"}, (ip_address("10.65.0.5"), ip_address("fd65::5")))
NODE = """
kind: Node
metadata: {name: a}
spec: {bgp: {ipv4Address: 172.31.0.1/24, ipv6Address: "fd31::1/64"}}
---
kind: BGPConfiguration
metadata: {name: default}
spec: {bindMode: NodeIP, listenPort: 178, localWorkloadPeeringIPV4: 169.254.9.9}
---
kind: BGPPeer
metadata: {name: nested}
spec: {localWorkloadSelector: role == 'router', asNumber: 65010, localASNumber: 65011}
---
kind: This
node: a
"""


def peer(name: str, **spec):
    found, problems = parse_peer_spec(Resource("BGPPeer", Metadata(name), {"asNumber": 65010, **spec}))
    return found, [str(problem) for problem in problems]


def selecting(name: str, selector: str):
    found, problems = peer(name, localWorkloadSelector=selector)
    assert found is not None and not problems
    return found


def test_the_first_that_selects_it_counts():
    specs = [selecting("c", "all()"), selecting("b", "role == 'router'"), selecting("a", "role == 'x'")]
    found = list(select_peerings(specs, [POD], HOST, (4, 6)))
    assert [(one.spec.name, one.address, one.at) for one in found] == [
        ("b", POD.addresses[0], HOST[4]),
        ("b", POD.addresses[1], HOST[6]),
    ]
    assert len(list(select_peerings(specs, [POD], HOST, (4,)))) == 1
    assert list(select_peerings(specs[2:], [POD], HOST, (4, 6))) == []
    (missing,) = [one for one in select_peerings(specs, [POD], {4: HOST[4]}, (4, 6)) if isinstance(one, BgpProblem)]
    assert "default/p: the BGPConfiguration has no localWorkloadPeeringIPV6" in missing.text


def test_labels_are_its_own_before_its_profiles():
    endpoint = workload("w", "cali1", "10.65.0.5/32", "10.65.0.6/32", "fd65::5/128")
    endpoint = replace(
        endpoint,
        profiles=("kns.default", "ksa.default.x"),
        ip_networks=(ip_network("10.65.4.0/24"), *endpoint.ip_networks),
        metadata=replace(endpoint.metadata, labels={"a": "own"}),
    )
    profiles = {"kns.default": {"a": "1", "b": "1"}, "ksa.default.x": {"b": "2", "c": "2"}}
    found = describe_workload("cali1", endpoint, profiles)
    assert {key: found.labels[key] for key in "abc"} == {"a": "own", "b": "1", "c": "2"}
    assert found.labels["projectcalico.org/namespace"] == endpoint.metadata.namespace
    assert list(map(str, found.addresses)) == ["10.65.0.5", "fd65::5"]  # of each family the first that is single


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"localWorkloadSelector": "all()", "peerIP": "10.0.0.1"}, "excludes peerIP and peerSelector"),
        ({"localWorkloadSelector": "all()", "peerSelector": "all()"}, "excludes peerIP and peerSelector"),
        ({"localWorkloadSelector": "all()", "asNumber": None}, "needs an asNumber"),
        ({"localWorkloadSelector": "=="}, "a selector"),
        ({"localWorkloadSelector": ["x"]}, "localWorkloadSelector"),
    ],
)
def test_what_is_left_out(spec, said):
    found, problems = peer("p", **spec)
    assert found is None and any(said in text and "left out" in text for text in problems)


@pytest.mark.parametrize("address", ["fd99::9", "224.0.0.1", "0.0.0.0", "127.0.0.1", "x", 7])
def test_a_wrong_peering_address_is_none(address):
    resource = Resource("BGPConfiguration", Metadata("default"), {"localWorkloadPeeringIPV4": address})
    found, problems = parse_configuration(resource)
    assert found.workload_peering == {} and "localWorkloadPeeringIPV4" in str(problems[0])


def test_the_session():
    snapshot = replace(make_snapshot(read_documents(NODE)), workloads=(POD,))
    found = [one for one in desired_peers(snapshot).peers if one.kind == "Local_Workload"]
    assert [one.name for one in found] == ["Local_Workload_10_65_0_5"] and found[0].at == ("cali1", HOST[4])
    assert desired_lifelines(snapshot, found) == ()  # a pod's connection is no host endpoint's
    config = render_bird_config(snapshot)
    lines = config.files[MAIN].split("protocol bgp Local_Workload_10_65_0_5 ")[1].split("\n}")[0]
    assert "local port 179 as 65011;" in lines and "strict bind" not in lines
    assert "passive on;" in lines and "multihop;" in lines and "neighbor 10.65.0.5 as 65010;" in lines
    assert any("localWorkloadPeeringIPV6" in str(problem) for problem in config.problems)
    nobody = render_bird_config(replace(snapshot, workloads=()))
    assert "Local_Workload" not in nobody.files[MAIN]
