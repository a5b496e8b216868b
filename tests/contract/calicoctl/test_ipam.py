"""calicoctl's commands for addresses over every datastore: what leaked goes, what a container has stays.

The container is a pod of the API server where that is the datastore, else a stored endpoint.
"""

import json
import re

import pytest

from cni_calico.ipam.allocator import Allocator
from cni_calico.ipam.assign import AssignRequest
from cni_calico.ipam.lost.leaks import TUNNELS
from cni_calico.model.keys import BlockList, HandleKey, ResourceKey
from tests.contract.calicoctl.files import pool
from tests.e2e.kubernetes.cluster import shared_cluster

pytestmark = pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)

# upper case too: Kubernetes' names have none
USED, LEAKED, LATER = "net.Used", "net.Leaked", "net.Later"


@pytest.fixture
def ctl_with_pool(calicoctl):
    calicoctl("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/24", blockSize=28, natOutgoing=True)))
    return calicoctl


@pytest.fixture
def take(ctl_with_pool, store, soon):
    """Take an address for a handle, as nobody in particular of node x."""
    allocator = Allocator(store)

    def assign(handle):
        [taken] = allocator.assign(AssignRequest("x", handle, {"node": "x"}, num4=1), soon)
        return taken.address

    return assign


@pytest.fixture
def held(ctl_with_pool, space, store, soon, take):
    """(the address of a container that is there, an address that leaked)"""
    if space.address.startswith("kubernetes"):
        shared_cluster().create_node("x")
        shared_cluster().create_pod("space", "c", "x")
    else:
        node = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "x"}, "spec": {}}
        ctl_with_pool("create", "-f", "-", stdin=json.dumps(node))
    used = take(USED)
    spec = {"orchestrator": "k8s", "node": "x", "pod": "c", "endpoint": "eth0", "containerID": "Used"}
    endpoint = {
        "apiVersion": "projectcalico.org/v3",
        "kind": "WorkloadEndpoint",
        "metadata": {"name": "x-k8s-c-eth0", "namespace": "space"},
        "spec": {**spec, "ipNetworks": [f"{used}/32"]},
    }
    if not space.address.startswith("kubernetes"):
        endpoint["spec"]["interfaceName"] = "cali12345678901"
    ctl_with_pool("apply", "-f", "-", stdin=json.dumps(endpoint))
    return used, take(LEAKED)


def taken_handles(store, soon):
    blocks = [item.value for item in store.list(BlockList(), soon).items]
    return {attribute["handle_id"] for block in blocks for attribute in block["attributes"]}


def specs(ctl):
    items = json.loads(ctl("get", "ippool", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item["spec"] for item in items}


def test_what_leaked_is_released_by_a_report(ctl_with_pool, store, soon, held, take, tmp_path):
    used, leaked = held
    assert f"IP {used} is in use\n" in ctl_with_pool("ipam", "show", f"--ip={used}")
    assert f"Handle: {USED}" in ctl_with_pool("ipam", "show", f"--ip={used}")
    report = tmp_path / "report.json"
    ctl_with_pool("ipam", "check", "-o", str(report), code=1)
    assert "was not locked" in ctl_with_pool("ipam", "release", f"--from-report={report}", code=1)
    ctl_with_pool("datastore", "migrate", "lock")
    found = ctl_with_pool("ipam", "check", "--show-problem-ips", "-o", str(report), code=1)
    assert f"{leaked} is allocated to handle {LEAKED} but nobody uses it" in found
    assert "Found 1 IPs that are allocated in IPAM but not actually in use." in found
    take(LATER)  # the report knows nothing of it

    assert ctl_with_pool("ipam", "release", f"--from-report={report}") == "Released 1 IPs successfully\n"
    assert taken_handles(store, soon) == {USED, LATER}
    assert store.get(HandleKey(LEAKED), soon) is None and store.get(HandleKey(USED), soon) is not None
    assert ctl_with_pool("ipam", "release", f"--from-report={report}") == "Released 0 IPs successfully\n"


def test_an_address_that_found_another_owner_stays(ctl_with_pool, store, soon, held, tmp_path):
    _, leaked = held
    ctl_with_pool("datastore", "migrate", "lock")
    report = tmp_path / "report.json"
    ctl_with_pool("ipam", "check", "-o", str(report), code=1)
    ctl_with_pool("datastore", "migrate", "unlock")
    ctl_with_pool("ipam", "release", f"--ip={leaked}")
    Allocator(store).assign_address(leaked, LATER, {"node": "x"}, "x", soon)
    out = ctl_with_pool("ipam", "release", f"--from-report={report}")
    assert f"Skipped {leaked}: " in out and "Released 0 IPs successfully\n" in out
    assert taken_handles(store, soon) == {USED, LATER}


def test_a_pool_is_split_and_its_addresses_stay(ctl_with_pool, store, soon, held):
    before, handles = specs(ctl_with_pool)["a"], taken_handles(store, soon)
    assert "Datastore is not locked" in ctl_with_pool("ipam", "split", "2", "--name=a", code=1)
    assert specs(ctl_with_pool) == {"a": before}
    ctl_with_pool("datastore", "migrate", "lock")
    assert "Successfully split IPPool(a), 10.1.0.0/24, into\n" in ctl_with_pool(
        "ipam", "split", "2", "--cidr=10.1.0.0/24"
    )
    parts = {"split-a-0": "10.1.0.0/25", "split-a-1": "10.1.0.128/25"}
    assert specs(ctl_with_pool) == {name: before | {"cidr": cidr} for name, cidr in parts.items()}
    assert json.loads(ctl_with_pool("get", "ippool", "split-a-1", "-o", "json"))["metadata"]["labels"] == {
        "team": "net"
    }
    assert taken_handles(store, soon) == handles
    assert "Found 0 blocks outside of any pool." in ctl_with_pool("ipam", "check", code=1)


def test_borrowed_addresses_and_strict_affinity(ctl_with_pool, store, soon, held):
    used, leaked = held
    [block] = {item.key.cidr for item in store.list(BlockList(), soon).items}
    lent = next(address for address in reversed(list(block)) if address not in (used, leaked))
    Allocator(store).assign_address(lent, LATER, {"node": "y"}, "y", soon)
    row = next(line for line in ctl_with_pool("ipam", "show", "--show-borrowed").splitlines() if str(lent) in line)
    assert row.split("|")[2].strip() == "y" and row.split("|")[4].strip() == "x"
    assert f"{lent} is borrowed by node y" in ctl_with_pool("ipam", "configure", "--strict-affinity=true", code=1)
    assert re.search(r"\| StrictAffinity +\| false", ctl_with_pool("ipam", "show", "--show-configuration"))
    ctl_with_pool("ipam", "release", f"--ip={lent}")
    ctl_with_pool("ipam", "configure", "--strict-affinity=true")
    assert re.search(r"\| StrictAffinity +\| true", ctl_with_pool("ipam", "show", "--show-configuration"))


def test_a_node_is_deleted_with_what_it_has_or_not_at_all(ctl_with_pool, space, store, soon, held):
    if space.address.startswith("kubernetes"):
        assert "use kubectl delete node" in ctl_with_pool("delete", "node", "x", code=1)
        assert taken_handles(store, soon) == {USED, LEAKED}
        assert store.get(ResourceKey("WorkloadEndpoint", "x-k8s-c-eth0", "space"), soon).value["spec"]["containerID"]
        return
    ctl_with_pool("delete", "node", "x")
    assert taken_handles(store, soon) == set() and not store.list(BlockList(), soon).items
    assert store.get(ResourceKey("WorkloadEndpoint", "x-k8s-c-eth0", "space"), soon) is None
    assert "found 0 problems" in ctl_with_pool("ipam", "check")


def test_tunnel_addresses_keep_no_pool(ctl_with_pool, store, soon):
    """Only a workload's address does, in pools of both families."""
    ctl_with_pool("create", "-f", "-", stdin=json.dumps(pool("six", "fd00:1::/120", blockSize=124)))
    allocator = Allocator(store)
    for type_ in sorted(TUNNELS):
        family = {"num6": 1} if "V6" in type_ else {"num4": 1}
        attributes = {"node": "x", "type": type_}
        allocator.assign(AssignRequest("x", f"{type_}-x", attributes, use="Tunnel", **family), soon)
    for name, family in (("a", {"num4": 1}), ("six", {"num6": 1})):
        [taken] = allocator.assign(AssignRequest("x", USED, {"node": "x"}, **family), soon)
        said = ctl_with_pool("delete", "ippool", name, code=1)
        assert "1 workload address is in use, on nodes x (1)" in said and "--force" in said
        ctl_with_pool("ipam", "release", f"--ip={taken.address}")
        assert ctl_with_pool("delete", "ippool", name) == "Successfully deleted 1 'IPPool' resource(s)\n"
