"""Whose an address is that names no interface, when calico-ipam is run by itself."""

from ipaddress import ip_address, ip_network
from types import SimpleNamespace

import pytest

from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import encode, new_metadata
from cni_calico.model.keys import ResourceKey
from cni_calico.model.resources import WorkloadEndpoint
from cni_calico.plugin.call.services import Services
from cni_calico.plugin.call.task import Task
from cni_calico.plugin.ipam import alone
from tests.fakes.memory_store import MemoryStore

HELD = frozenset(map(ip_address, ("10.0.0.1", "10.0.0.2")))


def claimed(ifname, endpoints):
    store = MemoryStore()
    for name, address in endpoints.items():
        key = ResourceKey("WorkloadEndpoint", f"n1-cni-c1-{name}", "default")
        metadata = new_metadata(key.name, namespace="default", uid="u", now="2026-11-20T12:06:00Z")
        networks = (ip_network(address),) if address else ()
        record = WorkloadEndpoint(
            metadata, "cni", "n1", name, f"cali{name}", container_id="c1", workload="c1", ip_networks=networks
        )
        store.elsewhere(Write.put(key, encode(record)))
    conf = SimpleNamespace(prev_result=None, nodename="n1")
    call = SimpleNamespace(ifname=ifname, container_id="c1")
    services = Services(open_store=lambda config: store)
    datastore = services.datastore(DatastoreConfig("local", path="/x"))
    share = alone.find_share(Task(call, conf, services, datastore, Deadline.after(5)))
    return {str(address) for address in share.claim(HELD)}


@pytest.mark.parametrize(
    ("ifname", "endpoints", "expected"),
    [
        ("net1", {"eth0": "10.0.0.1"}, {"10.0.0.2"}),
        ("net1", {"eth0": ""}, set()),
        ("net1", {"net2": "10.0.0.1"}, set()),
        ("net1", {}, set()),
        ("net1", {"eth0": "10.0.0.1", "net2": "10.0.0.2"}, set()),
        ("eth0", {"net1": "10.0.0.2"}, {"10.0.0.1"}),
        ("eth0", {}, {"10.0.0.1", "10.0.0.2"}),
    ],
)
def test_what_the_first_interface_is_known_not_to_have_is_another_ones(ifname, endpoints, expected):
    assert claimed(ifname, endpoints) == expected
