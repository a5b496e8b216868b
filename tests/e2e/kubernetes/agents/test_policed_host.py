"""The agent behind its own host endpoint hears of changes on each of its watches of the API server, whatever connection
tracking has forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.log import Log
from cni_calico.model.access import CRD_ROOT
from cni_calico.nodeagent.context.agent import Context
from cni_calico.nodeagent.context.kubernetes import ApiNode
from cni_calico.nodeagent.policing.feed import hearing
from tests.deadlines import until
from tests.e2e.etcd.test_policed_host import POLICY, forget_all
from tests.e2e.kubernetes.cluster import Cluster
from tests.e2e.kubernetes.node import Relay
from tests.netns.namespaces import Namespace
from tests.netns.policing.lab import NODE, Lab, private_settings

pytestmark = [pytest.mark.netns, pytest.mark.kubernetes]


@contextmanager
def behind_relay(kube: Cluster, host: Namespace, root: Path, idle_s: int = hearing._IDLE_S) -> Iterator[Lab]:
    """An engine with host endpoint ``*`` in force, which reaches the API server by a port of its own loopback.
    ``idle_s``: after so much silence the kernel probes its connections.
    """

    def open_context(log: Log) -> Context:
        hearing._IDLE_S = idle_s
        store = KubernetesStore(kube.access())
        return Context(
            private_settings(root),
            store,
            log,
            lambda _: True,
            kubernetes=ApiNode(store.api, NODE),
            kubernetes_store=store,
            is_kubernetes_datastore=True,
        )

    kube.create_node(NODE)
    with ExitStack() as stack:
        stack.callback(Relay(host, kube.port).close)
        lab = Lab(host, root, stack)
        lab.open_context = open_context
        port = f"tcp:{kube.port}"
        lab.start(FELIX_FAILSAFEINBOUNDHOSTPORTS=port, FELIX_FAILSAFEOUTBOUNDHOSTPORTS=port)
        stack.callback(lab.stop)
        until(lab.standing, "the engine has decided", 60)
        put(kube, "HostEndpoint", "all", {"node": NODE, "interfaceName": "*"})
        lab.until_in_force(hosts=1)
        yield lab


def put(kube: Cluster, kind: str, name: str, spec: object) -> None:
    body = {"apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    kube.request("POST", f"{CRD_ROOT}/{PLURALS[kind]}", body)


PLURALS = {"HostEndpoint": "hostendpoints", "GlobalNetworkPolicy": "globalnetworkpolicies"}


def put_policy(kube: Cluster, name: str) -> None:
    put(kube, "GlobalNetworkPolicy", name, POLICY)


def test_it_hears_of_changes_on_watches_that_are_not_tracked(kube: Cluster, host_ns: Namespace, tmp_path: Path) -> None:
    """None of the watches says anything by itself, and none is idle for long enough to be probed for that."""
    with behind_relay(kube, host_ns, tmp_path, idle_s=600) as lab:
        for number in range(1, 5):
            forget_all(host_ns)
            put_policy(kube, f"p{number}")
            lab.until_in_force(policies=number)
