"""calicoctl as a user runs it, over an embedded store in a temporary directory."""

import io
import json
import pathlib
from dataclasses import dataclass

import pytest

from cni_calico.ctl.main import run
from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.keys import ResourceKey, etcd_path, parse_path

VECTORS = pathlib.Path(__file__).parents[2] / "golden" / "vectors"


@dataclass
class Result:
    code: int
    out: str
    err: str


class Calicoctl:
    def __init__(self, path, capsys, monkeypatch):
        self.path = str(path)
        self.config = path.with_suffix(".cfg")
        self.config.write_text(
            "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\n"
            f"spec:\n  datastoreType: local\n  datastorePath: {path}\n"
        )
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *argv, stdin=""):
        self._monkeypatch.setattr("sys.stdin", io.StringIO(stdin))
        self._capsys.readouterr()
        code = run(["-c", str(self.config), *argv], {})
        out, err = self._capsys.readouterr()
        return Result(code, out, err)

    def ok(self, *argv, stdin=""):
        result = self(*argv, stdin=stdin)
        assert result.code == 0, result
        return result.out

    def fails(self, *argv, stdin=""):
        result = self(*argv, stdin=stdin)
        assert result.code == 1, result
        return result.err

    def finds(self, *argv):
        """What a check prints that found problems."""
        result = self(*argv)
        assert (result.code, result.err) == (1, ""), result
        return result.out

    def apply(self, document):
        return self.ok("apply", "-f", "-", stdin=json.dumps(document))

    def read(self, kind, name, *argv):
        return json.loads(self.ok("get", kind, name, "-o", "json", *argv))

    def store(self):
        return LocalStore(self.path)

    def write(self, records):
        """Store documents under their etcd keys, as somebody else would."""
        store = self.store()
        try:
            keys = {parse_path(path): document for path, document in records.items()}
            writes = [Write.remove(key) if value is None else Write.put(key, value) for key, value in keys.items()]
            store.commit(writes, Deadline.after(10))
        finally:
            store.close()

    def stored(self, path):
        store = self.store()
        try:
            found = store.get(parse_path(path), Deadline.after(10))
            return None if found is None else found.value
        finally:
            store.close()


@pytest.fixture
def calicoctl(tmp_path, capsys, monkeypatch):
    return Calicoctl(tmp_path / "datastore.db", capsys, monkeypatch)


@pytest.fixture
def cluster(calicoctl):
    """The store after several ADDs, as upstream left it."""
    kvs = json.loads((VECTORS / "etcd-dump-07-add-borrowed-ip.json").read_text())["kvs"]
    calicoctl.write({path: kv["value"] for path, kv in kvs.items()})
    return calicoctl


def pool(name, cidr, **spec):
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": "IPPool",
        "metadata": {"name": name},
        "spec": {"cidr": cidr} | spec,
    }


def resource(kind, name, spec=None, **metadata):
    return {
        "apiVersion": "projectcalico.org/v3",
        "kind": kind,
        "metadata": {"name": name} | metadata,
        "spec": spec or {},
    }


def stored(kind, name, spec, **metadata):
    """As a Calicoctl's ``write`` takes it."""
    document = resource(kind, name, spec, uid="u", creationTimestamp="2026-11-20T12:06:00Z", **metadata)
    return {etcd_path(ResourceKey(kind, name, metadata.get("namespace", ""))): document}
