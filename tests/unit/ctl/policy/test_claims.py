"""``calicoctl policy``: an address that only a pod's annotation names counts as it does for the agents."""

from argparse import Namespace

import pytest

from cni_calico.ctl.policy.explain import explain
from cni_calico.ctl.policy.show import show
from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import Listing, PodDocument, Versioned
from cni_calico.errors import DatastoreForbidden
from cni_calico.model.keys import BlockKey, BlockList, ResourceKey, parse_path
from cni_calico.model.kubernetes.pods import read_namespace, read_pod
from tests.deadlines import soon

NETWORK = "10.0.0.0/30"


def pod(name, address, *, status):
    """With ``status`` the kubelet has confirmed the address."""
    found = {
        "metadata": {
            "name": name,
            "namespace": "a",
            "labels": {"app": name},
            "annotations": {"cni.projectcalico.org/podIPs": f"{address}/32"},
        },
        "spec": {"nodeName": "n"},
        "status": {"podIP": address} if status else {},
    }
    key, value = read_pod(found)
    return key, PodDocument(value, found)


def block(holder):
    """Which holds 10.0.0.1 for a pod."""
    attributes = [{"handle_id": "h", "secondary": {"pod": holder, "namespace": "a", "node": "n"}}] if holder else []
    allocations = [None, 0 if holder else None, None, None]
    key = parse_path("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30")
    assert isinstance(key, BlockKey)
    value = {
        "cidr": NETWORK,
        "affinity": "host:n",
        "allocations": allocations,
        "unallocated": [0, 2, 3] if holder else [0, 1, 2, 3],
        "attributes": attributes,
        "strictAffinity": False,
        "deleted": False,
    }
    return key, value


POLICY = ResourceKey("NetworkPolicy", "some", "a")
SOME = {
    "apiVersion": "projectcalico.org/v3",
    "kind": "NetworkPolicy",
    "metadata": {"name": "some", "namespace": "a"},
    "spec": {
        "types": ["Ingress"],
        "selector": "app == 'server'",
        "ingress": [{"action": "Allow", "source": {"selector": "app == 'client'"}}],
    },
}


class Cluster:
    """A Kubernetes datastore; ``blocks`` None: they may not be read."""

    kind = "kubernetes"

    def __init__(self, blocks, *found):
        self.blocks, self.found, self.asked = blocks, found, 0

    def get(self, key, deadline):
        return next((Versioned(key, value, "1") for found, value in self.found if found == key), None)

    def list(self, listing, deadline, **options):
        if isinstance(listing, BlockList):
            self.asked += 1
            if self.blocks is None:
                raise DatastoreForbidden("blocks are forbidden")
            return Listing(tuple(Versioned(key, value, "1") for key, value in self.blocks), "1")
        found = (Versioned(key, value, "1") for key, value in self.found if key.kind == listing.kind)
        return Listing(tuple(found), "1")


def ask(blocks, *, status=False, source="a/client", output="table"):
    told = []
    store = Cluster(
        blocks,
        read_namespace({"metadata": {"name": "a", "labels": {}}}),
        pod("client", "10.0.0.1", status=status),
        pod("server", "10.0.0.2", status=True),
        (POLICY, SOME),
    )
    session = Session(store, soon(), lambda: "", lambda: "")
    ends = {"source": source, "destination": "a/server", "namespace": "", "overlay": [], "stdin": "", "node": ""}
    more = {"protocol": "tcp", "port": 80, "source_port": 0, "endpoint": "a/client", "all": False}
    given = Namespace(**ends, **more, output=output, warn=told.append)
    return explain(session, given), show(session, given), " ".join(map(str, told)), store.asked


@pytest.mark.parametrize("blocks", [[], [block("other")], [block("")], None])
def test_an_unconfirmed_address_is_in_no_selector(blocks):
    explained, shown, told, _ = ask(blocks)
    assert "ingress of a/server: DENIED at the end of tier default" in explained
    assert "10.0.0.1 (not confirmed)" in shown
    assert "a/client: only its annotation names 10.0.0.1" in told
    assert ("blocks cannot be read" in told) == (blocks is None)
    assert '"unconfirmed": [\n' in ask(blocks, output="json")[1]


@pytest.mark.parametrize(("blocks", "status"), [([block("client")], False), ([], True)])
def test_what_ipam_or_the_status_has_counts(blocks, status):
    explained, shown, told, asked = ask(blocks, status=status)
    assert "ingress of a/server: allowed by rule 1 of NetworkPolicy a/some" in explained
    assert "not confirmed" not in shown and "annotation" not in told
    assert bool(asked) != status  # nobody claims anything: blocks are not read


def test_an_address_is_not_the_pods_that_only_claims_it():
    assert "an address outside (10.0.0.1)" in ask([], source="10.0.0.1")[0]
    assert "egress of a/client" in ask([block("client")], source="10.0.0.1")[0]
