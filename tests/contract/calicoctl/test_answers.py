"""calicoctl over every datastore that it can be pointed at: the same commands, the same answers."""

import json
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cni_calico.datastore.ensure import ensure_record
from cni_calico.datastore.interface import Write
from cni_calico.deadline import Deadline
from cni_calico.model.keys import CLUSTER, BlockList, ResourceKey, ResourceList
from tests.conftest import ROOT
from tests.contract.calicoctl.files import pool

VECTORS = Path(__file__).parents[2] / "golden" / "vectors"
pytestmark = pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
PROGRAM = "import sys; from cni_calico.ctl.main import main; sys.exit(main())"


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


def test_resources_are_named_as_with_kubectl(calicoctl):
    calicoctl("create", "-f", "-", stdin=json.dumps([pool("a", "10.1.0.0/16"), pool("b", "10.2.0.0/16")]))
    both = "ippool/a\nippool/b\n"
    for line in ("ippool/a ippool/b", "ippool/a,pool/b", "ippool a,b", "ippool a b", "ippools"):
        assert calicoctl("get", *line.split(), "-o", "name") == both, line
    assert calicoctl("get", "ippool", "-o", "name", "a") == "ippool/a\n"  # an option between them
    every = json.loads(calicoctl("get", "ippools,tiers", "-o", "json"))
    assert (every["kind"], every["apiVersion"]) == ("List", "v1")
    assert [item["kind"] for item in every["items"]] == ["IPPool"] * 2 + ["Tier"] * 3
    assert calicoctl("get", "ippools,tiers").count("NAME ") == 2
    assert "every resource must be named as KIND/NAME" in calicoctl("get", "ippool/a", "b", code=1)
    calicoctl("label", "ippool/a", "team=x", "--overwrite")
    calicoctl("patch", "ippool/b", "-p", '{"spec":{"disabled":true}}')
    assert json.loads(calicoctl("get", "ippool/a", "-o", "json"))["metadata"]["labels"] == {"team": "x"}
    assert json.loads(calicoctl("get", "ippool/b", "-o", "json"))["spec"]["disabled"] is True
    calicoctl("delete", "ippool/a", "ippool/b")
    assert calicoctl("get", "ippools", "-o", "name") == ""


def test_usage_as_a_document(calicoctl):
    body = {"format": "cni-calico/datastore-export/v1", "records": {}}
    kvs = json.loads((VECTORS / "etcd-dump-07-add-borrowed-ip.json").read_text())["kvs"]
    body["records"] = {path: kv["value"] for path, kv in kvs.items()}
    calicoctl("datastore", "migrate", "import", "-f", "-", stdin=json.dumps(body))
    table = calicoctl("ipam", "show", "--show-blocks")
    usage = json.loads(calicoctl("ipam", "show", "-o", "json"))
    assert usage["pools"] and usage["blocksWithoutPool"] == []
    for one in [*usage["pools"], *(block for found in usage["pools"] for block in found["blocks"])]:
        (line,) = [line for line in table.splitlines() if f" {one['cidr']} " in line]
        assert [cell.split()[0] for cell in line.split("|")[3:6]] == [str(one[n]) for n in ("total", "used", "free")]
        assert one["total"] == one["used"] + one["free"]
    assert {found["name"] for found in usage["pools"]} == set(
        re.findall(r"ippool/(.*)", calicoctl("get", "ippool", "-o", "name"))
    )
    (borrowed,) = json.loads(calicoctl("ipam", "show", "--show-borrowed", "-o", "json"))["borrowed"]
    assert borrowed["ip"] in calicoctl("ipam", "show", "--show-borrowed")
    held = json.loads(calicoctl("ipam", "show", f"--ip={borrowed['ip']}", "-o", "json"))
    assert held["assigned"] is True and held["block"] == borrowed["block"]
    free = json.loads(calicoctl("ipam", "show", "--ip=192.0.2.1", "-o", "json"))
    assert free == {"ip": "192.0.2.1", "assigned": False}
    settings = json.loads(calicoctl("ipam", "show", "--show-configuration", "-o", "json"))
    assert settings["StrictAffinity"] is False


@pytest.fixture
def stored(space):
    """Everything in the datastore, as it is read without calicoctl."""

    def read():
        with closing(space.open()) as store:
            listings = (ResourceList("IPPool"), ResourceList("NetworkSet"), ResourceList("Tier"), BlockList())
            return [(i.key, i.value, i.revision) for one in listings for i in store.list(one, Deadline.after(10)).items]

    return read


def test_a_dry_run_changes_nothing_and_says_what_would_be_wrong(calicoctl, stored):
    pools = json.dumps([pool("a", "10.1.0.0/16"), pool("b", "10.2.0.0/16")])
    calicoctl("create", "-f", "-", stdin=pools)
    before = stored()
    assert before
    changed = json.dumps(pool("a", "10.1.0.0/16", natOutgoing=True))
    new = json.dumps([pool("c", "10.3.0.0/16"), pool("d", "10.4.0.0/16")])
    clash = json.dumps([pool("c", "10.3.0.0/16"), pool("d", "10.3.128.0/17")])  # with what the first would have stored
    for line, stdin, code, said in (
        ("apply -f -", changed, 0, "Successfully applied 1 'IPPool' resource(s)\nNothing was changed"),
        ("create -f -", new, 0, "Successfully created 2 'IPPool' resource(s)\n"),
        ("create -f -", changed, 1, "resource already exists: IPPool(a)"),
        ("create -f -", clash, 1, "overlaps"),
        ("replace -f -", json.dumps(pool("c", "10.3.0.0/16")), 1, "resource does not exist: IPPool(c)"),
        ("delete ippool a b", "", 0, "Successfully deleted 2 'IPPool' resource(s)\n"),
        ("delete ippool a a", "", 1, "resource does not exist: IPPool(a)"),
        ("delete tier default", "", 1, "tier"),
        ("label ippool a x=y", "", 0, "Successfully set label x on ippool a\n"),
        ("patch ippool a -p {}", "", 0, "Successfully patched 1 'IPPool' resource\n"),
        ('patch ippool a -p {"spec":{"cidr":"x"}}', "", 1, "spec.cidr"),
    ):
        assert said in calicoctl(*line.split(), "--dry-run=server", stdin=stdin, code=code), line
        assert stored() == before, line
    wrong = json.dumps(pool("a", "nonsense"))
    for line, stdin, code, said in (
        ("apply -f -", wrong, 1, "spec.cidr"),
        ("apply -f -", changed, 0, "no datastore was used"),
        ("delete ippool nobody", "", 0, "no datastore was used"),
        ("delete ippool", "", 1, "at least one resource"),
        ("patch ippool a -p [", "", 1, "patch"),
        ("label ippool a x=y", "", 0, "no datastore was used"),
    ):
        assert said in calicoctl(*line.split(), "--dry-run=client", stdin=stdin, code=code), line
        assert stored() == before, line


def test_differences(calicoctl, stored):
    calicoctl("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))
    before = stored()
    assert calicoctl("diff", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16"))) == ""
    changed = [pool("a", "10.1.0.0/16", natOutgoing=True), pool("b", "10.2.0.0/16")]
    lines = calicoctl("diff", "-f", "-", stdin=json.dumps(changed), code=1).splitlines()
    assert [line for line in lines if line.startswith(("---", "+++"))] == [
        *("--- stored IPPool(a)", "+++ applied IPPool(a)", "--- stored IPPool(b)", "+++ applied IPPool(b)")
    ]
    assert "+  natOutgoing: true" in lines and "+  cidr: 10.2.0.0/16" in lines
    assert not any("uid" in line or "resourceVersion" in line for line in lines)
    assert "spec.cidr" in calicoctl("diff", "-f", "-", stdin=json.dumps(pool("a", "nonsense")), code=2)
    assert stored() == before
    calicoctl("apply", "-f", "-", stdin=json.dumps(changed))
    assert calicoctl("diff", "-f", "-", stdin=json.dumps(changed)) == ""


def nets(name, *cidrs):
    metadata = {"name": name, "labels": {}}
    return {"apiVersion": "projectcalico.org/v3", "kind": "GlobalNetworkSet"} | {
        "metadata": metadata,
        "spec": {"nets": list(cidrs)},
    }


TIERED = ("GlobalNetworkPolicy", "NetworkPolicy", "StagedGlobalNetworkPolicy", "StagedNetworkPolicy")


def policy(kind, tier, name="sec.p"):
    metadata = {"name": name, **({} if "Global" in kind else {"namespace": "space"})}
    spec = {"tier": tier, "selector": "all()", "types": ["Ingress"]}
    return {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": spec}


TIER = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "Tier",
    "metadata": {"name": "sec"},
    "spec": {"order": 100},
}


@pytest.mark.parametrize("kind", TIERED)
def test_a_policy_needs_its_tier(calicoctl, kind):
    where = [kind.lower(), "sec.p", *([] if "Global" in kind else ["-n", "space"])]
    for command in ("create", "apply"):
        for documents in ([policy(kind, "sec")], [policy(kind, "sec"), TIER]):  # a tier that comes later is too late
            said = calicoctl(command, "-f", "-", stdin=json.dumps(documents), code=1)
            assert "Tier(sec) does not exist" in said and "create the Tier first" in said
            assert "resource does not exist" in calicoctl("get", *where, code=1)
            if TIER in documents:
                calicoctl("delete", "tier", "sec")
    for command in ("create", "apply"):
        both = json.dumps({"apiVersion": "v1", "kind": "List", "items": [TIER, policy(kind, "sec")]})
        assert calicoctl(command, "-f", "-", "--dry-run=server", stdin=both).startswith("Successfully ")
        calicoctl(command, "-f", "-", stdin=both)
        assert json.loads(calicoctl("get", *where, "-o", "json"))["spec"]["tier"] == "sec"
        elsewhere = json.dumps({"spec": {"tier": "gone"}})
        assert "Tier(gone) does not exist" in calicoctl("patch", *where, "-p", elsewhere, code=1)
        calicoctl("label", *where, "team=x")
        calicoctl("delete", *where)
        calicoctl("delete", "tier", "sec")
    for tier in ("default", "kube-admin", "kube-baseline"):
        name = f"{tier}.p"
        calicoctl("apply", "-f", "-", stdin=json.dumps(policy(kind, tier, name)))
        calicoctl("delete", kind.lower(), name, *where[2:])


@pytest.mark.parametrize("kind", TIERED)
def test_a_policy_whose_tier_is_gone_can_be_changed(calicoctl, space, kind):
    """As older versions left it: its labels and rules change, and it can be put into a tier that exists."""
    where = [kind.lower(), "sec.p", *([] if "Global" in kind else ["-n", "space"])]
    calicoctl("create", "-f", "-", stdin=json.dumps([TIER, policy(kind, "sec")]))
    with closing(space.open()) as store:
        store.commit([Write.remove(ResourceKey("Tier", "sec"))], Deadline.after(10))
    calicoctl("label", *where, "team=x")
    calicoctl("patch", *where, "-p", '{"spec":{"order":7}}')
    assert "Tier(other) does not exist" in calicoctl("patch", *where, "-p", '{"spec":{"tier":"other"}}', code=1)


def belongings(node):
    specs = {
        ("BGPPeer", f"of-{node}"): {"node": node, "peerIP": "10.0.0.1", "asNumber": 64512},
        ("HostEndpoint", f"of-{node}"): {"node": node, "interfaceName": "eth0"},
        ("FelixConfiguration", f"node.{node}"): {},
        ("BGPConfiguration", f"node.{node}"): {"logSeverityScreen": "Info"},
    }
    head = {"apiVersion": "projectcalico.org/v3"}
    return [head | {"kind": kind, "metadata": {"name": name}, "spec": spec} for (kind, name), spec in specs.items()]


def test_a_node_takes_what_belongs_to_it_along(calicoctl, space):
    """On Kubernetes a node that Kubernetes no longer has."""
    nodes = [{"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": n}} for n in ("goes", "stays")]
    documents = [*belongings("goes"), *belongings("stays")]
    if not space.address.startswith("kubernetes"):
        documents = [*nodes, *documents]
    calicoctl("create", "-f", "-", stdin=json.dumps(documents))
    assert calicoctl("delete", "node", "goes") == "Successfully deleted 1 'Node' resource(s)\n"
    for document in belongings("goes"):
        assert "resource does not exist" in calicoctl("get", document["kind"], document["metadata"]["name"], code=1)
    for document in belongings("stays"):
        calicoctl("get", document["kind"], document["metadata"]["name"])


def test_polling_the_version(calicoctl, space, tmp_path):
    """A change of the cluster's version is told, and SIGINT ends the program."""

    def released(old):
        return old | {"spec": old["spec"] | {"calicoVersion": "v9.9.9"}}

    calicoctl("create", "-f", "-", stdin=json.dumps(pool("a", "10.1.0.0/16")))  # the first write makes the record
    command = [sys.executable, "-c", PROGRAM, "-c", str(tmp_path / "calicoctl.cfg"), "version", "--poll", "200ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as polling:
        try:
            said = [polling.stdout.readline().split(":")[0] for _ in range(4)]
            assert said == ["Client Version", "cni-calico", "Cluster Version", "Cluster Type"]
            ensure_record(space.first, CLUSTER, released, Deadline.after(30))
            assert polling.stdout.readline().split() == ["Cluster", "Version:", "v9.9.9"]
        finally:
            polling.send_signal(signal.SIGINT)
            polling.communicate(timeout=30)


def test_watching(calicoctl, space, tmp_path):
    calicoctl("create", "-f", "-", stdin=json.dumps(nets("a", "10.1.0.0/16")))
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "-c",
        str(tmp_path / "calicoctl.cfg"),
        "get",
        "gnetset",
        "-o",
        "wide",
        "-w",
    ]
    started = {"stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    with subprocess.Popen([*command, "-o", "json"], **started) as raw, subprocess.Popen(command, **started) as table:
        try:
            assert [table.stdout.readline().split()[:3] for _ in range(2)] == [
                *(["EVENT", "NAME", "NETS"], ["ADDED", "a", "10.1.0.0/16"])
            ]
            said = [json.loads(raw.stdout.readline())]
            for line in ("label gnetset a x=y", "delete gnetset a"):
                calicoctl(*line.split())
                said.append(json.loads(raw.stdout.readline()))
                table.stdout.readline()
            calicoctl("create", "-f", "-", stdin=json.dumps(nets("b", "10.2.0.0/16")))
            said.append(json.loads(raw.stdout.readline()))
            assert table.stdout.readline().split()[:3] == ["ADDED", "b", "10.2.0.0/16"]
            shown = [(event["type"], event["object"]["metadata"]["name"]) for event in said]
            assert shown == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
            assert said[1]["object"]["metadata"]["labels"]["x"] == "y"
        finally:
            for process in (raw, table):
                process.send_signal(signal.SIGINT)
        assert (raw.wait(), table.wait()) == (130, 130)
