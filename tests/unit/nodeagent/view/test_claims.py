"""What only a pod's annotation says about its addresses counts where IPAM or the node's pod CIDRs confirm it."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from cni_calico.datastore.kubernetes.layout import read_pod
from cni_calico.model.documents.codec import decode_endpoint
from cni_calico.model.kubernetes.pods import CONTAINER_ID, POD_IPS
from cni_calico.model.lasting import ALTERNATE
from cni_calico.model.resources import Attribute, Block, WorkloadEndpoint
from cni_calico.nodeagent.view.claims import LocalEndpoint, is_claimed, judge_claims
from cni_calico.nodeagent.view.snapshot import reduce_block

HELD = {ip_address("10.65.1.5"): ("default", "web"), ip_address("10.65.1.6"): ("default", "other")}
CIDRS = (ip_network("10.99.1.0/24"),)


def local(annotation: str, status: dict[str, Any] | None = None) -> LocalEndpoint:
    """As the agent reads a pod."""
    pod = {
        "metadata": {"name": "web", "namespace": "default", "annotations": {POD_IPS: annotation, CONTAINER_ID: "c1"}},
        "spec": {"nodeName": "n1"},
        "status": status or {},
    }
    found = read_pod(pod, "cali")
    assert found is not None
    return LocalEndpoint(decode_endpoint(*found), is_claimed(pod))


def addresses(endpoint: WorkloadEndpoint) -> list[str]:
    return [str(network) for network in endpoint.ip_networks]


@pytest.mark.parametrize(
    ("annotation", "counts"),
    [
        ("10.65.1.5/32", ["10.65.1.5/32"]),
        ("10.65.1.5", ["10.65.1.5/32"]),
        ("10.65.1.5/32,10.65.1.6/32", ["10.65.1.5/32"]),  # another pod's
        ("0.0.0.0/0,10.96.0.1/32", []),
        ("fd00::/32,::/0", []),
        ("10.65.1.0/24", []),
        ("10.99.1.7/32,10.99.2.7/32", ["10.99.1.7/32"]),
    ],
)
def test_a_claim_counts_where_somebody_confirms_it(annotation: str, counts: list[str]) -> None:
    endpoint = local(annotation)
    judged = judge_claims([endpoint], HELD, CIDRS)
    assert addresses(judged.endpoints[0]) == counts
    doubtful = set(addresses(endpoint.record)) - set(counts)
    assert {str(n) for networks in judged.unproven.values() for n in networks} == doubtful
    assert len(judged.problems) == bool(doubtful)


def test_what_the_kubelet_reports_is_believed() -> None:
    status = {"podIPs": [{"ip": "192.0.2.9"}]}
    judged = judge_claims([local("10.65.1.6/32", status)], HELD, ())
    assert addresses(judged.endpoints[0]) == ["192.0.2.9/32"] and not judged.unproven and not judged.problems


def test_another_datastores_endpoints_are_believed() -> None:
    trusted = replace(local("192.0.2.9/32"), claimed=False)
    assert judge_claims([trusted], {}, ()).endpoints == (trusted.record,)


def test_what_a_block_holds_for_pods_of_this_node() -> None:
    attributes = (
        Attribute("net.a", {"node": "n1", "namespace": "default", "pod": "web"}),
        Attribute("net.b", {"node": "n2", "namespace": "default", "pod": "elsewhere"}),
        Attribute("ipip-tunnel-addr-n1", {"node": "n1", "type": "ipipTunnelAddress"}),
    )
    block = Block(ip_network("10.65.1.0/29"), "host:n3", (0, 1, 2, None, None, None, None, None), (3, 4), attributes)
    reduced = reduce_block(block, "n1")
    assert reduced is not None and reduced.held == {ip_address("10.65.1.0"): ("default", "web")}


def test_whose_machine_is_elsewhere() -> None:
    """A machine that has left this node, or has not come yet: its pod here holds the address, and does not have it."""
    here, there = ({"node": node, "namespace": "default", "pod": node} for node in ("n1", "n2"))
    attributes = (
        Attribute("net.vmi.default.a", there, {ALTERNATE: here}),
        Attribute("net.vmi.default.b", here, {ALTERNATE: there}),
        Attribute("net.vmi.default.c", {}, {ALTERNATE: here}),  # the pod in which it was is gone
        Attribute("net.vmi.default.d", {**here, "pod": "other"}, {ALTERNATE: here}),
    )
    block = Block(ip_network("10.65.1.0/29"), "host:n3", (0, 1, 2, 3, None, None, None, None), (4,), attributes)
    reduced = reduce_block(block, "n1")
    assert reduced is not None and reduced.away == {ip_address("10.65.1.0")}
    assert [pod for _, pod in reduced.held.values()] == ["n1", "n1", "n1", "other"]
    assert all(where == "n2" for where in (reduced.lent[a] for a in reduced.away))
