"""Moving all data: lock, export, import, unlock; and the version."""

import json
import sqlite3
from contextlib import closing

from cni_calico import faults
from tests.unit.ctl.conftest import VECTORS, Calicoctl

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
    assert "is not the key of a record" in refused(head + '{"/other": {}}}')
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


def test_an_import_that_was_interrupted_is_repeated(cluster, tmp_path, capsys, monkeypatch):
    """Until it is finished the datastore cannot be used, and no other export goes into it."""
    cluster.ok("datastore", "migrate", "lock")
    text = cluster.ok("datastore", "migrate", "export")
    other = Calicoctl(tmp_path / "other.db", capsys, monkeypatch)
    monkeypatch.setattr("cni_calico.ctl.datastore.restore._CHUNK", 3)
    faults.install(faults.FaultPlan("local.commit:before:4:fail"))
    try:
        assert "injected fault" in other.fails("datastore", "migrate", "import", "-f", "-", stdin=text)
    finally:
        faults.install(None)
    assert "an import of it was not finished" in other.fails("datastore", "migrate", "unlock")
    another = text.replace("v3.32", "v3.31") + "\n"
    refused = other.fails("datastore", "migrate", "import", "-f", "-", stdin=another)
    assert "from another import that was not finished" in refused
    other.ok("datastore", "migrate", "import", "-f", "-", stdin=text)
    assert "found 0 problems" in other.ok("ipam", "check")
    other.ok("datastore", "migrate", "unlock")
    again = cluster.ok("datastore", "migrate", "export")
    other.ok("datastore", "migrate", "lock")
    assert json.loads(other.ok("datastore", "migrate", "export"))["records"] == json.loads(again)["records"]


def test_an_export_without_the_clusters_information(calicoctl):
    body = {"format": "cni-calico/datastore-export/v1", "records": {}}
    calicoctl.ok("datastore", "migrate", "import", "-f", "-", stdin=json.dumps(body))
    assert calicoctl.read("clusterinfo", "default")["spec"]["datastoreReady"] is False
    calicoctl.ok("datastore", "migrate", "unlock")


def test_what_is_no_record_at_all_stops_an_export(cluster):
    """A listing leaves it out; an export without it would give its addresses out again."""
    cluster.ok("datastore", "migrate", "lock")
    path = "/calico/ipam/v2/handle/k8s-pod-network.damaged"
    cluster.write({path: {"block": {}, "deleted": False}})
    query = "UPDATE change SET value = 'nonsense' WHERE id = (SELECT id FROM head WHERE key = ?)"
    with closing(sqlite3.connect(cluster.path)) as connection:
        assert connection.execute(query, (path,)).rowcount == 1
        connection.commit()
    assert "k8s-pod-network.damaged" in cluster.fails("datastore", "migrate", "export")
