"""What names a node goes with it where the datastore is Kubernetes: by the controllers, with the manifest's rights, and
by calicoctl for a node that Kubernetes has no more.
"""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest

from cni_calico.ctl.main import run as run_calicoctl
from cni_calico.datastore.interface import Datastore
from cni_calico.model.keys import ResourceKey
from tests.deadlines import until
from tests.e2e.kubernetes.cluster import CONTROLLERS_USER, Cluster, free_port
from tests.e2e.kubernetes.programs import ControllersProcess
from tests.e2e.kubernetes.records import SETTINGS, left, of_node, put
from tests.e2e.kubernetes.roles import rights, used

pytestmark = pytest.mark.kubernetes

GENERAL = {ResourceKey("BGPPeer", "all"): {"nodeSelector": "all()", "peerIP": "10.0.0.9", "asNumber": 64512}}


def has_looked(port: int) -> bool:
    """Whether the controllers have judged what they see: then there are numbers of it."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            return b'calico_janitor_candidates{kind="configuration"} 0' in page.read()
    except OSError:
        return False


def test_by_the_controllers(kube: Cluster, kube_store: Datastore, tmp_path: Path) -> None:
    """Nodes that leave while they look; one that has not joined, one that stays and one that is back keep theirs."""
    since = len(kube.audited())
    for name in ("goes", "stays", "returns", "last"):
        kube.create_node(name)
    gone = put(kube_store, of_node("goes"))
    kept = put(kube_store, {**of_node("stays"), **of_node("returns"), **of_node("planned"), **GENERAL})
    last, port = put(kube_store, of_node("last")), free_port()
    put(kube_store, {SETTINGS: {"prometheusMetricsPort": port, "controllers": {"node": {"leakGracePeriod": "4s"}}}})
    with rights(kube, "calico.yaml"):
        process = ControllersProcess(kube, tmp_path, DATASTORE_TYPE="kubernetes", ENABLED_CONTROLLERS="node")
        try:
            until(lambda: has_looked(port), "it has looked at the nodes", 60)
            kube.request("DELETE", "/api/v1/nodes/returns")
            kube.create_node("returns")
            kube.request("DELETE", "/api/v1/nodes/goes")
            until(lambda: left(kube_store, gone) == set(), f"removed: {process.log.read_text()[-2000:]}", 60)
            assert left(kube_store, kept) == kept
            again = put(kube_store, of_node("goes"))  # for the one that is to come
            kube.request("DELETE", "/api/v1/nodes/last")
            until(lambda: left(kube_store, last) == set(), f"removed: {process.log.read_text()[-2000:]}", 60)
            assert left(kube_store, again) == again and left(kube_store, kept) == kept
        finally:
            process.process.terminate()
            process.process.wait(20)
    requests, refused = used(kube, CONTROLLERS_USER, since)
    assert not refused and {("delete", "bgppeers"), ("delete", "felixconfigurations")} <= requests
    assert "released configuration of node goes" in process.log.read_text()


def test_by_calicoctl(kube: Cluster, kube_store: Datastore, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kube.create_node("stays")
    gone, kept = put(kube_store, of_node("gone")), put(kube_store, {**of_node("stays"), **GENERAL})
    environ = {"DATASTORE_TYPE": "kubernetes", "KUBECONFIG": kube.kubeconfig()}
    assert run_calicoctl(["delete", "node", "stays"], environ) == 1
    assert "kubectl delete node" in capsys.readouterr().err and left(kube_store, kept) == kept
    assert run_calicoctl(["delete", "node", "gone"], environ) == 0
    assert "Successfully deleted 1 'Node' resource" in capsys.readouterr().out
    assert left(kube_store, gone) == set() and left(kube_store, kept) == kept
    assert run_calicoctl(["delete", "node", "gone"], environ) == 1
    assert "does not exist" in capsys.readouterr().err
