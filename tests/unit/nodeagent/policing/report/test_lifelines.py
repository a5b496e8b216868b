"""When it is said that a host endpoint cuts a connection that its node needs, and when no more."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from cni_calico.kernel.netlink.filter_events import Happened
from cni_calico.log import SILENT
from cni_calico.model.access import DatastoreConfig, KubernetesAccess
from cni_calico.model.host import HostInterface
from cni_calico.model.resources import Address
from cni_calico.nodeagent.policing.feed.addresses import HostAddresses
from cni_calico.nodeagent.policing.report.lifelines import Lifelines, read_lifelines
from cni_calico.nodeagent.policing.tables.goal import Goal
from cni_calico.nodeagent.policing.tables.settings import FilterSettings
from cni_calico.nodeagent.policing.tables.tunnels import Tunnels
from cni_calico.policy.failsafe import FailsafePort
from cni_calico.policy.graph import Graph
from cni_calico.policy.lifelines import Lifeline
from tests.unit.policy.cluster import NODE, document, graph_of, put

OWN, STORE, NEIGHBOUR = ip_address("192.0.2.1"), ip_address("198.51.100.9"), ip_address("192.0.2.8")
LO = HostInterface(1, "lo", True, 65536, (ip_interface("127.0.0.1/8"),))
ETH0 = HostInterface(2, "eth0", True, 1500, (ip_interface(f"{OWN}/24"),))
CUT_STORE = "from the datastore at 198.51.100.9 (TCP 12379)"
CUT_KUBELET = "off for the kubelet (kubectl logs, exec) (TCP 10250)"


@dataclass
class LifelineHost:
    """``there``: its interfaces; it reaches other hosts from ``OWN``, and its own addresses from themselves."""

    monkeypatch: pytest.MonkeyPatch
    there: tuple[HostInterface, ...] = (LO, ETH0)
    graph: Graph = field(default_factory=lambda: graph_of({}))
    goal: Goal = field(default_factory=lambda: Goal(FilterSettings()))

    def __post_init__(self) -> None:
        rooms = "cni_calico.nodeagent.policing"
        self.addresses = HostAddresses(lambda: None)
        self.side = Lifelines((Lifeline("the datastore", "egress", STORE, 12379),), SILENT)
        self.monkeypatch.setattr(f"{rooms}.feed.addresses.read_interfaces", lambda deadline: self.there)
        self.monkeypatch.setattr(f"{rooms}.report.lifelines.read_source_address", self.source)

    def source(self, target: str, family: int) -> Address:
        wanted = ip_address(target)
        return wanted if any(wanted == one.ip for link in self.there for one in link.addresses) else OWN

    def put(self, kind: str, name: str, spec: dict[str, Any] | None, **labels: str) -> None:
        put(self.graph, (kind, "", name), None if spec is None else document(spec, labels))

    def cuts(self) -> tuple[str, ...]:
        changes = self.graph.flush().changes
        self.goal.update(changes)
        self.addresses.read_again(self.goal)
        self.side.look_for_cuts(self.goal, self.graph.wanted, changes, self.addresses.owners, kubelet=True)
        return self.side.cuts

    def plug(self, *links: HostInterface) -> None:
        self.there = links
        self.addresses.notice(Happened(links={"eth0": True}), ("cali",))

    def has_nodes(self, *addresses: Address) -> None:
        nodes: frozenset[IPv4Network] = frozenset(ip_network(address) for address in addresses)
        self.side.use_tunnels(Tunnels(nodes=nodes))


@pytest.fixture
def lifeline_host(monkeypatch: pytest.MonkeyPatch) -> LifelineHost:
    return LifelineHost(monkeypatch)


def is_cut(lifeline_host: LifelineHost, *what: str) -> bool:
    found = lifeline_host.cuts()
    return len(found) == len(what) and all(text in said for text, said in zip(what, found, strict=True))


def test_it_follows_failsafe_ports(lifeline_host: LifelineHost) -> None:
    lifeline_host.put("HostEndpoint", "h", {"node": NODE, "interfaceName": "eth0"})
    assert is_cut(lifeline_host, CUT_STORE)
    for ports, cut in (((FailsafePort(6, 12379),), ()), ((), (CUT_STORE,))):
        lifeline_host.goal.configure(replace(lifeline_host.goal.settings, failsafe_out=ports))
        assert is_cut(lifeline_host, *cut)
    lifeline_host.put("HostEndpoint", "h", None)
    assert is_cut(lifeline_host)


def test_it_follows_interfaces(lifeline_host: LifelineHost) -> None:
    lifeline_host.put("HostEndpoint", "h", {"node": NODE, "interfaceName": "eth1"})
    assert is_cut(lifeline_host)
    lifeline_host.plug(LO, replace(ETH0, name="eth1"))
    assert is_cut(lifeline_host, CUT_STORE)
    lifeline_host.plug(LO, ETH0)
    assert is_cut(lifeline_host)


def test_it_follows_the_members_of_sets(lifeline_host: LifelineHost) -> None:
    lifeline_host.put("HostEndpoint", "h", {"node": NODE, "interfaceName": "*"}, host="yes")
    allow = {"action": "Allow", "destination": {"selector": "role == 'store'"}}
    lifeline_host.put("GlobalNetworkPolicy", "p", {"selector": "has(host)", "types": ["Egress"], "egress": [allow]})
    lifeline_host.put("Tier", "default", {"order": 1})
    assert is_cut(lifeline_host, CUT_STORE)
    for nets, cut in (([str(STORE)], ()), (["203.0.113.1"], (CUT_STORE,)), (["198.51.100.0/24"], ())):
        lifeline_host.put("GlobalNetworkSet", "s", {"nets": nets}, role="store")
        assert is_cut(lifeline_host, *cut)


def test_the_servers_of_a_configuration(tmp_path: Path) -> None:
    """The API server too where another datastore has the records."""
    file = tmp_path / "kubeconfig"
    clusters = [{"name": "c", "cluster": {"server": f"https://{STORE}:8443"}}]
    contexts = [{"name": "x", "context": {"cluster": "c"}}]
    file.write_text(json.dumps({"current-context": "x", "clusters": clusters, "contexts": contexts}))
    access = KubernetesAccess(kubeconfig=str(file))
    server = Lifeline("the API server", "egress", STORE, 8443)
    assert read_lifelines(DatastoreConfig("kubernetes", kubernetes=access)) == (server,)
    etcd = DatastoreConfig("etcdv3", etcd_endpoints=(f"http://{NEIGHBOUR}:2379",), kubernetes=access)
    assert read_lifelines(etcd) == (Lifeline("the datastore", "egress", NEIGHBOUR, 2379), server)
    assert read_lifelines(DatastoreConfig("local")) == read_lifelines(None) == ()


def test_it_follows_the_nodes(lifeline_host: LifelineHost) -> None:
    lifeline_host.put("HostEndpoint", "h", {"node": NODE, "interfaceName": "eth0"})
    lifeline_host.has_nodes(OWN)  # what a host sends to itself does not pass eth0
    assert is_cut(lifeline_host, CUT_STORE)
    lifeline_host.has_nodes(OWN, NEIGHBOUR)
    assert is_cut(lifeline_host, CUT_STORE, CUT_KUBELET)
    lifeline_host.has_nodes(OWN)
    assert is_cut(lifeline_host, CUT_STORE)
    lifeline_host.put("HostEndpoint", "h", {"node": NODE, "interfaceName": "*"})  # but lo
    assert is_cut(lifeline_host, CUT_STORE, CUT_KUBELET)
