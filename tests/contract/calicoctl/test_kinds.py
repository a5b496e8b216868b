"""Every kind of resource through every command of calicoctl that takes one.

On Kubernetes some are views of objects that are Kubernetes' own: what calicoctl may do to those is said for each.
"""

import json

import pytest
import yaml

from cni_calico.ctl.output.columns import COLUMNS
from cni_calico.model.keys import NAMESPACED_KINDS
from tests.e2e.kubernetes.cluster import shared_cluster
from tests.unit.model.validation.test_check import GOOD, NAMES

on_kubernetes = pytest.mark.parametrize("backend", ["kubernetes"], indirect=True)
VIEWS = {"Node", "Profile", "WorkloadEndpoint"}
READ_ONLY = {"ClusterInformation"}

# kind -> (a wrong field, its value, what is said of it)
WRONG = {
    "Node": ("bgp", {"asNumber": -1}, "Node.spec.bgp.asNumber = -1"),
    "IPPool": ("blockSize", 19, "IPPool.spec.blockSize = 19"),
    "IPReservation": ("reservedCIDRs", ["x"], 'IPReservation.spec.reservedCIDRs[0] = "x"'),
    "BGPConfiguration": ("listenPort", 70000, "BGPConfiguration.spec.listenPort = 70000"),
    "BGPPeer": ("peerIP", "x", 'BGPPeer.spec.peerIP = "x"'),
    "BGPFilter": ("exportV4", [{}], "BGPFilter.spec.exportV4[0].action = null"),
    "FelixConfiguration": ("reportingInterval", 30, "FelixConfiguration.spec.reportingInterval = 30"),
    "ClusterInformation": ("datastoreReady", "yes", 'ClusterInformation.spec.datastoreReady = "yes"'),
    "GlobalNetworkPolicy": ("types", ["x"], 'GlobalNetworkPolicy.spec.types[0] = "x"'),
    "NetworkPolicy": ("order", "x", 'NetworkPolicy.spec.order = "x"'),
    "GlobalNetworkSet": ("nets", ["x"], 'GlobalNetworkSet.spec.nets[0] = "x"'),
    "NetworkSet": ("nets", ["x"], 'NetworkSet.spec.nets[0] = "x"'),
    "HostEndpoint": ("expectedIPs", ["x"], 'HostEndpoint.spec.expectedIPs[0] = "x"'),
    "Profile": ("labelsToApply", {"a b": ""}, 'Profile.spec.labelsToApply = "a b"'),
    "Tier": ("defaultAction", "x", 'Tier.spec.defaultAction = "x"'),
    "KubeControllersConfiguration": ("healthChecks", "x", 'KubeControllersConfiguration.spec.healthChecks = "x"'),
    "CalicoNodeStatus": ("classes", ["x"], 'CalicoNodeStatus.spec.classes[0] = "x"'),
    "StagedGlobalNetworkPolicy": ("stagedAction", "x", 'StagedGlobalNetworkPolicy.spec.stagedAction = "x"'),
    "StagedKubernetesNetworkPolicy": ("policyTypes", ["x"], "StagedKubernetesNetworkPolicy.spec.policyTypes[0] ="),
    "StagedNetworkPolicy": ("types", ["x"], 'StagedNetworkPolicy.spec.types[0] = "x"'),
    "WorkloadEndpoint": ("ports", [{"port": 0}], "WorkloadEndpoint.spec.ports[0].port = 0"),
}


assert WRONG.keys() == GOOD.keys() == COLUMNS.keys()


def document(kind):
    metadata = {"name": NAMES.get(kind, "x"), **({"namespace": "space"} if kind in NAMESPACED_KINDS else {})}
    return {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": GOOD[kind]}


def with_numbers(spec):
    """AS numbers in dotted form are stored as numbers."""
    if (spec.get("bgp") or {}).get("asNumber") == "1.10":
        return {**spec, "bgp": {**spec["bgp"], "asNumber": 65546}}
    return spec


@pytest.mark.parametrize(
    ("backend", "kind"),
    [
        *((backend, kind) for backend in ("etcd", "local") for kind in sorted(GOOD.keys() - READ_ONLY)),
        *(("kubernetes", kind) for kind in sorted(GOOD.keys() - VIEWS - READ_ONLY)),
    ],
    indirect=["backend"],
)
@pytest.mark.slow_on("etcd", but=("GlobalNetworkPolicy", "IPPool"))  # stored by key, as in the embedded datastore
def test_kind(calicoctl, kind):
    wanted = document(kind)
    name, text = wanted["metadata"]["name"], json.dumps(wanted)
    where = [kind.lower(), name, *(["-n", "space"] if kind in NAMESPACED_KINDS else [])]

    def read():
        return json.loads(calicoctl("get", *where, "-o", "json"))

    def labels():
        """Without those that calicoctl itself gives policies and endpoints."""
        found = read()["metadata"].get("labels") or {}
        return {name: value for name, value in found.items() if not name.startswith("projectcalico.org/")}

    if kind == "BGPPeer":
        peer = json.dumps(wanted)
        assert "BGPFilter(f) does not exist" in calicoctl("create", "-f", "-", stdin=peer, code=1)
        calicoctl("create", "-f", "-", stdin=json.dumps(document("BGPFilter") | {"metadata": {"name": "f"}}))

    # what is wrong is named, with its value, and nothing is stored
    field, value, said = WRONG[kind]
    bad = json.dumps(wanted | {"spec": GOOD[kind] | {field: value}})
    for command in ("create", "apply"):
        assert said in calicoctl(command, "-f", "-", stdin=bad, code=1)
    assert "resource does not exist" in calicoctl("get", *where, code=1)
    assert "resource does not exist" in calicoctl("replace", "-f", "-", stdin=text, code=1)

    calicoctl("create", "-f", "-", stdin=yaml.safe_dump(wanted))
    assert "resource already exists" in calicoctl("create", "-f", "-", stdin=text, code=1)
    calicoctl("create", "--skip-exists", "-f", "-", stdin=text)

    stored = read()
    assert with_numbers(stored["spec"]).items() >= with_numbers(wanted["spec"]).items()
    assert yaml.safe_load(calicoctl("get", *where, "-o", "yaml")) == stored
    assert calicoctl("get", *where, "-o", "name") == f"{kind.lower()}/{name}\n"
    for output, heading in (("ps", "NAME"), ("wide", "NAME")):
        head, row, *_ = calicoctl("get", *where, "-o", output).splitlines()
        assert heading in head or kind == "WorkloadEndpoint"
        assert row.split()
    for heading in COLUMNS[kind]:
        assert calicoctl("get", *where, "-o", f"custom-columns={heading}").split()[0] == heading
    assert f"{kind} has no such column" in calicoctl("get", *where, "-o", "custom-columns=NONE", code=1)

    # a changed label through each of the commands; identity stays
    wanted["metadata"]["labels"] = {"by": "apply"}
    calicoctl("apply", "-f", "-", stdin=json.dumps(wanted))
    assert labels() == {"by": "apply"}
    wanted["metadata"]["labels"] = {"by": "replace"}
    calicoctl("replace", "-f", "-", stdin=json.dumps(wanted))
    assert labels() == {"by": "replace"}
    calicoctl("patch", *where, "-p", '{"metadata": {"labels": {"by": "patch"}}}')
    assert labels() == {"by": "patch"}
    assert "already" in calicoctl("label", *where, "by=label", code=1)
    calicoctl("label", *where, "by=label", "--overwrite")
    assert labels() == {"by": "label"}
    calicoctl("label", *where, "by", "--remove")
    after = read()
    assert not labels()
    assert (after["spec"], after["metadata"]["uid"]) == (stored["spec"], stored["metadata"]["uid"])

    assert said in calicoctl("patch", *where, "-p", json.dumps({"spec": {field: value}}), code=1)
    assert read() == after

    calicoctl("delete", *where)
    assert "resource does not exist" in calicoctl("delete", *where, code=1)
    calicoctl("delete", *where, "--skip-not-exists")


@pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
def test_only_the_agent_writes_cluster_information(calicoctl):
    calicoctl("apply", "-f", "-", stdin=json.dumps(document("Tier")))
    before = calicoctl("get", "clusterinformation", "default", "-o", "json")
    text = json.dumps(document("ClusterInformation"))
    for command in ("create", "apply", "replace", "delete"):
        said = calicoctl(command, "-f", "-", stdin=text, code=1)
        assert "is not supported on ClusterInformation" in said, command
    assert "is not supported" in calicoctl("delete", "clusterinformation", "default", code=1)
    assert calicoctl("get", "clusterinformation", "default", "-o", "json") == before


# -- on Kubernetes ----------------------------------------------------------------------------------------------------


def as_files(calicoctl, wanted, commands, *, said=""):
    """Through commands that take a file; ``said``: they are all refused with that."""
    for command in commands:
        answer = calicoctl(*command.split(), "-f", "-", stdin=json.dumps(wanted), code=1 if said else 0)
        assert said in answer, command


def assert_shown(calicoctl, kind, *where):
    for output in ("ps", "wide"):
        assert len(calicoctl("get", *where, "-o", output).splitlines()) >= 2
    for heading in COLUMNS[kind]:
        assert calicoctl("get", *where, "-o", f"custom-columns={heading}").split()[0] == heading
    text = calicoctl("get", *where, "-o", "yaml")
    assert "&id" not in text  # not everything that reads it knows anchors
    read = json.loads(calicoctl("get", *where, "-o", "json"))
    assert yaml.safe_load(text) == read
    return read


@on_kubernetes
def test_a_node_is_the_kubernetes_node(calicoctl):
    wanted, where = document("Node"), ["node", "x"]
    assert "resource does not exist" in calicoctl("get", *where, code=1)
    as_files(calicoctl, wanted, ["create", "apply"], said="there is no Kubernetes node of that name")
    as_files(calicoctl, wanted, ["replace"], said="resource does not exist")
    shared_cluster().create_node("x")

    as_files(calicoctl, wanted, ["create"], said="resource already exists")
    as_files(calicoctl, wanted, ["create --skip-exists", "apply", "replace"])
    read = assert_shown(calicoctl, "Node", *where)
    bgp = {**with_numbers(wanted["spec"])["bgp"], "ipv6Address": "fd00::1/128"}
    assert {**read["spec"], "addresses": None} == {**wanted["spec"], "bgp": bgp, "addresses": None}
    calicoctl("patch", *where, "-p", '{"metadata": {"labels": {"by": "patch"}}}')
    calicoctl("label", *where, "by=label", "--overwrite")
    read = json.loads(calicoctl("get", *where, "-o", "json"))
    assert (read["metadata"]["labels"], read["spec"]["bgp"]) == ({"by": "label"}, bgp)
    calicoctl("label", *where, "by", "--remove")
    assert WRONG["Node"][2] in calicoctl("patch", *where, "-p", '{"spec": {"bgp": {"asNumber": -1}}}', code=1)
    assert "it is the Kubernetes node itself" in calicoctl("delete", *where, code=1)
    assert not json.loads(calicoctl("get", *where, "-o", "json"))["metadata"].get("labels")


@on_kubernetes
def test_profiles_follow_from_namespaces(calicoctl):
    where, refused = ["profile", "kns.space"], "in the Kubernetes datastore profiles are derived"
    as_files(calicoctl, document("Profile"), ["create", "create --skip-exists", "apply"], said=refused)
    as_files(calicoctl, document("Profile"), ["replace"], said="resource does not exist")
    read = assert_shown(calicoctl, "Profile", *where)
    assert read["spec"]["labelsToApply"]["pcns.projectcalico.org/name"] == "space"
    assert refused in calicoctl("patch", *where, "-p", '{"metadata": {"labels": {"by": "patch"}}}', code=1)
    assert refused in calicoctl("label", *where, "by=label", code=1)
    assert refused in calicoctl("delete", *where, code=1)
    assert json.loads(calicoctl("get", *where, "-o", "json")) == read


@on_kubernetes
def test_an_endpoint_is_its_pods(calicoctl):
    wanted = document("WorkloadEndpoint")
    as_files(calicoctl, wanted, ["create", "apply"], said="in the Kubernetes datastore an endpoint is a pod's")
    shared_cluster().create_pod("space", "c", "n")
    where = ["workloadendpoint", "n-k8s-c-eth0", "-n", "space"]
    wanted["metadata"]["name"] = where[1]
    wanted["spec"] = {**wanted["spec"], "orchestrator": "k8s", "pod": "c"}

    as_files(calicoctl, wanted, ["create"], said="resource already exists")
    as_files(calicoctl, wanted, ["apply", "replace"], said="it belongs to pod space/c")
    for field in ("interfaceName", "ipNATs", "ports"):
        del wanted["spec"][field]
    as_files(calicoctl, wanted, ["create --skip-exists", "apply", "replace"])
    read = assert_shown(calicoctl, "WorkloadEndpoint", *where)
    assert (read["spec"]["containerID"], read["spec"]["ipNetworks"]) == ("c", ["10.0.0.1/32", "fd00::1/128"])
    calicoctl("delete", *where)
    left = json.loads(calicoctl("get", *where, "-o", "json"))["spec"]  # the pod is there, it has no addresses any more
    assert "ipNetworks" not in left and left["pod"] == "c"


@pytest.mark.parametrize("backend", ["etcd", "kubernetes", "local"], indirect=True)
def test_policies_that_older_versions_stored_with_a_prefix(calicoctl, space):
    """On Kubernetes their objects' names mean the names without it, so what is called so is called so on purpose."""
    names = ["default.web", "default.of-security"]
    head = {"apiVersion": "projectcalico.org/v3"}
    tier = head | {"kind": "Tier", "metadata": {"name": "security"}, "spec": {"order": 1}}
    policies = [
        head | {"kind": "GlobalNetworkPolicy", "metadata": {"name": name}, "spec": spec}
        for name, spec in zip(names, ({"order": 7}, {"tier": "security"}), strict=True)
    ]
    calicoctl("create", "-f", "-", stdin=json.dumps([tier, *policies]))
    renamed = 0 if space.address.startswith("kubernetes") else 1
    for count in (renamed, 0):
        told = f"Policy name migration complete, migrated {count} policies.\n"
        assert calicoctl("datastore", "migrate-policy-names") == told
    found = set(calicoctl("get", "gnp", "-o", "name").split())
    web = "web" if renamed else "default.web"
    assert found == {f"globalnetworkpolicy/{name}" for name in (web, "default.of-security")}
    assert json.loads(calicoctl("get", "gnp", web, "-o", "json"))["spec"]["order"] == 7
