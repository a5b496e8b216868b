"""Every kind of resource through every command of calicoctl that takes one, on the stores that keep all of them."""

import json

import pytest
import yaml

from cni_calico.ctl.columns import COLUMNS
from cni_calico.model.keys import NAMESPACED_KINDS
from tests.contract.test_calicoctl import calicoctl  # noqa: F401 - a fixture
from tests.unit.model.test_validate import GOOD, NAMES

pytestmark = pytest.mark.parametrize("backend", ["etcd", "local"], indirect=True)

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
    "WorkloadEndpoint": ("ports", [{"port": 0}], "WorkloadEndpoint.spec.ports[0].port = 0"),
}


assert WRONG.keys() == GOOD.keys() == COLUMNS.keys()


def document(kind):
    metadata = {"name": NAMES.get(kind, "x"), **({"namespace": "space"} if kind in NAMESPACED_KINDS else {})}
    return {"apiVersion": "projectcalico.org/v3", "kind": kind, "metadata": metadata, "spec": GOOD[kind]}


@pytest.mark.parametrize("kind", sorted(GOOD))
def test_kind(calicoctl, kind):  # noqa: F811
    wanted = document(kind)
    name, text = wanted["metadata"]["name"], json.dumps(wanted)
    where = [kind.lower(), name, *(["-n", "space"] if kind in NAMESPACED_KINDS else [])]

    def read():
        return json.loads(calicoctl("get", *where, "-o", "json"))

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
    assert stored["spec"].items() >= wanted["spec"].items()
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
    assert read()["metadata"]["labels"] == {"by": "apply"}
    wanted["metadata"]["labels"] = {"by": "replace"}
    calicoctl("replace", "-f", "-", stdin=json.dumps(wanted))
    assert read()["metadata"]["labels"] == {"by": "replace"}
    calicoctl("patch", *where, "-p", '{"metadata": {"labels": {"by": "patch"}}}')
    assert read()["metadata"]["labels"] == {"by": "patch"}
    assert "already" in calicoctl("label", *where, "by=label", code=1)
    calicoctl("label", *where, "by=label", "--overwrite")
    assert read()["metadata"]["labels"] == {"by": "label"}
    calicoctl("label", *where, "by", "--remove")
    after = read()
    assert not after["metadata"].get("labels")
    assert (after["spec"], after["metadata"]["uid"]) == (stored["spec"], stored["metadata"]["uid"])

    assert said in calicoctl("patch", *where, "-p", json.dumps({"spec": {field: value}}), code=1)
    assert read() == after

    calicoctl("delete", *where)
    assert "resource does not exist" in calicoctl("delete", *where, code=1)
    calicoctl("delete", *where, "--skip-not-exists")
