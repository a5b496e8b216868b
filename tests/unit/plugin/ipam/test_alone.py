"""Whose an address is that names no interface, when calico-ipam is run by itself."""

import json
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
from cni_calico.plugin.ipam import alone, remembered
from tests.fakes.memory_store import MemoryStore

HELD = frozenset(map(ip_address, ("10.0.0.1", "10.0.0.2")))


def claimed(ifname, endpoints, held=HELD, *, command="DEL", named_others=False, own=()):
    store = MemoryStore()
    for name, address in endpoints.items():
        key = ResourceKey("WorkloadEndpoint", f"n1-cni-c1-{name}", "default")
        metadata = new_metadata(key.name, namespace="default", uid="u", now="2026-11-20T12:06:00Z")
        networks = (ip_network(address),) if address else ()
        record = WorkloadEndpoint(
            metadata, "cni", "n1", name, f"cali{name}", container_id="c1", workload="c1", ip_networks=networks
        )
        store.elsewhere(Write.put(key, encode(record)))
    result = {"cniVersion": "1.0.0", "ips": [{"address": address} for address in own]}
    conf = SimpleNamespace(prev_result=result if own else None, nodename="n1")
    call = SimpleNamespace(ifname=ifname, container_id="c1", command=command)
    services = Services(open_store=lambda config: store)
    datastore = services.datastore(DatastoreConfig("local", path="/x"))
    share = alone.find_share(Task(call, conf, services, datastore, Deadline.after(5)))
    return {str(address) for address in share.claim(held, named_others)}


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


ONE = frozenset(map(ip_address, ("10.0.0.1", "fd00::1")))


def test_without_any_endpoint_the_interface_is_the_only_one():
    assert claimed("c", {}, ONE) == {"10.0.0.1", "fd00::1"}
    assert claimed("c", {"net2": ""}, ONE) == set()
    assert claimed("c", {}, ONE, command="ADD") == set(), "it gets one of its own"
    assert claimed("c", {}, ONE, named_others=True) == set(), "another interface's address is under the same handle"
    assert claimed("c", {}, ONE, own=("10.0.0.9/32",)) == set(), "the runtime says which address it has"
    assert claimed("c", {}, ONE, own=("10.0.0.1/32",)) == {"10.0.0.1"}


@pytest.mark.parametrize(("ifname", "expected"), [("net1", set()), ("eth0", {"10.0.0.1", "fd00::1"})])
def test_what_the_runtime_remembers_of_another_interface_is_not_this_ones(ifname, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(remembered, "RESULTS", str(tmp_path))
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.0.0.1/32"}, {"address": "fd00::1/128"}]}
    for name, container, kept_result in (("a-c1-eth0", "c1", result), ("a-c1-0-net1", "c1-0", {}), ("b-c1-x", "c1", 7)):
        kept = {"containerId": container, "ifName": name.rpartition("-")[2], "result": kept_result}
        (tmp_path / name).write_text(json.dumps(kept))
    (tmp_path / "a-c1-bad").write_text("{")
    assert claimed(ifname, {}, ONE) == expected
