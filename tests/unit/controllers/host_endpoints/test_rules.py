"""Which host endpoints nodes get: names, addresses, labels, and templates that cannot be used."""

from __future__ import annotations

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cni_calico.controllers.host_endpoints.rules import (
    CREATED_BY,
    OURS,
    HostEndpointTemplate,
    HostEndpointWish,
    desired_host_endpoints,
    endpoint_name,
    is_current,
    merged,
    parse_template,
)
from cni_calico.controllers.host_endpoints.run import HostEndpoints
from cni_calico.daemon.fresh import Fresh
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.errors import CalicoError
from cni_calico.model.keys import ResourceKey, ResourceList
from tests.fakes.memory_store import MemoryStore

NODE = {
    "metadata": {"name": "n1", "labels": {"zone": "a"}},
    "spec": {
        "bgp": {"ipv4Address": "10.0.0.1/24", "ipv6Address": "fd00::1/64", "ipv4IPIPTunnelAddr": "10.65.0.1"},
        "ipv4VXLANTunnelAddr": "10.65.0.2",
        "ipv6VXLANTunnelAddr": "fd65::2",
        "wireguard": {"interfaceIPv4Address": "10.65.0.3"},
        "addresses": [
            {"type": "InternalIP", "address": "10.0.0.1"},
            {"type": "InternalIP", "address": "192.168.7.1"},
            {"type": "ExternalIP", "address": "198.51.100.1"},
            {"type": "InternalIP", "address": "no address"},
        ],
        "interfaces": [{"name": "eth0", "addresses": ["10.0.0.1"]}, {"name": "eth1", "addresses": ["172.16.0.1"]}],
    },
}
ALL = ["10.0.0.1", "fd00::1", "10.65.0.1", "10.65.0.2", "fd65::2", "10.65.0.3", "192.168.7.1", "172.16.0.1"]


def made(wish: HostEndpointWish, *nodes):
    return {key.name: document for key, document in desired_host_endpoints(wish, nodes or (NODE,)).items()}


def test_the_one_for_all_interfaces():
    found = made(HostEndpointWish(auto=True))
    assert list(found) == ["n1-auto-hep"]
    assert found["n1-auto-hep"]["spec"] == {
        "node": "n1",
        "interfaceName": "*",
        "expectedIPs": ALL,
        "profiles": ["projectcalico-default-allow"],
    }
    assert found["n1-auto-hep"]["metadata"]["labels"] == {"zone": "a", CREATED_BY: OURS}


def test_nothing_when_switched_off():
    template = HostEndpointTemplate("t", pattern="eth")
    assert made(HostEndpointWish(auto=False, templates=(template,))) == {}
    assert made(HostEndpointWish(auto=True, default=False)) == {}


def test_templates():
    lan = parse_template({"generateName": "lan", "interfaceCIDRs": ["10.0.0.0/24"], "labels": {"zone": "b"}})
    nics = parse_template({"generateName": "nic", "interfacePattern": "eth.*"})
    other = parse_template({"generateName": "x", "interfacePattern": "eth.*", "nodeSelector": "zone == 'z'"})
    nowhere = parse_template({"generateName": "y", "interfaceCIDRs": ["203.0.113.0/24"]})
    found = made(HostEndpointWish(auto=True, default=False, templates=(lan, nics, other, nowhere)))
    assert sorted(found) == ["n1-lan-auto-hep", "n1-nic-eth0-auto-hep", "n1-nic-eth1-auto-hep"]
    assert found["n1-lan-auto-hep"]["spec"]["expectedIPs"] == ["10.0.0.1"]
    assert "interfaceName" not in found["n1-lan-auto-hep"]["spec"]
    assert found["n1-lan-auto-hep"]["metadata"]["labels"]["zone"] == "b"
    assert found["n1-nic-eth1-auto-hep"]["spec"]["interfaceName"] == "eth1"
    assert found["n1-nic-eth1-auto-hep"]["spec"]["expectedIPs"] == ["172.16.0.1"]


def test_a_name_that_is_too_long_is_a_digest():
    assert endpoint_name("n" * 244) == "n" * 244 + "-auto-hep"
    name = endpoint_name("n" * 245)
    assert re.fullmatch("[a-z0-9]{30,43}", name) and name != endpoint_name("n" * 246)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {},
        {"generateName": "t"},
        {"generateName": "t", "interfacePattern": "("},
        {"generateName": "t", "interfaceCIDRs": ["x"]},
        {"generateName": "t", "interfaceCIDRs": ["10.0.0.0/8"], "nodeSelector": "=="},
        {"generateName": "t", "interfaceCIDRs": ["10.0.0.0/8"], "labels": {"a": 1}},
    ],
)
def test_templates_that_cannot_be_used(value):
    with pytest.raises(ValueError):
        parse_template(value)


def test_what_is_written_over_keeps_who_it_is():
    [document] = made(HostEndpointWish(auto=True)).values()
    old = {"metadata": {"name": "n1-auto-hep", "uid": "u", "labels": {"a": "b"}}, "spec": {"node": "n0"}, "more": 1}
    new = merged(document, old)
    assert is_current(document, new) and not is_current(document, old)
    assert new["metadata"]["uid"] == "u" and new["more"] == 1


# -- any order of events, stale caches, failing writes, two at once ---------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["node", "gone", "edit", "look", "work", "foreign"]),
        st.integers(0, 1),
        st.sampled_from(["n1", "n2"]),
        st.lists(st.sampled_from([None, "fail", "lost", "vanish"]), max_size=2),
    ),
    max_size=40,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(STEPS, st.booleans())
def test_the_truth_in_the_end_and_nobody_elses_touched(steps, auto):
    store, wish, deadline = MemoryStore(), HostEndpointWish(auto=auto), Deadline.after(60)
    foreign = ResourceKey("HostEndpoint", "n1-auto-hep")
    mine = {"metadata": {"name": "n1-auto-hep"}, "spec": {"node": "n1", "interfaceName": "eth0"}}
    workers = [HostEndpoints(store, Fresh(), lambda text: None) for _ in range(2)]
    views: list = [({}, {}), ({}, {})]

    def look(who):
        nodes = {item.key: item.value for item in store.list(ResourceList("Node"), deadline).items}
        endpoints = {item.key: item for item in store.list(ResourceList("HostEndpoint"), deadline).items}
        views[who] = nodes, endpoints

    def work(who):
        nodes, endpoints = views[who]
        before = {key.name for key in desired_host_endpoints(wish, current_nodes().values())}
        at = len(store.commits)
        try:
            workers[who].apply(wish, nodes, set(), endpoints, deadline)
        except CalicoError:
            pass
        removed = {write.key.name for commit in store.commits[at:] for write in commit if write.op == "delete"}
        assert not removed & before, "a living node's host endpoint was removed"

    def current_nodes():
        return {item.key: item.value for item in store.list(ResourceList("Node"), deadline).items}

    planted = False
    for step, who, name, fates in steps:
        if step == "node":
            document = {"metadata": {"name": name, "labels": {"w": str(who)}}}
            store.elsewhere(Write.put(ResourceKey("Node", name), document))
        elif step == "gone":
            store.elsewhere(Write.remove(ResourceKey("Node", name)))
        elif step == "edit":
            key = ResourceKey("HostEndpoint", f"{name}-auto-hep")
            found = store.get(key, deadline)
            if found is not None and not (planted and key == foreign):
                store.elsewhere(Write.put(key, {**found.value, "spec": {"node": name}}))
        elif step == "foreign" and store.get(foreign, deadline) is None:
            store.elsewhere(Write.put(foreign, mine))
            planted = True
        elif step == "look":
            look(who)
        elif step == "work":
            store.script.extend(fates)
            work(who)
            store.script.clear()
        if planted:
            assert store.get(foreign, deadline).value == mine
    for _ in range(2):
        look(0)
        work(0)
    look(0)
    stored = {key.name: item.value for key, item in views[0][1].items()}
    wanted = {key.name: document for key, document in desired_host_endpoints(wish, current_nodes().values()).items()}
    if planted:
        assert stored.pop("n1-auto-hep") == mine
        wanted.pop("n1-auto-hep", None)
    assert stored.keys() == wanted.keys()
    assert all(is_current(wanted[name], stored[name]) for name in wanted)
