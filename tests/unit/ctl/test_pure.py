"""Settings, patches, kinds, tables: pure parts of calicoctl."""

import io
import sys

import pytest

from cni_calico.ctl.input.kinds import ALIASES, parse_kind
from cni_calico.ctl.input.patching import json_patch, merge_patch
from cni_calico.ctl.main import _say, main
from cni_calico.ctl.output.tables import render_box, render_column_parts, render_columns
from cni_calico.ctl.settings import DEFAULT_PATH, is_configured, parse_config, parse_environment, read_config
from cni_calico.errors import InvalidConfig
from cni_calico.model.access import LOCAL_PATH

HEAD = "apiVersion: projectcalico.org/v3\nkind: CalicoAPIConfig\nmetadata:\nspec:\n"


class TestSettings:
    def test_file(self, tmp_path):
        path = tmp_path / "calicoctl.cfg"
        path.write_text(
            HEAD
            + "  datastoreType: etcdv3\n  etcdEndpoints: https://a:2379, https://b:2379\n  etcdKeyFile: /k\n"
            + "  etcdCertFile: /c\n  etcdCACertFile: /ca\n  etcdUsername: u\n  etcdPassword: secret\n"
        )
        config = read_config(str(path), {"DATASTORE_TYPE": "kubernetes", "ETCD_ENDPOINTS": "http://x"})
        assert (config.type, config.etcd_endpoints) == ("etcdv3", ("https://a:2379", "https://b:2379"))
        assert (config.etcd_key_file, config.etcd_cert_file, config.etcd_ca_cert_file) == ("/k", "/c", "/ca")
        assert (config.etcd_username, config.etcd_password) == ("u", "secret")
        assert "secret" not in repr(config)

    def test_json_is_fine_too(self):
        text = '{"apiVersion":"projectcalico.org/v3","kind":"CalicoAPIConfig","spec":{"kubeconfig":"/k"}}'
        config = parse_config(text)
        assert (config.type, config.kubernetes.kubeconfig) == ("kubernetes", "/k")

    def test_nothing_configured_is_the_embedded_store(self, tmp_path):
        config = read_config(DEFAULT_PATH, {})
        assert (config.type, config.path) == ("local", LOCAL_PATH)
        assert parse_environment({}).type == parse_config(HEAD).type == ""

    def test_kubectls_kubeconfig(self, tmp_path):
        """As upstream: for Kubernetes without a kubeconfig or API endpoint, and where no datastore is named."""
        (tmp_path / ".kube").mkdir()
        kubeconfig = tmp_path / ".kube" / "config"
        home = {"HOME": str(tmp_path)}
        named = {**home, "DATASTORE_TYPE": "kubernetes"}
        assert read_config(DEFAULT_PATH, named).kubernetes.kubeconfig == ""
        assert (read_config(DEFAULT_PATH, home).type, is_configured(DEFAULT_PATH, home)) == ("local", False)
        kubeconfig.write_text("{}")
        for environ in (home, named):
            config = read_config(DEFAULT_PATH, environ)
            assert (config.type, config.kubernetes.kubeconfig) == ("kubernetes", str(kubeconfig)), environ
            assert is_configured(DEFAULT_PATH, environ)
        assert read_config(DEFAULT_PATH, {**named, "KUBECONFIG": "/k"}).kubernetes.kubeconfig == "/k"
        assert read_config(DEFAULT_PATH, {**home, "K8S_API_ENDPOINT": "https://a"}).kubernetes.kubeconfig == ""
        assert read_config(DEFAULT_PATH, {**home, "ETCD_ENDPOINTS": "http://a"}).type == "etcdv3"
        assert read_config(DEFAULT_PATH, {**home, "DATASTORE_TYPE": "local"}).type == "local"
        file = tmp_path / "calicoctl.cfg"
        file.write_text(HEAD + "  datastoreType: kubernetes\n")
        assert read_config(str(file), home).kubernetes.kubeconfig == str(kubeconfig)

    @pytest.mark.parametrize("there", ["datastore.db", "datastore.db.was-made"])
    def test_an_embedded_store_wins_over_kubectls_kubeconfig(self, tmp_path, monkeypatch, there):
        (tmp_path / ".kube").mkdir()
        (tmp_path / ".kube" / "config").write_text("{}")
        monkeypatch.setattr("cni_calico.ctl.settings.LOCAL_PATH", f"{tmp_path}/datastore.db")
        assert read_config(DEFAULT_PATH, {"HOME": str(tmp_path)}).type == "kubernetes"
        (tmp_path / there).touch()
        assert read_config(DEFAULT_PATH, {"HOME": str(tmp_path)}).type == "local"

    def test_environment(self):
        config = parse_environment(
            {"ETCD_ENDPOINTS": "http://a", "CALICO_ETCD_ENDPOINTS": "http://b,http://c", "ETCD_KEY_FILE": "/k"}
        )
        assert (config.type, config.etcd_endpoints, config.etcd_key_file) == ("etcdv3", ("http://b", "http://c"), "/k")
        assert parse_environment({"KUBECONFIG": "/k"}).type == "kubernetes"
        local = parse_environment({"KUBECONFIG": "/k", "DATASTORE_PATH": "/x.db"})
        assert (local.type, local.path) == ("local", "/x.db")
        assert parse_environment({"DATASTORE_TYPE": "kubernetes", "ETCD_ENDPOINTS": "http://a"}).type == "kubernetes"

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("kind: Other", "expected one document of kind CalicoAPIConfig"),
            ("", "expected one document of kind CalicoAPIConfig"),
            ("apiVersion: v1\nkind: CalicoAPIConfig", "apiVersion must be projectcalico.org/v3, got v1"),
            (HEAD + "  etcdKey: inline", "spec.etcdKey is not supported"),
            (HEAD + "  etcdEndpoints: [a]", "spec.etcdEndpoints must be a text"),
            (HEAD + "  calicoAPIGroup: foo/v9", "spec.calicoAPIGroup of /etc/calico/calicoctl.cfg='foo/v9': expected"),
            ("a: [", "cannot read /etc/calico/calicoctl.cfg"),
        ],
    )
    def test_errors(self, text, error):
        with pytest.raises(InvalidConfig) as caught:
            parse_config(text)
        assert error in str(caught.value)

    def test_another_api_group(self):
        group = "calicoAPIGroup: crd.projectcalico.org/v1"
        assert parse_config(f"{HEAD}  {group}\n  kubeconfig: /k\n").type == "kubernetes"
        assert parse_environment({"CALICO_API_GROUP": "crd.projectcalico.org/v1"}).type == ""
        newer = parse_environment({"CALICO_API_GROUP": "PROJECTCALICO.ORG/v3", "KUBECONFIG": "/k"})
        assert newer.kubernetes.api_group == "projectcalico.org/v3"
        named = parse_config(f"{HEAD}  calicoAPIGroup: projectcalico.org/v3\n  kubeconfig: /k\n")
        assert named.kubernetes.api_group == "projectcalico.org/v3"
        with pytest.raises(InvalidConfig, match=r"cannot use CALICO_API_GROUP='projectcalico.org'"):
            parse_environment({"CALICO_API_GROUP": "projectcalico.org", "KUBECONFIG": "/k"})

    def test_a_file_that_was_named_must_exist(self, tmp_path):
        with pytest.raises(InvalidConfig) as caught:
            read_config(str(tmp_path / "none"), {})
        assert "No such file" in str(caught.value)


class TestPatches:
    def test_the_examples_of_rfc_7386(self):
        for target, patch, result in (
            ({"a": "b"}, {"a": "c"}, {"a": "c"}),
            ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
            ({"a": "b"}, {"a": None}, {}),
            ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
            ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
            ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
            ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
            (["a", "b"], ["c", "d"], ["c", "d"]),
            ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
            ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
            ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ):
            assert merge_patch(target, patch) == result

    def test_operations_of_rfc_6902(self):
        for target, operation, result in (
            ({"a": 1}, {"op": "add", "path": "/b", "value": 2}, {"a": 1, "b": 2}),
            ({"a": [1, 2]}, {"op": "add", "path": "/a/1", "value": 9}, {"a": [1, 9, 2]}),
            ({"a": [1]}, {"op": "add", "path": "/a/-", "value": 2}, {"a": [1, 2]}),
            ({"a": 1, "b": 2}, {"op": "remove", "path": "/b"}, {"a": 1}),
            ({"a": [1, 2]}, {"op": "remove", "path": "/a/0"}, {"a": [2]}),
            ({"a": [1, 2]}, {"op": "replace", "path": "/a/0", "value": 3}, {"a": [3, 2]}),
            ({"a": {"b": 1}, "c": {}}, {"op": "move", "from": "/a/b", "path": "/c/d"}, {"a": {}, "c": {"d": 1}}),
            ({"a": {"b": 1}}, {"op": "copy", "from": "/a", "path": "/c"}, {"a": {"b": 1}, "c": {"b": 1}}),
            ({"a/b": {"~": 1}}, {"op": "replace", "path": "/a~1b/~0", "value": 2}, {"a/b": {"~": 2}}),
            ({"a": 1}, {"op": "test", "path": "/a", "value": 1}, {"a": 1}),
            ({"a": 1}, {"op": "add", "path": "", "value": {"b": 1}}, {"b": 1}),
        ):
            before = repr(target)
            assert json_patch(target, [operation]) == result
            assert repr(target) == before

    @pytest.mark.parametrize(
        "operations",
        [
            {},
            [1],
            [{"op": "remove", "path": "/b"}],
            [{"op": "remove", "path": "/l/5"}],
            [{"op": "add", "path": "/l/5", "value": 1}],
            [{"op": "add", "path": "/l/x", "value": 1}],
            [{"op": "add", "path": "/a/b/c", "value": 1}],
            [{"op": "add", "path": "/a/b", "value": 1}],
            [{"op": "add", "path": "/b"}],
            [{"op": "add", "path": "b", "value": 1}],
            [{"op": "test", "path": "/a", "value": 2}],
            [{"op": "fix", "path": "/a"}],
            [{"op": "copy", "path": "/b"}],
        ],
    )
    def test_patches_that_do_not_fit(self, operations):
        with pytest.raises(InvalidConfig):
            json_patch({"a": 1, "l": [1]}, operations)


def test_kinds_as_users_write_them():
    for text, kind in (
        ("ippool", "IPPool"),
        ("IPPools", "IPPool"),
        ("ipp", "IPPool"),
        ("nodes", "Node"),
        ("wep", "WorkloadEndpoint"),
        ("workloadendpoints", "WorkloadEndpoint"),
        ("bgppeers", "BGPPeer"),
        ("felixconfig", "FelixConfiguration"),
        ("gnp", "GlobalNetworkPolicy"),
        ("policies", "NetworkPolicy"),
        ("networkpolicies", "NetworkPolicy"),
        ("caliconodestatuses", "CalicoNodeStatus"),
        ("clusterinformations", "ClusterInformation"),
    ):
        assert parse_kind(text) == kind
    with pytest.raises(InvalidConfig):
        parse_kind("pod")
    assert len(ALIASES) > 60


def test_tables():
    assert render_columns(("A", "LONG"), [("value", "x")]) == "A       LONG   \nvalue   x      \n\n"
    box = "+-----+----+\n|  A  | B  |\n+-----+----+\n| xxx |  1 |\n| y   | 10 |\n+-----+----+\n"
    assert render_box(("A", "B"), [("xxx", "1"), ("y", "10")], right=(1,)) == box


def test_a_long_table_comes_in_parts():
    headings, rows = ("NUMBER", "SQUARE"), [(str(number), str(number**2)) for number in range(2500)]
    parts = list(render_column_parts(headings, rows))
    assert [part.count("\n") for part in parts] == [1000, 1000, 501, 1]
    assert "".join(parts) == render_columns(headings, rows)
    lines = "".join(parts).split("\n")
    assert lines[:2] == ["NUMBER   SQUARE    ", "0        0         "]
    assert lines[2500:] == ["2499     6245001   ", "", ""]


def test_what_is_printed_is_encoded_in_parts(monkeypatch):
    """Characters that the terminal's encoding lacks are escaped wherever they are."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    text = "x" * 1_048_575 + "\u2192\u2192" + "y" * 1_048_576 + "\u00e9\n"
    _say(text)
    assert written.getvalue() == text.encode("ascii", "backslashreplace")


def test_the_executables_entry_point(monkeypatch, capsys, tmp_path):
    config = tmp_path / "calicoctl.cfg"
    config.write_text(HEAD + f"  datastorePath: {tmp_path}/none.db\n")
    monkeypatch.setattr("sys.argv", ["calicoctl", "get", "nodes", f"--config={config}"])
    assert main() == 1
    assert "does not exist yet" in capsys.readouterr().err
