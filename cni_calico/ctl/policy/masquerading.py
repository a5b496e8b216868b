"""Would kube-proxy give a workload's connection to a service the address of a node? Rule: asked is its configuration in
the cluster, where the datastore is Kubernetes, and what the agent of this host has found in its rules.
"""

from __future__ import annotations

import os

from cni_calico import directories
from cni_calico.ctl.ipam.records import read_pools
from cni_calico.ctl.session import Session
from cni_calico.datastore.forwarding import ForwardingStore
from cni_calico.model.resources import Address
from cni_calico.nodeagent.status.file import read_status
from cni_calico.policy.service_sources import ServiceSources, masqueraded_pools, parse_networks, render_masqueraded

SEEN = "service_sources"  # in the agent's status


def masquerading(session: Session, address: Address) -> str:
    """Why, and what to do; "" if nothing speaks for it. Raises DatastoreError."""
    for sources in (_configured(session), _seen_here()):
        if sources is not None:
            pools = [pool for pool in read_pools(session, []) if address in pool.cidr]
            if text := render_masqueraded(masqueraded_pools(pools, sources), sources):
                return text
    return ""


def _configured(session: Session) -> ServiceSources | None:
    if session.store.kind != "kubernetes":
        return None
    from cni_calico.ctl.kube_proxy import read_configured
    from cni_calico.datastore.kubernetes.store import KubernetesStore

    store = session.store
    while isinstance(store, ForwardingStore):
        store = store.store
    return read_configured(store.api, session.deadline) if isinstance(store, KubernetesStore) else None


def _seen_here() -> ServiceSources | None:
    seen = read_status(directories.run_dir(os.environ)).get(SEEN) or ()
    return ServiceSources(parse_networks(",".join(map(str, seen))), origin="its rules on this node") if seen else None
