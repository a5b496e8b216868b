"""What a controller works with: the datastore, the Kubernetes cluster, a log.

Rule: it contains nothing specific to a node, so the same controllers run in an agent and in a Deployment.
"""

from __future__ import annotations

from dataclasses import dataclass

from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.log import Log


@dataclass(frozen=True, slots=True)
class Cluster:
    """``kubernetes`` is None if there is no Kubernetes; ``is_kubernetes_datastore``: our records are stored
    there too.
    """

    store: Datastore
    log: Log
    kubernetes: KubernetesStore | None = None
    is_kubernetes_datastore: bool = False
