"""Moving all data: lock, export, import, unlock; and the version."""

import json

from .conftest import VECTORS, Calicoctl

RESOURCES = "/calico/resources/v3/projectcalico.org/"


def test_everything_arrives(cluster, tmp_path, capsys, monkeypatch):
    assert "Datastore is not locked" in cluster.fails("datastore", "migrate", "export")
    cluster.ok("datastore", "migrate", "lock")
    exported = tmp_path / "export.json"
    golden = json.loads((VECTORS / "etcd-dump-07-add-borrowed-ip.json").read_text())["kvs"]
    out = cluster.ok("datastore", "migrate", "export", "-o", str(exported))
    assert out == f"Exported {len(golden)} records to {exported}\n"
    other = Calicoctl(tmp_path / "other.db", capsys, monkeypatch)
    assert f"Imported {len(golden)} records" in other.ok("datastore", "migrate", "import", "-f", str(exported))
    for path, kv in golden.items():
        document = kv["value"]
        if path.endswith("clusterinformations/default"):
            document["spec"]["datastoreReady"] = False
        assert other.stored(path) == document, path
    assert other.ok("datastore", "migrate", "unlock") == "Datastore unlocked.\n"
    assert other.read("clusterinfo", "default")["spec"]["datastoreReady"] is True
    again = other.fails("datastore", "migrate", "import", "-f", str(exported))
    assert "holds pools or addresses already" in again


def test_through_a_pipe(cluster, tmp_path, capsys, monkeypatch):
    cluster.ok("datastore", "migrate", "lock")
    text = cluster.ok("datastore", "migrate", "export")
    other = Calicoctl(tmp_path / "other.db", capsys, monkeypatch)
    other.ok("datastore", "migrate", "import", "-f", "-", stdin=text)
    assert "found 0 problems" in other.ok("ipam", "check")


def test_what_cannot_be_imported(calicoctl):
    def refused(text):
        return calicoctl.fails("datastore", "migrate", "import", "-f", "-", stdin=text)

    head = '{"format": "cni-calico/datastore-export/v1", "records": '
    assert "cannot import -" in refused("{")
    assert "was not written by" in refused("{}")
    assert "is no key of a record" in refused(head + '{"/other": {}}}')
    assert "cannot read IPPool x: spec.cidr" in refused(head + f'{{"{RESOURCES}ippools/x": {{}}}}}}')


def test_corrupt_records_stop_an_export(cluster):
    cluster.ok("datastore", "migrate", "lock")
    cluster.write({"/calico/ipam/v2/handle/bad": {"block": 5}})
    assert "cannot read handle bad" in cluster.fails("datastore", "migrate", "export")


def test_version(cluster):
    out = cluster.ok("version")
    assert out.splitlines()[0].startswith("Client Version:    ")
    assert "Cluster Type:      unknown" in out
    assert cluster.ok("--version") == out
