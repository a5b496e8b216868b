"""What callers of upstream's calicoctl rely on."""

import json
import signal
import subprocess
import sys

import pytest
import yaml

from cni_calico.ctl.main import run
from cni_calico.ctl.output.templates import render_template
from cni_calico.errors import InvalidConfig
from tests.unit.ctl.conftest import VECTORS, Calicoctl, pool, resource

RESOURCES = "/calico/resources/v3/projectcalico.org/"
PROGRAM = "import sys; from cni_calico.ctl.main import main; sys.exit(main())"


class TestVersion:
    def test_without_any_datastore(self, capsys, monkeypatch):
        monkeypatch.setattr("cni_calico.ctl.settings.LOCAL_PATH", "/does/not/exist")
        assert run(["version"], {}) == 0
        out, err = capsys.readouterr()
        assert (out.splitlines()[0], err) == ("Client Version:    v3.32.1", "")
        assert out.splitlines()[0].split()[2] == "v3.32.1"  # as Kubespray reads it
        assert out.splitlines()[1].startswith("cni-calico:  ") and len(out.splitlines()) == 2

    def test_with_a_datastore(self, cluster):
        lines = cluster.ok("version").splitlines()
        assert lines[0] == "Client Version:    v3.32.1" and lines[2].startswith("Cluster Version:   ")
        assert cluster.ok("version", "--client").splitlines() == lines[:2]

    def test_a_datastore_that_does_not_answer(self, capsys):
        assert run(["version", "--timeout=0.2"], {"ETCD_ENDPOINTS": "http://127.0.0.1:1"}) == 1
        out, err = capsys.readouterr()
        assert out.startswith("Client Version:    v3.32.1\n") and "unable to retrieve Cluster Version" in err

    def test_polling_says_what_has_changed(self, cluster):
        command = [sys.executable, "-c", PROGRAM, "-c", str(cluster.config), "version", "--poll=20ms"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(4)]
            assert lines[2].startswith("Cluster Version:")
            document = cluster.stored(RESOURCES + "clusterinformations/default")
            document["spec"]["calicoVersion"] = "v9.9.9"
            cluster.write({RESOURCES + "clusterinformations/default": document})
            assert process.stdout.readline() == "Cluster Version:   v9.9.9\n"
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130


class TestKubespray:
    """Its role's own calls."""

    def test_cluster_information(self, cluster):
        assert cluster.ok("get", "ClusterInformation", "default").startswith("NAME      CLUSTERGUID")

    def test_pool(self, cluster):
        spec = json.loads(cluster.ok("get", "ipPool", "pool4", "-o", "json"))["spec"]
        assert (spec["blockSize"], spec["cidr"], spec["ipipMode"], spec["vxlanMode"]) == (
            26,
            "10.65.0.0/16",
            "Never",
            "Never",
        )

    def test_what_it_configures(self, calicoctl):
        """Each record is asked for, laid over what there is, and applied, as JSON; a second run changes nothing."""
        for _ in range(2):
            for document in KUBESPRAY:
                name = document["metadata"]["name"]
                found = calicoctl("get", document["kind"], name, "-o", "json")
                merged = laid_over(json.loads(found.out), document) if found.code == 0 else document
                calicoctl.ok("apply", "-f", "-", stdin=json.dumps(merged))
        assert calicoctl.ok("get", "ippool").splitlines()[1].split()[1] == "10.233.64.0/18"
        felix = calicoctl.read("felixconfiguration", "default")["spec"]
        assert felix["floatingIPs"] == "Disabled" and felix["reportingInterval"] == "0s" and not felix["ipipEnabled"]
        assert calicoctl.read("bgpconfiguration", "default")["spec"]["nodeToNodeMeshEnabled"] is False
        assert calicoctl.read("bgppeer", "node1-10.0.0.254")["spec"]["asNumber"] == 64513
        assert calicoctl.read("node", "node1")["spec"]["bgp"]["asNumber"] == 64514

    def test_what_is_not_there_yet(self, calicoctl):
        calicoctl.apply(pool("other", "10.1.0.0/16"))
        found = calicoctl("get", "ippool", "default-pool", "-o", "json")
        assert found.code == 1 and "default-pool" in found.err
        assert calicoctl("get", "felixconfig", "default", "-o", "json").code in (0, 1)


def laid_over(below, above):
    """As Ansible's combine does it: objects are merged, everything else is replaced."""
    both = {
        name: laid_over(below[name], above[name])
        for name in below.keys() & above.keys()
        if isinstance(below[name], dict) and isinstance(above[name], dict)
    }
    return {**below, **above, **both}


KUBESPRAY = [
    resource(
        "IPPool",
        "default-pool",
        {
            "blockSize": 26,
            "cidr": "10.233.64.0/18",
            "ipipMode": "Never",
            "vxlanMode": "Never",
            "natOutgoing": True,
        },
    ),
    resource(
        "FelixConfiguration",
        "default",
        {
            "ipipEnabled": False,
            "reportingInterval": "0s",
            "bpfLogLevel": "",
            "bpfEnabled": False,
            "bpfExternalServiceMode": "Tunnel",
            "wireguardEnabled": False,
            "logSeverityScreen": "Info",
            "vxlanEnabled": False,
            "featureDetectOverride": "",
            "floatingIPs": "Disabled",
        },
    ),
    resource(
        "BGPConfiguration",
        "default",
        {
            "listenPort": 179,
            "logSeverityScreen": "Info",
            "asNumber": 64512,
            "nodeToNodeMeshEnabled": False,
            "serviceClusterIPs": [{"cidr": "10.233.0.0/18"}],
            "serviceExternalIPs": [],
        },
    ),
    resource("BGPPeer", "global-10.0.0.253", {"asNumber": "64513", "peerIP": "10.0.0.253"}),
    resource(
        "BGPPeer",
        "peer-to-rrs",
        {
            "nodeSelector": "!has(i-am-a-route-reflector)",
            "peerSelector": "has(i-am-a-route-reflector)",
        },
    ),
    resource("BGPPeer", "node1-10.0.0.254", {"asNumber": "64513", "node": "node1", "peerIP": "10.0.0.254"}),
    resource(
        "Node",
        "node1",
        {
            "bgp": {"asNumber": "64514"},
            "orchRefs": [{"nodeName": "node1", "orchestrator": "k8s"}],
        },
    ),
]


class TestProtection:
    @pytest.mark.parametrize("tier", ["default", "kube-admin", "kube-baseline"])
    def test_tiers_of_every_cluster(self, calicoctl, tier):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        assert f"Cannot delete {tier} tier" in calicoctl.fails("delete", "tier", tier)
        calicoctl.ok("get", "tier", tier)

    @pytest.mark.parametrize("kind", ["NetworkPolicy", "GlobalNetworkPolicy", "StagedNetworkPolicy"])
    def test_a_tier_with_policies(self, calicoctl, kind):
        calicoctl.apply([resource("Tier", "t", {"order": 1}), resource(kind, "t.p", {"tier": "t"})])
        assert "Cannot delete a non-empty tier" in calicoctl.fails("delete", "tier", "t")
        calicoctl.ok("delete", kind.lower(), "t.p")
        calicoctl.ok("delete", "tier", "t")

    def test_cluster_information(self, calicoctl):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        before = calicoctl.stored(RESOURCES + "clusterinformations/default")
        said = calicoctl.fails("delete", "clusterinformation", "default")
        assert "operation delete is not supported on ClusterInformation" in said
        assert calicoctl.stored(RESOURCES + "clusterinformations/default") == before

    def test_the_built_in_profile(self, calicoctl):
        calicoctl.apply(resource("Profile", "mine"))
        assert calicoctl.ok("get", "profile", "-o", "name").split() == [
            "profile/projectcalico-default-allow",
            "profile/mine",
        ]
        shown = calicoctl.read("profile", "projectcalico-default-allow")
        assert shown["spec"]["ingress"][0]["action"] == shown["spec"]["egress"][0]["action"] == "Allow"
        assert "is not supported" in calicoctl.fails("delete", "profile", "projectcalico-default-allow")


class TestSeveral:
    def test_all_are_tried_and_all_errors_told(self, calicoctl):
        documents = [pool("a", "10.1.0.0/16"), pool("b", "x"), pool("c", "10.3.0.0/16"), pool("d", "y")]
        for command in ("create", "apply"):
            result = calicoctl(command, "-f", "-", stdin=json.dumps(documents))
            assert result.code == 1
            assert 'IPPool.spec.cidr = "x"' in result.err and 'IPPool.spec.cidr = "y"' in result.err
            assert calicoctl.ok("get", "ippool", "-o", "name") == "ippool/a\nippool/c\n"
            calicoctl.ok("delete", "ippool", "a", "c")
        result = calicoctl("validate", "-f", "-", stdin=json.dumps(documents))
        assert (result.code, result.out) == (
            1,
            "Partial success: validated the first 2 out of 4 'IPPool' resources:\n",
        )

    def test_replace_ends_at_the_first_error(self, calicoctl):
        calicoctl.apply([pool("a", "10.1.0.0/16"), pool("c", "10.3.0.0/16")])
        documents = [pool("b", "10.2.0.0/16"), pool("c", "10.3.0.0/16", natOutgoing=True)]
        calicoctl.fails("replace", "-f", "-", stdin=json.dumps(documents))
        assert "natOutgoing" not in calicoctl.read("ippool", "c")["spec"]

    def test_delete(self, calicoctl):
        calicoctl.apply([pool("a", "10.1.0.0/16"), pool("c", "10.3.0.0/16")])
        result = calicoctl("delete", "ippool", "a", "b", "c")
        assert (result.code, result.out) == (1, "Successfully deleted 2 'IPPool' resource(s)\n")
        assert result.err.startswith("Failed to delete 'IPPool' resource: resource does not exist: IPPool(b)")

    def test_get_prints_what_is_found(self, calicoctl):
        calicoctl.apply([pool("a", "10.1.0.0/16"), pool("c", "10.3.0.0/16")])
        result = calicoctl("get", "ippool", "a", "b", "c")
        assert result.code == 1 and result.err == "resource does not exist: IPPool(b) with error: <nil>\n"
        assert [line.split()[0] for line in result.out.splitlines() if line] == ["NAME", "a", "NAME", "c"]
        one = calicoctl("get", "ippool", "a", "b", "-o", "json")
        assert json.loads(one.out)["metadata"]["name"] == "a"
        none = calicoctl("get", "ippool", "b", "-o", "yaml")
        assert (none.code, none.out) == (1, "null\n")


class TestNamespaces:
    @pytest.mark.parametrize(
        ("argv", "said"),
        [
            (["get", "ippool", "-n", "x"], "IPPool is not namespaced"),
            (["get", "ippool", "-A"], "IPPool is not namespaced"),
            (["delete", "node", "n", "-n", "x"], "Node is not namespaced"),
            (["get", "networkset", "-n", "x", "-A"], "cannot use both --namespace and --all-namespaces"),
            (["get", "networkset", "s", "-A"], "cannot use --all-namespace flag for getting a single resource"),
        ],
    )
    def test_refused(self, calicoctl, argv, said):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        assert said in calicoctl.fails(*argv)

    def test_the_files_word_against_the_options(self, calicoctl):
        text = json.dumps(resource("NetworkSet", "s", {}, namespace="one"))
        said = calicoctl.fails("apply", "-n", "two", "-f", "-", stdin=text)
        assert "resource namespace does not match client namespace. one != two" in said
        said = calicoctl.fails("apply", "-n", "two", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
        assert "IPPool is not namespaced" in said

    def test_the_column(self, calicoctl):
        calicoctl.apply(resource("NetworkSet", "s", {}, namespace="one"))
        assert calicoctl.ok("get", "networkset", "-n", "one").splitlines()[0].split() == ["NAMESPACE", "NAME"]


@pytest.mark.parametrize(
    ("kind", "short", "wide"),
    [
        ("NetworkPolicy", "NAME TIER", "NAME TIER ORDER SELECTOR"),
        ("GlobalNetworkPolicy", "NAME TIER", "NAME TIER ORDER SELECTOR"),
        ("StagedNetworkPolicy", "NAME TIER", "NAME TIER ORDER SELECTOR"),
        ("StagedGlobalNetworkPolicy", "NAME TIER", "NAME TIER ORDER SELECTOR"),
        ("StagedKubernetesNetworkPolicy", "NAME", "NAME PODSELECTOR"),
        ("IPReservation", "NAME", "NAME CIDRS"),
        ("BGPConfiguration", "NAME LOGSEVERITY MESHENABLED ASNUMBER", "NAME LOGSEVERITY MESHENABLED ASNUMBER"),
    ],
)
def test_columns_are_upstreams(calicoctl, kind, short, wide):
    calicoctl.apply(resource(kind, "x"))
    assert calicoctl.ok("get", kind).splitlines()[0].split() == short.split()
    assert calicoctl.ok("get", kind, "-o", "wide").splitlines()[0].split() == wide.split()


def test_what_is_not_given_is_told_as_upstream_does(calicoctl):
    calicoctl.apply([resource("BGPConfiguration", "x"), resource("BGPPeer", "x", {"peerSelector": "all()"})])
    assert calicoctl.ok("get", "bgpconfig").splitlines()[1].split() == ["x", "<nil>", "<nil>"]
    assert calicoctl.ok("get", "bgppeer").splitlines()[1].split()[-1] == "0"


@pytest.mark.parametrize("alias", ["reservation", "bf", "bgpf", "gnetsets", "skpol", "snp", "sgnp", "sknp", "spol"])
def test_aliases(calicoctl, alias):
    calicoctl.apply(pool("a", "10.1.0.0/16"))
    assert calicoctl.ok("get", alias).startswith("NAME")


def test_key_order_and_defaults_shown(calicoctl):
    calicoctl.apply([resource("FelixConfiguration", name) for name in ("default", "node.x")])
    text = calicoctl.ok("get", "felixconfig", "default", "-o", "json")
    assert list(json.loads(text)) == ["kind", "apiVersion", "metadata", "spec"]
    assert json.loads(text)["spec"]["nftablesMode"] == "Auto"
    assert calicoctl.stored(RESOURCES + "felixconfigurations/default")["spec"] == {}  # shown, not stored
    calicoctl.ok("label", "felixconfig", "default", "a=b")
    assert calicoctl.stored(RESOURCES + "felixconfigurations/default")["spec"] == {}
    assert calicoctl.read("felixconfig", "node.x")["spec"] == {}  # there it would override the cluster's
    assert calicoctl.read("tier", "default")["status"] == {}


def test_a_patch_that_fails_says_so_in_upstreams_words(calicoctl):
    said = calicoctl.fails("patch", "ippool", "none", "-p", "{}")
    assert said.startswith("Hit error: resource does not exist: IPPool(none) with error: ")
    calicoctl.ok("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
    assert calicoctl.fails("patch", "ippool", "a", "-p", '{"spec":{"disabled":"x"}}').startswith("Hit error: ")


def test_a_json_patch_that_is_an_object_is_merged(calicoctl):
    calicoctl.apply(pool("a", "10.1.0.0/16"))
    calicoctl.ok("patch", "ippool", "a", "-t", "json", "-p", '{"spec":{"disabled":true}}')
    assert calicoctl.read("ippool", "a")["spec"]["disabled"] is True


class TestTemplates:
    def test_as_upstream_gives_them_the_resources(self, calicoctl):
        calicoctl.apply([pool("a", "10.1.0.0/16"), pool("b", "10.2.0.0/16")])
        named = 'go-template={{range .}}{{.ObjectMeta.Name}} {{.Spec.CIDR}}{{"\\n"}}{{end}}'
        assert calicoctl.ok("get", "ippool", "a", "b", "-o", named) == "a 10.1.0.0/16\nb 10.2.0.0/16\n"
        listed = "go-template={{range .}}{{range .Items}}{{.metadata.name}},{{end}}{{end}}"
        assert calicoctl.ok("get", "ippool", "-o", listed) == "a,b,"

    def test_from_a_file(self, calicoctl, tmp_path):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        (tmp_path / "t").write_text("{{range .}}{{if .spec.disabled}}off{{else}}on{{end}}{{end}}")
        assert calicoctl.ok("get", "ippool", "a", "-o", f"go-template-file={tmp_path / 't'}") == "on"
        assert "cannot read template" in calicoctl.fails("get", "ippool", "a", "-o", "go-template-file=/none")
        as_kubectls = "go-template={{range .items}}{{.metadata.name}}{{end}}"
        assert "{{range .}}{{range .items}}" in calicoctl.fails("get", "ippools", "-o", as_kubectls)

    @pytest.mark.parametrize(
        "text", ['{{printf "%s" .}}', "{{range .}}", "{{end}}", "{{$x := .}}", "{{.a.b}", "{{with .}}{{end}}"]
    )
    def test_what_is_beyond_the_subset_is_named(self, text):
        with pytest.raises(InvalidConfig, match=r"cannot (use|read) template"):
            render_template(text, [{}])


class TestHostile:
    @pytest.mark.parametrize("name", ["a/b", "..", "a?b", "a%2Fb", "a#b"])
    def test_names_that_cannot_be(self, calicoctl, name):
        calicoctl.apply(pool("a", "10.1.0.0/16"))
        for command in ("get", "delete"):
            assert "resource does not exist" in calicoctl.fails(command, "ippool", name)
        for command in ("create", "apply", "replace"):
            text = json.dumps(pool(name, "10.2.0.0/16"))
            assert "IPPool.metadata.name" in calicoctl.fails(command, "-f", "-", stdin=text)
        assert "resource does not exist" in calicoctl.fails("patch", "ippool", name, "-p", "{}")

    @pytest.mark.parametrize("argv", [["get", "ippool", "\udcff"], ["get", "ippool", "a\0b"]])
    def test_arguments_that_are_no_text(self, calicoctl, argv):
        assert "is not text in UTF-8" in calicoctl.fails(*argv)

    def test_half_a_surrogate_pair(self, calicoctl):
        document = json.dumps(pool("a", "10.1.0.0/16")).replace("10.1.0.0/16", "\\ud800")
        assert "is not text in UTF-8" in calicoctl.fails("apply", "-f", "-", stdin=document)
        said = calicoctl.fails("patch", "ippool", "a", "-p", '{"spec":{"cidr":"\\ud800"}}')
        assert "is not text in UTF-8" in said
        pair = json.dumps(resource("Tier", "t", annotations={"a": "\U0001f600"}))  # JSON writes it as a pair
        calicoctl.ok("apply", "-f", "-", stdin=pair)
        assert calicoctl.read("tier", "t")["metadata"]["annotations"] == {"a": "\U0001f600"}

    @pytest.mark.parametrize("spec", ["text", [1], 7])
    def test_cluster_information_that_is_no_object(self, cluster, spec):
        path = RESOURCES + "clusterinformations/default"
        cluster.write({path: {**cluster.stored(path), "spec": spec}})
        for argv in (["version"], ["ipam", "check"], ["datastore", "migrate", "export"]):
            assert "ClusterInformation" in cluster.fails(*argv)


def test_kubectls_plugin(tmp_path, capsys):
    """As kubectl has it: Kubernetes, by the kubeconfig in the home directory."""
    assert run(["get", "node"], {"HOME": str(tmp_path)}, "kubectl calico") == 1
    assert f"{tmp_path}/.kube/config" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run(["get", "--help"], {}, "kubectl calico")
    assert capsys.readouterr().out.startswith("usage: kubectl calico get")


def test_the_version_asks_where_kubectls_kubeconfig_leads(tmp_path, capsys, monkeypatch):
    """As upstream; without that file there is no datastore to ask, and no error."""
    monkeypatch.setattr("cni_calico.ctl.settings.LOCAL_PATH", f"{tmp_path}/none.db")
    environ = {"HOME": str(tmp_path)}
    assert run(["version"], environ) == 0
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "config").write_text("{}")
    capsys.readouterr()
    assert run(["version"], environ) == 1
    told = capsys.readouterr()
    assert told.out.startswith("Client Version:") and f"{tmp_path}/.kube/config" in told.err
    assert run(["version", "--client"], environ) == 0


def test_a_context_that_is_not_there(tmp_path, capsys):
    path = tmp_path / "config"
    path.write_text(json.dumps({"contexts": [{"name": "a", "context": {}}], "current-context": "a"}))
    assert run(["get", "node", "--kubeconfig", str(path), "--context", "b"], {}) == 1
    assert "contexts has no 'b'" in capsys.readouterr().err


def test_what_becomes_of_virtual_machines_addresses(calicoctl):
    out = calicoctl.ok("ipam", "configure", "--kubevirt-ip-persistence=Disabled")
    assert out == "Successfully set KubeVirtVMAddressPersistence to: Disabled\n"
    stored = calicoctl.stored("/calico/ipam/v2/config")
    assert stored["kubeVirtVMAddressPersistence"] == "Disabled"
    calicoctl.ok("ipam", "configure", "--max-blocks-per-host=3")
    assert calicoctl.stored("/calico/ipam/v2/config") == stored | {"maxBlocksPerHost": 3}
    assert "| KubeVirtVMAddressPersistence | Disabled |" in calicoctl.ok("ipam", "show", "--show-configuration")
    assert "must be Enabled or Disabled" in calicoctl.fails("ipam", "configure", "--kubevirt-ip-persistence=x")


class TestHostCommands:
    def test_checksystem(self, calicoctl, tmp_path):
        config = tmp_path / "config"
        config.write_text("CONFIG_VETH=y\nCONFIG_NF_TABLES=m\nCONFIG_NF_CONNTRACK=y\n# CONFIG_NET_IPIP is not set\n")
        out = calicoctl.ok("node", "checksystem", "-f", str(config))
        assert out.endswith("System meets minimum system requirements to run Calico!\n")
        assert "ipip:                         missing, only needed for pools with ipipMode\n" in out
        config.write_text("CONFIG_VETH=y\n")
        result = calicoctl("node", "checksystem", "-f", str(config))
        assert result.code == 1 and "packet filter:                FAIL" in result.out

    def test_node_run_says_how(self, calicoctl):
        result = calicoctl("node", "run", "--ip=10.0.0.1", "--name=n", "--backend=vxlan")
        assert result.code == 1 and "starts nothing here" in result.err
        for word in ("systemctl enable --now calico-node", "podman run -d", "IP=10.0.0.1", "NODENAME=n"):
            assert word in result.out


def test_diagnostics_of_a_cluster_hide_its_secrets(cluster, tmp_path):
    import tarfile

    peer = resource("BGPPeer", "p", {"peerIP": "10.0.0.1", "asNumber": 1}, annotations={"password": "canary-4711"})
    cluster.apply(peer)
    target = tmp_path / "diags.tar.gz"
    assert "Diagnostics saved to" in cluster.ok("cluster", "diags", "-o", str(target))
    with tarfile.open(target) as archive:
        texts = {name.partition("/")[2]: archive.extractfile(name).read().decode() for name in archive.getnames()}
    assert "canary-4711" not in "".join(texts.values())
    assert "10.65.0.0/16" in texts["resources/ippools.yaml"] and "10.65.141.64/26" in texts["ipam/usage"]
    assert "IPAM blocks record" in texts["ipam/check"]


class TestUpstreamsExport:
    def test_there_and_back(self, cluster, tmp_path, capsys, monkeypatch):
        for path, document in json.loads((VECTORS / "etcd-dump-07-add-borrowed-ip.json").read_text())["kvs"].items():
            if "/nodes/" in path:
                node = document["value"]
                node["spec"]["orchRefs"] = [{"nodeName": node["metadata"]["name"].upper(), "orchestrator": "k8s"}]
                cluster.write({path: node})
        cluster.ok("datastore", "migrate", "lock")
        text = cluster.ok("datastore", "migrate", "export", "--format=upstream")
        lists, information, addresses = text.split("===\n")
        kinds = [document["kind"] for document in yaml.safe_load_all(lists) if document]
        assert {"IPPoolList", "NodeList", "TierList"} <= set(kinds)
        assert json.loads(information)["kind"] == "ClusterInformation"
        blocks = json.loads(addresses)["blocks"]
        assert {block["Value"]["affinity"] for block in blocks} == {"host:VM", "host:NODEB"}
        assert all(block["Key"].startswith("/calico/ipam/v2/assignment/") for block in blocks)
        other = Calicoctl(tmp_path / "other.db", capsys, monkeypatch)
        out = other.ok("datastore", "migrate", "import", "-f", "-", stdin=text)
        assert "the datastore is locked" in out
        other.ok("datastore", "migrate", "unlock")
        assert other.ok("get", "ippool", "-o", "name") == cluster.ok("get", "ippool", "-o", "name")
        assert other.ok("ipam", "show") == cluster.ok("ipam", "show")
        assert other.read("ippool", "pool4")["metadata"]["uid"]

    def test_nodes_that_kubernetes_does_not_have(self, cluster):
        cluster.ok("datastore", "migrate", "lock")
        said = cluster.fails("datastore", "migrate", "export", "--format=upstream")
        assert "missing a 'k8s' orchestrator reference" in said

    @pytest.mark.parametrize(
        "text",
        [
            "\n===\n{}\n===\n[]",
            '\n===\n{}\n===\n{"blocks": [{"Key": "/x"}]}',
            "\n===\n{\n===\n{}",
            "a: [\n===\n{}\n===\n{}",
            "\n===\n{}",
        ],
    )
    def test_what_is_none(self, calicoctl, text):
        said = calicoctl.fails("datastore", "migrate", "import", "-f", "-", stdin=text)
        assert said.startswith("cannot ")
