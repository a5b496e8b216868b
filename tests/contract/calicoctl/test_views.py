"""calicoctl on what Kubernetes holds itself: each change has its effect on the object, or is refused in words.

The API server is a real one; what an object says is read from it, not through calicoctl alone.
"""

import json

import pytest

from tests.e2e.kubernetes.cluster import shared_cluster

pytestmark = pytest.mark.parametrize("backend", ["kubernetes"], indirect=True)

POD = ["workloadendpoint", "n-k8s-c-eth0", "-n", "space"]
NODE = ["node", "x"]


def patch_of(**document):
    return json.dumps(document)


@pytest.fixture
def pod(calicoctl):
    shared_cluster().create_pod("space", "c", "n", labels={"app": "web"}, annotations={"mine": "1"})
    return lambda: shared_cluster().read_pod("space", "c")


@pytest.fixture
def rack_node(calicoctl):
    shared_cluster().create_node("x", metadata={"name": "x", "labels": {"rack": "r1"}})
    return lambda: shared_cluster().request("GET", "/api/v1/nodes/x")


def shown(ctl, where):
    return json.loads(ctl("get", *where, "-o", "json"))


def as_file(ctl, command, document, *, code):
    return ctl(command, "-f", "-", stdin=json.dumps(document), code=code)


def test_the_labels_of_an_endpoint_are_the_pods(calicoctl, pod):
    before = pod()
    said = "of WorkloadEndpoint(space/n-k8s-c-eth0): it belongs to pod space/c"
    for argv in (
        ["label", *POD, "by=label"],
        ["label", *POD, "app=db", "--overwrite"],
        ["label", *POD, "app", "--remove"],
        ["patch", *POD, "-p", patch_of(metadata={"labels": {"by": "patch"}})],
        ["patch", *POD, "-p", patch_of(metadata={"labels": {"app": None}})],
        ["patch", *POD, "-t", "json", "-p", '[{"op": "add", "path": "/metadata/labels/by", "value": ""}]'],
    ):
        answer = calicoctl(*argv, code=1)
        assert said in answer and "label" in answer, argv
        assert "use kubectl label pod c -n space" in answer, argv
    assert pod() == before


def test_an_endpoint_from_get_with_labels_changed(calicoctl, pod):
    before, read = pod(), shown(calicoctl, POD)
    assert read["metadata"]["labels"]["app"] == "web"
    for labels in ({**read["metadata"]["labels"], "by": "file"}, {}):
        changed = {**read, "metadata": {**read["metadata"], "labels": labels}}
        for command in ("apply", "replace"):
            assert "use kubectl label pod c -n space" in as_file(calicoctl, command, changed, code=1)
    # written by hand: only what it says counts
    bare = {field: read["metadata"][field] for field in ("name", "namespace")}
    as_file(calicoctl, "apply", {**read, "metadata": {**bare, "labels": {"app": "web"}}}, code=0)
    assert "label by" in as_file(calicoctl, "apply", {**read, "metadata": {**bare, "labels": {"by": "file"}}}, code=1)
    assert pod()["metadata"]["labels"] == before["metadata"]["labels"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}}, "cannot change spec.ports of"),
        ({"spec": {"profiles": ["other"]}}, "cannot change spec.profiles of"),
        ({"spec": {"mac": "66:0a:00:00:00:01"}}, "cannot change spec.mac of"),
        ({"metadata": {"annotations": {"note": "mine"}}}, "use kubectl annotate pod c -n space"),
    ],
)
def test_what_a_pod_has_no_place_for(calicoctl, pod, change, said):
    before = pod()
    assert said in calicoctl("patch", *POD, "-p", json.dumps(change), code=1)
    assert pod() == before


def test_what_is_recorded_of_an_endpoint_can_be_changed_and_deleted(calicoctl, pod):
    assert "resource does not exist" in calicoctl("delete", *POD, code=1)  # the pod is there, nothing is recorded
    spec = {"containerID": "c0", "ipNetworks": ["10.0.0.7/32", "fd00::7/128"]}
    assert "Successfully patched" in calicoctl("patch", *POD, "-p", patch_of(spec=spec))
    prefix, annotations = "cni.projectcalico.org/", pod()["metadata"]["annotations"]
    assert annotations == {
        "mine": "1",
        prefix + "containerID": "c0",
        prefix + "podIP": "10.0.0.7/32",
        prefix + "podIPs": "10.0.0.7/32,fd00::7/128",
    }
    assert shown(calicoctl, POD)["spec"].items() >= spec.items()
    calicoctl("delete", *POD)
    assert pod()["metadata"]["annotations"][prefix + "podIP"] == ""
    answer = calicoctl("delete", *POD, code=1)
    assert "resource does not exist" in answer and "pod space/c is there, and has no addresses recorded" in answer
    calicoctl("delete", *POD, "--skip-not-exists")


def test_a_nodes_inherited_labels_are_the_kubernetes_nodes(calicoctl, rack_node):
    before, said = rack_node(), "cannot change label rack of Node(x): it belongs to Kubernetes node x"
    for argv in (
        ["label", *NODE, "rack=r2", "--overwrite"],
        ["label", *NODE, "rack", "--remove"],
        ["patch", *NODE, "-p", patch_of(metadata={"labels": {"rack": "r2"}})],
    ):
        answer = calicoctl(*argv, code=1)
        assert said in answer and "use kubectl label node x" in answer, argv
    by_hand = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": {"name": "x"}, "spec": {}}
    for command in ("apply", "replace"):
        changed = {**by_hand, "metadata": {"name": "x", "labels": {"rack": "r2"}}}
        assert said in as_file(calicoctl, command, changed, code=1)
    assert rack_node() == before


def test_calicos_own_labels_and_annotations_of_a_node(calicoctl, rack_node):
    calicoctl("label", *NODE, "by=label")
    calicoctl("patch", *NODE, "-p", patch_of(metadata={"annotations": {"note": "mine"}}))
    read = shown(calicoctl, NODE)["metadata"]
    assert (read["labels"], read["annotations"]["note"]) == ({"by": "label", "rack": "r1"}, "mine")
    kube = rack_node()["metadata"]
    assert kube["labels"] == {"rack": "r1"}
    assert json.loads(kube["annotations"]["projectcalico.org/labels"]) == {"by": "label"}
    # a file that repeats an inherited label does not make it Calico's: it goes when the Kubernetes node's goes
    by_hand = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "spec": {}}
    as_file(calicoctl, "apply", {**by_hand, "metadata": {"name": "x", "labels": {"rack": "r1", "by": "file"}}}, code=0)
    assert json.loads(rack_node()["metadata"]["annotations"]["projectcalico.org/labels"]) == {"by": "file"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"spec": {"addresses": [{"address": "1.2.3.4"}]}}, "cannot change spec.addresses of Node(x)"),
        ({"spec": {"orchRefs": [{"nodeName": "y", "orchestrator": "k8s"}]}}, "cannot change spec.orchRefs of Node(x)"),
        ({"spec": {"ours": 1}}, "Node.spec.ours = 1 (is not a field of Node)"),
    ],
)
def test_what_a_kubernetes_node_has_no_place_for(calicoctl, rack_node, change, said):
    before = rack_node()
    assert said in calicoctl("patch", *NODE, "-p", json.dumps(change), code=1)
    assert rack_node() == before


def test_a_node_from_get_with_its_address_changed(calicoctl, rack_node):
    """What follows from the address stands in the file as it was: that is no change of it."""
    calicoctl("patch", *NODE, "-p", patch_of(spec={"bgp": {"ipv4Address": "10.0.0.1/24"}}))
    read = shown(calicoctl, NODE)
    assert read["spec"]["addresses"] == [{"address": "10.0.0.1/24", "type": "CalicoNodeIP"}]
    read["spec"]["bgp"]["ipv4Address"] = "10.0.0.2/24"
    as_file(calicoctl, "replace", read, code=0)
    assert rack_node()["metadata"]["annotations"]["projectcalico.org/IPv4Address"] == "10.0.0.2/24"


def test_a_node_that_moves_in_brings_its_own_labels(calicoctl, rack_node):
    """Peers and pools select nodes by them. What it had of an earlier Kubernetes node is that one's to say."""
    metadata = {
        "name": "x",
        "labels": {"route-reflector": "true", "rack": "old", "zone": "gone"},
        "annotations": {"note": "mine", "projectcalico.org/kube-labels": '{"zone":"gone"}'},
    }
    document = {"apiVersion": "projectcalico.org/v3", "kind": "Node", "metadata": metadata, "spec": {}}
    records = {"/calico/resources/v3/projectcalico.org/nodes/x": document}
    body = {"format": "cni-calico/datastore-export/v1", "records": records}
    assert "Skipped" not in calicoctl("datastore", "migrate", "import", "-f", "-", stdin=json.dumps(body))
    read = shown(calicoctl, NODE)["metadata"]
    assert read["labels"] == {"rack": "r1", "route-reflector": "true"}
    assert read["annotations"] == {"note": "mine", "projectcalico.org/kube-labels": '{"rack":"r1"}'}
    kube = rack_node()["metadata"]
    assert kube["labels"] == {"rack": "r1"}
    assert json.loads(kube["annotations"]["projectcalico.org/labels"]) == {"route-reflector": "true"}


@pytest.mark.parametrize("name", ["kns.space", "ksa.space.builder"])
def test_profiles_are_only_read(calicoctl, name):
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "builder", "namespace": "space"}}
    shared_cluster().ensure("/api/v1/namespaces/space/serviceaccounts", account)
    where, refused = ["profile", name], f"Profile {name}: in the Kubernetes datastore profiles are derived"
    read = shown(calicoctl, where)
    changed = {**read, "metadata": {"name": name, "labels": {"by": "file"}}}
    for command in ("apply", "replace"):
        assert refused in as_file(calicoctl, command, changed, code=1)
    assert "resource already exists" in as_file(calicoctl, "create", changed, code=1)
    for argv in (
        ["label", *where, "by=label"],
        ["patch", *where, "-p", patch_of(spec={"labelsToApply": {"a": "b"}})],
        ["delete", *where],
    ):
        assert refused in calicoctl(*argv, code=1), argv
    assert shown(calicoctl, where) == read


def test_the_clusters_status(calicoctl):
    """Nodes as Kubernetes has them: one that is well, one whose kubelet is not ready."""
    cluster = shared_cluster()
    ready, unready = {"type": "Ready", "status": "True"}, {"type": "Ready", "status": "False", "message": "no runtime"}
    for name, conditions in (("x", [ready]), ("y", [unready])):
        cluster.create_node(name, metadata={"name": name})
        body = {"status": {"conditions": conditions}}
        cluster.request("PATCH", f"/api/v1/nodes/{name}/status", body, content_type="application/merge-patch+json")
    said = calicoctl("cluster", "status", code=1)
    assert "there is no IP pool that can be used" in said and "node y: no runtime" in said and "node x" not in said
    rows = {line.split()[0]: line.split() for line in said.splitlines() if line[:2] in ("x ", "y ")}
    assert (rows["x"][-1], rows["y"][-3:]) == ("yes", ["no:", "no", "runtime"])
