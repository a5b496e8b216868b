"""get, create, replace, apply, delete, patch, label over a real store."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from cni_calico.ctl.input.kinds import ALIASES
from cni_calico.datastore.interface import Write
from cni_calico.datastore.local.store import LocalStore
from cni_calico.deadline import Deadline
from cni_calico.model.keys import CLUSTER_KINDS, NAMESPACED_KINDS, ResourceKey
from tests.unit.ctl.conftest import VECTORS, Calicoctl, pool, resource

NEEDING_A_SPEC = {"WorkloadEndpoint", "IPPool", "BGPPeer"}


def test_a_first_write_gives_the_datastore_what_upstream_gives_it(calicoctl):
    assert calicoctl.ok("apply", "-f", str(VECTORS / "pools.yaml")) == "Successfully applied 3 resource(s)\n"
    golden = json.loads((VECTORS / "etcd-dump-00-init.json").read_text())["kvs"]
    for path, kv in golden.items():
        ours, theirs = calicoctl.stored(path), kv["value"]
        for document in (ours, theirs):
            assert document["metadata"].pop("uid")
            assert document["metadata"].pop("creationTimestamp")
            document["spec"].pop("clusterGUID", None)
            # upstream leaves out what is false, and writes an empty status for some kinds
            document["spec"] = {k: v for k, v in document["spec"].items() if v is not False}
            document.pop("status", None)
        assert ours == theirs, path


class TestGet:
    @pytest.fixture(autouse=True)
    def _resources(self, calicoctl):
        calicoctl.apply(
            {"kind": "List", "items": [pool("b", "10.2.0.0/16", natOutgoing=True), pool("a", "10.1.0.0/16")]}
        )

    def test_tables(self, calicoctl):
        assert calicoctl.ok("get", "ippools") == (
            "NAME   CIDR          SELECTOR   \na      10.1.0.0/16   all()      \nb      10.2.0.0/16   all()      \n\n"
        )
        wide = calicoctl.ok("get", "ipp", "b", "-o", "wide").splitlines()
        assert wide[0].split() == [
            "NAME",
            "CIDR",
            "NAT",
            "IPIPMODE",
            "VXLANMODE",
            "DISABLED",
            "DISABLEBGPEXPORT",
            "SELECTOR",
            "ASSIGNMENTMODE",
        ]
        assert wide[1].split()[1:] == ["10.2.0.0/16", "true", "Never", "Never", "false", "false", "all()", "Automatic"]
        assert calicoctl.ok("get", "pool", "-o", "custom-columns=CIDR,name").splitlines()[1].split() == [
            "10.1.0.0/16",
            "a",
        ]
        assert calicoctl.ok("get", "ippool", "-o", "name") == "ippool/a\nippool/b\n"
        assert calicoctl.ok("get", "bgppeer") == "NAME   PEERIP   NODE   ASN   \n\n"

    def test_machine_readable(self, calicoctl):
        one = yaml.safe_load(calicoctl.ok("get", "ippool", "a", "-o", "yaml"))
        assert one == calicoctl.read("ippool", "a")
        assert one["metadata"]["resourceVersion"].isdecimal()
        listed = json.loads(calicoctl.ok("get", "ippool", "-o", "json"))
        assert (listed["kind"], listed["apiVersion"]) == ("IPPoolList", "projectcalico.org/v3")
        assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b"]
        assert listed["items"][0] == one
        several = json.loads(calicoctl.ok("get", "ippool", "b", "a", "-o", "json"))
        assert [item["metadata"]["name"] for item in several] == ["b", "a"]
        exported = calicoctl.read("ippool", "a", "--export")
        assert exported["metadata"] == {"name": "a"}

    def test_what_is_printed_can_be_applied(self, calicoctl):
        for output in ("yaml", "json"):
            text = calicoctl.ok("get", "ippool", "-o", output)
            assert calicoctl.ok("apply", "-f", "-", stdin=text) == "Successfully applied 2 'IPPool' resource(s)\n"

    def test_by_file(self, calicoctl):
        out = calicoctl.ok("get", "-f", "-", "-o", "name", stdin=json.dumps(pool("b", "0.0.0.0/0")))
        assert out == "ippool/b\n"

    def test_errors(self, calicoctl):
        assert calicoctl.fails("get", "ippool", "foo") == "resource does not exist: IPPool(foo) with error: <nil>\n"
        assert "resource type 'foo': it is not supported" in calicoctl.fails("get", "foo")
        assert "is not supported" in calicoctl.fails("get", "ippool", "-o", 'go-template={{printf "%s" .}}')
        assert "unrecognized output format 'xml'" in calicoctl.fails("get", "ippool", "-o", "xml")
        assert "has no such column" in calicoctl.fails("get", "ippool", "-o", "custom-columns=ASN")
        assert "name a kind" in calicoctl.fails("get")

    def test_the_store_is_not_made_by_looking(self, tmp_path, capsys, monkeypatch):
        other = Calicoctl(tmp_path / "other.db", capsys, monkeypatch)
        assert "does not exist yet" in other.fails("get", "nodes")
        assert not (tmp_path / "other.db").exists()


class TestNamespaces:
    @pytest.fixture(autouse=True)
    def _sets(self, calicoctl):
        calicoctl.apply(resource("NetworkSet", "s", {"nets": ["10.0.0.0/8"]}, namespace="one"))
        calicoctl.ok("apply", "-n", "two", "-f", "-", stdin=json.dumps(resource("NetworkSet", "s")))
        calicoctl.apply(resource("NetworkSet", "s"))

    def test_where_resources_go_and_are_found(self, calicoctl):
        for namespace in ("one", "two", "default"):
            assert calicoctl.read("networkset", "s", "-n", namespace)["metadata"]["namespace"] == namespace
        assert calicoctl.read("networksets", "s")["metadata"]["namespace"] == "default"
        for flag in ("-a", "-A", "--all-namespaces"):
            lines = calicoctl.ok("get", "networkset", flag, "-o", "wide").splitlines()
            assert [line.split() for line in lines[:3]] == [
                ["NAMESPACE", "NAME", "NETS"],
                ["default", "s"],
                ["one", "s", "10.0.0.0/8"],
            ]
        assert calicoctl.fails("get", "networkset", "t", "-n", "one") == (
            "resource does not exist: NetworkSet(one/t) with error: <nil>\n"
        )

    def test_cluster_kinds_take_no_namespace(self, calicoctl):
        assert "Tier is not a namespaced resource" in calicoctl.fails(
            "apply", "-f", "-", stdin=json.dumps(resource("Tier", "t", {"order": 1}, namespace="ns"))
        )


class TestWriting:
    def test_create(self, calicoctl):
        text = json.dumps(pool("a", "10.1.0.0/16"))
        assert calicoctl.ok("create", "-f", "-", stdin=text) == "Successfully created 1 'IPPool' resource(s)\n"
        assert calicoctl.fails("create", "-f", "-", stdin=text) == (
            "failed to create 'IPPool' resource: [resource already exists: IPPool(a)]\n"
        )
        assert calicoctl.ok("create", "--skip-exists", "-f", "-", stdin=text) == "Skipped 1 'IPPool' resource(s)\n"

    def test_replace_needs_something_to_replace(self, calicoctl):
        text = json.dumps(pool("a", "10.1.0.0/16"))
        assert calicoctl.fails("replace", "-f", "-", stdin=text) == (
            "failed to replace 'IPPool' resource: [resource does not exist: IPPool(a) with error: <nil>]\n"
        )
        calicoctl.ok("apply", "-f", "-", stdin=text)
        assert calicoctl.ok("replace", "-f", "-", stdin=text) == "Successfully replaced 1 'IPPool' resource(s)\n"

    def test_a_batch_says_how_far_it_came(self, calicoctl):
        both = json.dumps([pool("a", "10.1.0.0/16"), pool("bad", "x")])
        result = calicoctl("apply", "-f", "-", stdin=both)
        assert result.code == 1
        assert result.out == "Partial success: applied the first 1 out of 2 'IPPool' resources:\n"
        assert result.err.startswith('hit error(s): [error with field IPPool.spec.cidr = "x"')
        other = json.dumps([pool("bad", "x"), resource("Tier", "t", {"order": "x"})])
        assert calicoctl.fails("apply", "-f", "-", stdin=other).startswith("failed to apply any resources: [error with")

    def test_identity_stays_and_a_replacement_replaces(self, calicoctl):
        calicoctl.apply(resource("BGPPeer", "p", {"peerIP": "10.0.0.1", "asNumber": 1}, labels={"a": "b"}))
        before = calicoctl.read("bgppeer", "p")
        calicoctl.apply(resource("BGPPeer", "p", {"peerIP": "10.0.0.2", "asNumber": 1}))
        after = calicoctl.read("bgppeer", "p")
        assert after["spec"] == {"peerIP": "10.0.0.2", "asNumber": 1}
        assert "labels" not in after["metadata"]
        for field in ("uid", "creationTimestamp"):
            assert after["metadata"][field] == before["metadata"][field]
        assert int(after["metadata"]["resourceVersion"]) > int(before["metadata"]["resourceVersion"])

    def test_resource_version_is_a_comparison_and_never_stored(self, calicoctl):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        stored = calicoctl.read("ippool", "a")
        calicoctl.apply(stored)
        assert "resourceVersion" not in calicoctl.stored("/calico/resources/v3/projectcalico.org/ippools/a")["metadata"]
        for command in ("apply", "replace"):
            assert "update conflict: IPPool(a)" in calicoctl.fails(command, "-f", "-", stdin=json.dumps(stored))
        del stored["metadata"]["resourceVersion"]
        stored["metadata"]["uid"] = "00000000-0000-0000-0000-000000000000"
        assert "update conflict" in calicoctl.fails("apply", "-f", "-", stdin=json.dumps(stored))
        new = pool("new", "10.9.0.0/16")
        new["metadata"]["resourceVersion"] = "5"
        assert "must not be set" in calicoctl.fails("create", "-f", "-", stdin=json.dumps(new))

    def test_status_and_unknown_fields_stay(self, calicoctl):
        path = "/calico/resources/v3/projectcalico.org/tiers/t"
        calicoctl.write({path: resource("Tier", "t", {"order": 1}) | {"status": {"later": 1}}})
        document = json.dumps(resource("Tier", "t", {"order": 2, "later": {"x": 1}}))
        calicoctl.ok("apply", "--allow-unknown-fields", "-f", "-", stdin=document)
        assert calicoctl.stored(path)["status"] == {"later": 1}
        assert calicoctl.stored(path)["spec"] == {"order": 2, "later": {"x": 1}, "defaultAction": "Deny"}
        calicoctl.ok("label", "tier", "t", "a=b")  # what somebody's newer version stored is no reason to refuse

    def test_pools(self, calicoctl):
        calicoctl.apply(pool("a", "10.0.0.0/16"))
        assert calicoctl.read("ippool", "a")["spec"]["blockSize"] == 26
        overlap = calicoctl.fails("apply", "-f", "-", stdin=json.dumps(pool("b", "10.0.128.0/17")))
        assert "overlaps with IPPool a, whose cidr is 10.0.0.0/16" in overlap
        moved = calicoctl.fails("apply", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
        assert "cannot be changed (it is 10.0.0.0/16)" in moved
        assert calicoctl.read("ippool", "a")["spec"]["cidr"] == "10.0.0.0/16"

    def test_warnings(self, calicoctl):
        result = calicoctl(
            "apply",
            "--allow-unknown-fields",
            "-f",
            "-",
            stdin=json.dumps(resource("FelixConfiguration", "default", {"helth": 1})),
        )
        assert (result.code, result.out) == (0, "Successfully applied 1 'FelixConfiguration' resource(s)\n")
        assert result.err.startswith("Warning: FelixConfiguration.spec.helth = 1")

    def test_somebody_else_wrote_meanwhile(self, calicoctl, monkeypatch):
        calicoctl.apply(resource("Tier", "t", {"order": 1}))
        real, raced = LocalStore.commit, []

        def commit(self, writes, deadline):
            if not raced and writes[0].key == ResourceKey("Tier", "t"):
                raced.append(1)
                found = self.get(writes[0].key, deadline)
                document = dict(found.value) | {"spec": {"order": 1, "defaultAction": "Pass"}}
                real(self, [Write.update(found, document)], Deadline.after(10))
            return real(self, writes, deadline)

        monkeypatch.setattr(LocalStore, "commit", commit)
        calicoctl.ok("patch", "tier", "t", "-p", '{"spec":{"order":2}}')
        assert calicoctl.read("tier", "t")["spec"] == {"order": 2, "defaultAction": "Pass"}

    @pytest.mark.parametrize(
        "kind",
        sorted(
            {*CLUSTER_KINDS, *NAMESPACED_KINDS}
            - {"WorkloadEndpoint", "IPPool", "BGPPeer", "HostEndpoint", "ClusterInformation"}
        ),
    )
    def test_every_kind_can_be_written_read_and_deleted(self, calicoctl, kind):
        calicoctl.apply(resource(kind, "x"))
        alias = max((name for name, meant in ALIASES.items() if meant == kind), key=lambda name: (-len(name), name))
        assert calicoctl.read(alias, "x")["kind"] == kind
        assert "x" in calicoctl.ok("get", alias, "-o", "wide")
        assert calicoctl.ok("delete", alias, "x") == f"Successfully deleted 1 '{kind}' resource(s)\n"


class TestStoredByOthers:
    PATH = "/calico/resources/v3/projectcalico.org/tiers/"

    def test_kind_and_name_are_shown_where_they_were_not_stored(self, calicoctl):
        calicoctl.write({self.PATH + "bare": {}})
        shown = calicoctl.read("tier", "bare")
        assert (shown["kind"], shown["apiVersion"], shown["metadata"]["name"]) == (
            "Tier",
            "projectcalico.org/v3",
            "bare",
        )
        assert "bare" in calicoctl.ok("get", "tier")

    @pytest.mark.parametrize(
        "damage", [{"metadata": []}, {"spec": "x"}, {"metadata": {"name": "other"}}, {"kind": "Pod"}]
    )
    def test_what_cannot_be_read_is_named_and_never_overwritten(self, calicoctl, damage):
        calicoctl.apply(resource("Tier", "good"))
        calicoctl.write({self.PATH + "bad": damage})
        result = calicoctl("get", "tier", "-o", "name")
        assert "tier/good\n" in result.out
        assert result.err.startswith("Left out: cannot read Tier bad: ")
        assert "cannot read Tier bad" in calicoctl.fails("get", "tier", "bad")
        assert "cannot read Tier bad" in calicoctl.fails("apply", "-f", "-", stdin=json.dumps(resource("Tier", "bad")))
        assert "cannot read Tier bad" in calicoctl.fails("patch", "tier", "bad", "-p", "{}")
        assert calicoctl.stored(self.PATH + "bad") == damage
        calicoctl.ok("delete", "tier", "bad")


class TestFiles:
    def test_directories(self, calicoctl, tmp_path):
        (tmp_path / "d" / "sub").mkdir(parents=True)
        (tmp_path / "d" / "1.yaml").write_text(yaml.safe_dump_all([pool("a", "10.1.0.0/16"), pool("b", "10.2.0.0/16")]))
        (tmp_path / "d" / "2.json").write_text(json.dumps(pool("c", "10.3.0.0/16")))
        (tmp_path / "d" / "notes.txt").write_text("not for us")
        (tmp_path / "d" / "sub" / "3.yml").write_text(yaml.safe_dump(pool("d", "10.4.0.0/16")))
        assert calicoctl.ok("apply", "-f", str(tmp_path / "d")).startswith("Successfully applied 3")
        assert calicoctl.ok("apply", "-R", "-f", str(tmp_path / "d")).startswith("Successfully applied 4")

    def test_empty(self, calicoctl):
        assert "No resources specified" in calicoctl.fails("apply", "-f", "-", stdin="---\n---\n")
        assert calicoctl.ok("apply", "--skip-empty", "-f", "-", stdin="") == "No resources specified\n"

    @pytest.mark.parametrize(
        ("text", "error"),
        [
            ("a: [", "cannot read standard input"),
            ("just text", "expected resources, got 'just text'"),
            ("kind: IPPool\nkind: Node", "key 'kind' is given twice"),
            ("metadata: {labels: {1: a}}", "metadata.labels has 1 as a key: quote it"),
            ("spec: {x: .nan}", "spec.x is nan, which JSON cannot express"),
            ("apiVersion: v1\nkind: Pod\nmetadata: {name: x}", "unknown resource type (Kind: Pod, Version: v1)"),
            ("apiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {}", "metadata.name must be given"),
        ],
    )
    def test_what_is_not_a_resource(self, calicoctl, text, error):
        assert error in calicoctl.fails("apply", "-f", "-", stdin=text)

    def test_dates_stay_texts(self, calicoctl):
        text = "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {name: t}\nspec: {since: 2026-11-20T12:00:00Z}"
        calicoctl.ok("apply", "--allow-unknown-fields", "-f", "-", stdin=text)
        assert calicoctl.read("tier", "t")["spec"]["since"] == "2026-11-20T12:00:00Z"


class TestDelete:
    def test_by_name_and_by_file(self, calicoctl):
        calicoctl.apply([pool("a", "10.1.0.0/16"), pool("b", "10.2.0.0/16"), pool("c", "10.3.0.0/16")])
        assert calicoctl.ok("delete", "ippool", "a", "b") == "Successfully deleted 2 'IPPool' resource(s)\n"
        text = json.dumps(pool("c", "10.3.0.0/16"))
        assert calicoctl.ok("delete", "-f", "-", stdin=text) == "Successfully deleted 1 'IPPool' resource(s)\n"
        assert calicoctl.fails("delete", "ippool", "a") == (
            "Failed to delete 'IPPool' resource: resource does not exist: IPPool(a) with error: <nil>\n"
        )
        assert calicoctl.ok("delete", "--skip-not-exists", "ippool", "a") == "Skipped 1 'IPPool' resource(s)\n"
        assert "name a kind" in calicoctl.fails("delete", "ippool")


class TestPatchAndLabel:
    @pytest.fixture(autouse=True)
    def _node(self, calicoctl):
        calicoctl.apply(resource("Node", "n", {"bgp": {"asNumber": 1}}, labels={"zone": "a"}))

    def test_patches(self, calicoctl):
        out = calicoctl.ok("patch", "node", "n", "-p", '{"spec":{"bgp":{"ipv4Address":"10.0.0.1/24"}}}')
        assert out == "Successfully patched 1 'Node' resource\n"
        assert calicoctl.read("node", "n")["spec"]["bgp"] == {"asNumber": 1, "ipv4Address": "10.0.0.1/24"}
        calicoctl.ok("patch", "node", "n", "-t", "merge", "-p", "spec: {bgp: {asNumber: null}}")
        assert calicoctl.read("node", "n")["spec"]["bgp"] == {"ipv4Address": "10.0.0.1/24"}
        calicoctl.ok("patch", "node", "n", "-t", "json", "-p", '[{"op":"remove","path":"/spec/bgp"}]')
        assert calicoctl.read("node", "n")["spec"] == {}

    def test_patches_that_do_not_fit(self, calicoctl):
        assert "must be an AS number" in calicoctl.fails("patch", "node", "n", "-p", '{"spec":{"bgp":{"asNumber":-1}}}')
        assert "its kind and name must stay" in calicoctl.fails("patch", "node", "n", "-p", '{"metadata":{"name":"m"}}')
        assert "resource does not exist: Node(m)" in calicoctl.fails("patch", "node", "m", "-p", "{}")
        assert "expected a JSON object" in calicoctl.fails("patch", "node", "n", "-p", "[]")
        assert "non-existent" in calicoctl.fails(
            "patch", "node", "n", "-t", "json", "-p", '[{"op":"remove","path":"/spec/x"}]'
        )

    def test_labels(self, calicoctl):
        def labels():
            return calicoctl.read("node", "n")["metadata"].get("labels")

        assert calicoctl.ok("label", "node", "n", "rack=1") == "Successfully set label rack on node n\n"
        assert labels() == {"zone": "a", "rack": "1"}
        assert "key zone is already present" in calicoctl.fails("label", "node", "n", "zone=b")
        assert "updated label zone" in calicoctl.ok("label", "node", "n", "zone=b", "--overwrite")
        assert "removed label rack" in calicoctl.ok("label", "node", "n", "rack", "--remove")
        assert labels() == {"zone": "b"}
        assert "key rack does not exist" in calicoctl.fails("label", "node", "n", "rack", "--remove")
        assert "give KEY=VALUE" in calicoctl.fails("label", "node", "n", "rack")
        assert "not a valid label value" in calicoctl.fails("label", "node", "n", "a=b c")


class TestWhatIsSaidBesides:
    def test_nothing_of_a_kind(self, calicoctl):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        got = calicoctl("get", "bgppeer")
        assert (got.code, got.err) == (0, "No BGPPeer found.\n") and got.out.startswith("NAME")
        got = calicoctl("get", "networkpolicy", "-o", "name")
        assert (got.code, got.out) == (0, "")
        assert got.err == "No NetworkPolicy found in namespace default; -A looks in all.\n"
        assert calicoctl("get", "networkpolicy", "-A").err == "No NetworkPolicy found.\n"
        assert calicoctl("get", "ippool").err == ""
        assert calicoctl("ipam", "show", "--show-borrowed").err == "No address is borrowed.\n"
        calicoctl.ok("delete", "ippool", "a")
        assert calicoctl("ipam", "show").err == "There is no IP pool; make one with 'calicoctl apply'.\n"

    def test_what_was_probably_meant(self, calicoctl):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        assert "(did you mean ippools? known are BGPConfiguration," in calicoctl.fails("get", "ippols")
        said = calicoctl.fails("apply", "-f", "-", stdin=json.dumps(pool("b", "10.2.0.0/16") | {"kind": "IpPool"}))
        assert "unknown resource type (Kind: IpPool" in said and "did you mean IPPool?" in said

    @pytest.mark.parametrize(
        ("level", "lines"), [("panic", 0), ("error", 0), ("info", 1), ("debug", 2)], ids=lambda v: str(v)
    )
    def test_the_log(self, calicoctl, level, lines):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        command = [sys.executable, "-m", "cni_calico.ctl.main", "-c", calicoctl.config, "get", "ippool", "a"]
        done = subprocess.run([*command, "-l", level], capture_output=True, text=True)
        said = done.stderr.splitlines()
        assert (done.returncode, len(said)) == (0, lines), done.stderr
        if lines:
            assert f"the datastore is local:{calicoctl.path}" in said[0]
        if lines > 1:
            assert re.search(r"get /calico/resources/v3/projectcalico.org/ippools/a: [0-9.]+ ms$", said[1])
