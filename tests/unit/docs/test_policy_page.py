"""docs/policy.md: its recipes can be stored and mean what their headings say."""

import re
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from cni_calico.model.keys import ResourceKey
from cni_calico.model.kubernetes.policies import NETWORK_POLICY
from cni_calico.model.resources import EndpointPort, Metadata, Resource, WorkloadEndpoint
from cni_calico.model.validation.check import require_valid
from cni_calico.model.validation.defaults import with_defaults
from cni_calico.policy.decode import decode_record
from cni_calico.policy.explain import Packet, decide, decide_host
from cni_calico.policy.graph import Graph
from cni_calico.policy.records import ServiceMembers

PAGE = (Path(__file__).parents[3] / "docs" / "policy.md").read_text()
RECIPES = dict(re.findall(r"### ([^\n]+)\n(?:(?!###).)*?```yaml\n(.*?)```", PAGE, re.DOTALL))
ALLOW = ({"action": "Allow"},)
PODS = {
    "shop/api": ("10.0.0.1", {"role": "api"}),
    "shop/database": ("10.0.0.2", {"role": "database"}),
    "shop/worker": ("10.0.0.3", {"role": "worker"}),
    "monitoring/scraper": ("10.0.1.1", {}),
    "kube-system/dns": ("10.0.2.1", {"k8s-app": "kube-dns"}),
}
SPACES = {"shop": {}, "monitoring": {"team": "monitoring"}, "kube-system": {}}
HOST, NODE = ResourceKey("HostEndpoint", "all"), "192.0.2.11"
API_SERVER, PARTNER, STRANGER = "172.16.0.1", "192.0.2.9", "203.0.113.1"


def cluster(recipe):
    graph = Graph(lambda record: True, lambda host: True)
    labels = {"kubernetes-host": ""}
    host = Resource("HostEndpoint", Metadata("all", labels=labels), {"node": "n", "interfaceName": "*"})
    graph.put(HOST, host)
    for space, labels in SPACES.items():
        given = {f"pcns.{key}": value for key, value in {**labels, "projectcalico.org/name": space}.items()}
        spec = {"ingress": ALLOW, "egress": ALLOW, "labelsToApply": given}
        graph.put(ResourceKey("Profile", f"kns.{space}"), Resource("Profile", Metadata(f"kns.{space}"), spec))
    for name, (address, labels) in PODS.items():
        space, pod = name.split("/")
        record = WorkloadEndpoint(
            Metadata(pod, space, labels=labels),
            "k8s",
            "n",
            "eth0",
            f"cali-{pod}",
            pod=pod,
            ip_networks=(ip_network(address),),
            profiles=(f"kns.{space}",),
            ports=(EndpointPort("metrics", 9100),),
        )
        graph.put(ResourceKey("WorkloadEndpoint", pod, space), record)
    server = ip_address(API_SERVER).packed
    members = ServiceMembers("default", "kubernetes", frozenset((server,)), frozenset(((server, 6, 6443),)))
    graph.put(ResourceKey("EndpointSlice", "kubernetes", "default"), members)
    for document in yaml.safe_load_all(recipe):
        metadata = document["metadata"]
        if document["apiVersion"] == "networking.k8s.io/v1":
            key = ResourceKey(NETWORK_POLICY, metadata["name"], metadata["namespace"])
        else:
            document = with_defaults(document)
            require_valid(document)
            key = ResourceKey(document["kind"], metadata["name"], metadata.get("namespace", ""))
        record, left_out = decode_record(key, document)
        assert left_out == ()
        graph.put(key, record)
    graph.flush()
    assert not graph.problems
    return graph.wanted()


def passes(wanted, source, destination, port, protocol=6):
    first, second = (ip_address(PODS[end][0] if end in PODS else end) for end in (source, destination))
    packet = Packet(first, second, protocol, 40000, port)
    for end, direction in ((source, "egress"), (destination, "ingress")):
        if end in PODS:
            space, pod = end.split("/")
            if decide(wanted, ResourceKey("WorkloadEndpoint", pod, space), direction, packet).verdict == "Deny":
                return False
    return True


CASES = {
    "Close a namespace": [
        ("shop/api", "shop/database", 5432, False),
        ("shop/api", "kube-system/dns", 53, True),
        (STRANGER, "shop/api", 80, False),
    ],
    "Close every namespace but the system's, and keep DNS": [
        ("shop/api", "kube-system/dns", 53, True),
        ("shop/api", "kube-system/dns", 80, False),
        ("shop/api", "shop/database", 53, False),
        ("kube-system/dns", STRANGER, 53, True),
    ],
    "From one kind of pod to another": [
        ("shop/api", "shop/database", 5432, True),
        ("shop/worker", "shop/database", 5432, False),
        ("shop/api", "shop/database", 22, False),
        ("shop/database", "shop/api", 22, True),
    ],
    "From another namespace": [
        ("monitoring/scraper", "shop/api", 9100, True),
        ("monitoring/scraper", "shop/api", 80, False),
        ("shop/worker", "shop/api", 9100, False),
    ],
    "To a service": [
        ("shop/worker", API_SERVER, 6443, True),
        ("shop/worker", API_SERVER, 443, False),
        ("shop/api", API_SERVER, 443, True),
    ],
    "To networks outside": [
        ("shop/api", PARTNER, 443, True),
        ("shop/api", PARTNER, 80, False),
        ("shop/api", STRANGER, 443, False),
        ("shop/worker", STRANGER, 443, True),
    ],
    "A rule that no other policy can override": [
        ("shop/api", "169.254.169.254", 80, False),
        ("shop/api", STRANGER, 80, True),
    ],
}


HOST_CASES = {  # (stage, source, protocol, port, whether it passes; None: nothing is decided)
    "Protect every node": [
        ("own", STRANGER, 6, 10250, True),
        ("own", STRANGER, 1, 0, True),
        ("own", NODE, 6, 4789, True),
        ("own", STRANGER, 6, 80, False),
    ],
    "NodePorts, only from some networks": [
        ("beforeNat", "198.51.100.7", 6, 30080, True),
        ("beforeNat", STRANGER, 6, 30080, False),
        ("beforeNat", STRANGER, 17, 30080, False),
        ("beforeNat", STRANGER, 6, 443, None),
    ],
}


def test_every_recipe_is_tried():
    assert set(CASES) | set(HOST_CASES) == set(RECIPES)


@pytest.mark.parametrize("heading", HOST_CASES)
def test_recipe_for_hosts(heading):
    wanted = cluster(RECIPES[heading])
    for stage, source, protocol, port, expected in HOST_CASES[heading]:
        packet = Packet(ip_address(source), ip_address(NODE), protocol, 40000, port)
        found = decide_host(wanted, HOST, stage, "ingress", packet)
        assert (found and found.verdict == "Allow") is expected, (stage, source, port)


@pytest.mark.parametrize("heading", CASES)
def test_recipe(heading):
    wanted = cluster(RECIPES[heading])
    for source, destination, port, expected in CASES[heading]:
        assert passes(wanted, source, destination, port) is expected, (source, destination, port)
