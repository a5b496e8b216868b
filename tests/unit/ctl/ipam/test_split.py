"""``calicoctl ipam split``: the same addresses, in more pools."""

import json
import re

import pytest

from tests.unit.ctl.conftest import pool


@pytest.fixture
def locked(calicoctl):
    calicoctl.apply(pool("a", "10.1.0.0/24", nodeSelector="has(x)", natOutgoing=True))
    calicoctl.ok("datastore", "migrate", "lock")
    return calicoctl


def specs(calicoctl):
    items = json.loads(calicoctl.ok("get", "ippool", "-o", "json"))["items"]
    return {item["metadata"]["name"]: item["spec"] for item in items}


@pytest.mark.parametrize("which", ["--name=a", "--cidr=10.1.0.0/24", "--cidr=10.1.0.9/24"])
def test_split(locked, which):
    before = specs(locked)["a"]
    out = locked.ok("ipam", "split", "4", which)
    assert "Successfully split IPPool(a), 10.1.0.0/24, into\n  split-a-0: 10.1.0.0/26\n" in out
    networks = ["10.1.0.0/26", "10.1.0.64/26", "10.1.0.128/26", "10.1.0.192/26"]
    assert specs(locked) == {f"split-a-{i}": before | {"cidr": cidr} for i, cidr in enumerate(networks)}
    uids = {locked.read("ippool", name)["metadata"]["uid"] for name in specs(locked)}
    assert len(uids) == 4


def test_addresses_stay(cluster):
    """The store of a cluster with allocations."""
    cluster.ok("datastore", "migrate", "lock")
    before = cluster.ok("ipam", "check", "--show-all-ips")
    cluster.ok("ipam", "split", "2", "--name=pool4")
    after = cluster.ok("ipam", "check", "--show-all-ips")
    assert "  10.65.0.0/17\n  10.65.128.0/17\n" in after
    pools = re.compile(r"Found \d active IP pools.\n|  \S+/1[67]\n")
    assert pools.sub("", after) == pools.sub("", before)
    assert "Found 0 blocks outside of any pool." in after


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["3", "--name=a"], "cannot split a into 3: must be a power of two"),
        (["1", "--name=a"], "must be a power of two, 2 or more"),
        (["8", "--name=a"], "10.1.0.0/24 has 4 blocks of /26"),
        (["2"], "give either --name or --cidr"),
        (["2", "--name=a", "--cidr=10.1.0.0/24"], "give either --name or --cidr"),
        (["2", "--name=b"], "resource does not exist: IPPool(b)"),
        (["2", "--cidr=10.9.0.0/24"], "no pool has the CIDR 10.9.0.0/24"),
        (["2", "--cidr=10.1.0.0"], "--cidr 10.1.0.0 is not a CIDR"),
        (["two", "--name=a"], "invalid int value: 'two'"),
    ],
)
def test_refused(locked, arguments, said):
    before = specs(locked)
    assert said in locked.fails("ipam", "split", *arguments)
    assert specs(locked) == before


def test_only_while_the_datastore_is_locked(calicoctl):
    calicoctl.apply(pool("a", "10.1.0.0/24"))
    assert "Datastore is not locked" in calicoctl.fails("ipam", "split", "2", "--name=a")
    assert list(specs(calicoctl)) == ["a"]


def test_an_interrupted_one_is_repeated(locked, monkeypatch):
    """Where a commit has one member, as on Kubernetes."""
    from cni_calico.datastore.local.store import LocalStore
    from cni_calico.errors import DatastoreUnavailable

    monkeypatch.setattr(LocalStore, "max_commit", 1)
    real, commits = LocalStore.commit, []

    def commit(self, writes, deadline):
        commits.append(writes)
        if len(commits) == 2:
            raise DatastoreUnavailable("cannot write: gone")
        return real(self, writes, deadline)

    monkeypatch.setattr(LocalStore, "commit", commit)
    assert "cannot write: gone" in locked.fails("ipam", "split", "2", "--name=a")
    assert list(specs(locked)) == ["a", "split-a-0"]
    locked.ok("ipam", "split", "2", "--name=a")
    assert list(specs(locked)) == ["split-a-0", "split-a-1"]
