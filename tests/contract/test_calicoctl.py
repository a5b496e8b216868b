"""calicoctl over every datastore that it can be pointed at: the same commands, the same answers."""

import io
import json
import re
from pathlib import Path

import pytest

from cni_calico.ctl.main import run

VECTORS = Path(__file__).parents[1] / "golden" / "vectors"
pytestmark = pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n"


def config_of(address):
    kind, _, rest = address.partition(":")
    if kind == "local":
        return f"  datastoreType: local\n  datastorePath: {rest}\n"
    if kind == "etcd":
        return f"  datastoreType: etcdv3\n  etcdEndpoints: {rest}\n"
    url, ca = rest.split(" ")
    return f"  datastoreType: kubernetes\n  k8sAPIEndpoint: {url}\n  k8sAPIToken: admin-token\n  k8sCAFile: {ca}\n"


@pytest.fixture
def calicoctl(space, tmp_path, capsys, monkeypatch):
    config = tmp_path / "calicoctl.cfg"
    config.write_text(HEAD + config_of(space.address))

    def call(*argv, stdin="", code=0):
        monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        capsys.readouterr()
        got = run(["-c", str(config), *argv], {})
        out, err = capsys.readouterr()
        assert got == code, (out, err)
        return out + err if code else out

    return call


def pool(name, cidr, **spec):
    metadata = {"name": name, "labels": {"team": "net"}, "annotations": {"note": "mine"}}
    return {"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": metadata, "spec": {"cidr": cidr} | spec}


def test_resources(calicoctl):
    text = json.dumps([pool("a", "10.1.0.0/16"), pool("b", "fd00::/112", natOutgoing=True)])
    assert calicoctl("create", "-f", "-", stdin=text) == "Successfully created 2 'IPPool' resource(s)\n"
    assert "resource already exists: IPPool(a)" in calicoctl("create", "-f", "-", stdin=text, code=1)
    assert calicoctl("get", "ippool", "-o", "name") == "ippool/a\nippool/b\n"
    stored = json.loads(calicoctl("get", "ippool", "a", "-o", "json"))
    assert (stored["metadata"]["labels"], stored["metadata"]["annotations"]) == ({"team": "net"}, {"note": "mine"})
    assert stored["spec"]["blockSize"] == 26
    calicoctl("patch", "ippool", "a", "-p", '{"spec":{"disabled":true}}')
    assert "update conflict: IPPool(a)" in calicoctl("apply", "-f", "-", stdin=json.dumps(stored), code=1)
    del stored["metadata"]["resourceVersion"]
    calicoctl("apply", "-f", "-", stdin=json.dumps(stored))
    after = json.loads(calicoctl("get", "ippool", "a", "-o", "json"))
    assert after["spec"] == stored["spec"]
    assert after["metadata"]["uid"] == stored["metadata"]["uid"]
    calicoctl("label", "ippool", "a", "team=other", "--overwrite")
    assert json.loads(calicoctl("get", "ippool", "a", "-o", "json"))["metadata"]["labels"] == {"team": "other"}
    assert calicoctl("delete", "ippool", "a", "b") == "Successfully deleted 2 'IPPool' resource(s)\n"
    assert calicoctl("get", "ippool", "a", code=1) == "resource does not exist: IPPool(a) with error: <nil>\n"
    assert calicoctl("get", "tier", "-o", "name").split() == ["tier/kube-admin", "tier/default", "tier/kube-baseline"]


def test_moving_in_from_upstreams_etcd(calicoctl, space):
    kvs = json.loads((VECTORS / "etcd-dump-07-add-borrowed-ip.json").read_text())["kvs"]
    body = {"format": "cni-calico/datastore-export/v1", "records": {path: kv["value"] for path, kv in kvs.items()}}
    out = calicoctl("datastore", "migrate", "import", "-f", "-", stdin=json.dumps(body))
    derived = 9 if space.address.startswith("kubernetes") else 0  # nodes, endpoints and profiles
    assert f"Imported {len(kvs) - derived} records; the datastore is locked." in out
    assert out.count("Skipped ") == derived
    show = calicoctl("ipam", "show", "--show-blocks")
    assert "10.65.141.64/26" in show
    check = calicoctl("ipam", "check", "--show-problem-ips", code=1 if derived else 0)
    assert "IPAM blocks record 6 allocations." in check
    assert f"Found {6 if derived else 0} IPs that are allocated in IPAM but not actually in use." in check
    calicoctl("ipam", "configure", "--max-blocks-per-host=7")
    assert re.search(r"\| MaxBlocksPerHost +\| 7 +\|", calicoctl("ipam", "show", "--show-configuration"))
    assert "Successfully released" in calicoctl("ipam", "release", "--ip=10.65.248.133")
    assert "is not assigned" in calicoctl("ipam", "release", "--ip=10.65.248.133", code=1)
    calicoctl("datastore", "migrate", "unlock")
    assert "workload addresses are in use, on nodes " in calicoctl("delete", "ippool", "pool4", code=1)
    calicoctl("delete", "ippool", "pool4", "--force")
    unowned = calicoctl("ipam", "check", code=1)
    assert "10.65.141.64/26 of nobody is in no pool" in unowned
    assert "affinity=host:vm: 1 allocated" in unowned  # the IPv6 block stays the node's
    assert "the datastore holds pools or addresses" in calicoctl(
        "datastore", "migrate", "import", "-f", "-", stdin=json.dumps(body), code=1
    )
