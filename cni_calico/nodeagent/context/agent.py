"""What the parts of calico-node work with: settings, datastore, log, files, time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from cni_calico.daemon.fresh import Fresh
from cni_calico.datastore.interface import Datastore
from cni_calico.datastore.kubernetes.relayed.store import RelayedStore
from cni_calico.datastore.kubernetes.store import KubernetesStore
from cni_calico.deadline import Deadline
from cni_calico.kernel.files import Files
from cni_calico.log import Log
from cni_calico.model.access import DatastoreConfig
from cni_calico.nodeagent.context.kubernetes import ApiNode
from cni_calico.nodeagent.context.settings import NodeSettings

STEP_S = 30.0


@dataclass(slots=True)
class Context:
    """What start-up works with. ``wait`` sleeps that many seconds and returns whether to give up (a signal came).

    ``troubles`` has the reason why a part fails now, by the part's name; every part maintains its own entry.
    """

    settings: NodeSettings
    store: Datastore
    log: Log
    wait: Callable[[float], bool]
    files: Files = field(default_factory=Files)
    fresh: Fresh = field(default_factory=Fresh)
    kubernetes: ApiNode | None = None
    kubernetes_store: KubernetesStore | None = None  # for Secrets and services, with every datastore
    relayed: RelayedStore | None = None  # the records that all nodes read, received from a relay
    ipv6_support: bool = True
    is_kubernetes_datastore: bool = False
    troubles: dict[str, str] = field(default_factory=dict)
    config: DatastoreConfig | None = None  # how ``store`` was opened
    decided: threading.Event | None = None  # set once it is decided what workloads may do; None: nobody decides it

    @property
    def followed(self) -> Datastore:
        """The datastore through which the cluster's records are followed. Code that decides about addresses uses
        ``store``.
        """
        return self.relayed or self.store

    @property
    def followed_kubernetes(self) -> KubernetesStore | None:
        """The same for Kubernetes' own objects; None outside of Kubernetes."""
        return self.relayed or self.kubernetes_store

    def close(self) -> None:
        if self.relayed is not None:
            self.relayed.close()
        self.store.close()

    def deadline(self) -> Deadline:
        return Deadline.after(STEP_S)
