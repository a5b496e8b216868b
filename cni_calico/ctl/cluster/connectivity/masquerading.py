"""Does kube-proxy let services' connections keep the pods' addresses, by its configuration in the cluster?"""

from __future__ import annotations

from collections.abc import Iterator

from cni_calico.ctl.cluster.connectivity.findings import FAILED, OK, Trial
from cni_calico.ctl.ipam.records import read_pools
from cni_calico.ctl.kube_proxy import read_configured
from cni_calico.ctl.session import Session
from cni_calico.datastore.kubernetes.api import KubernetesAPI
from cni_calico.policy.service_sources import masqueraded_pools, render_masqueraded

NAME = "kube-proxy's networks"


def check_services(session: Session, api: KubernetesAPI) -> Iterator[Trial]:
    """Nothing if the cluster does not say it: kube-proxy may be part of another program. Raises DatastoreError."""
    sources = read_configured(api, session.deadline)
    if sources is None:
        return
    wrong = render_masqueraded(masqueraded_pools(read_pools(session, []), sources), sources)
    yield Trial(NAME, FAILED, wrong) if wrong else Trial(NAME, OK, "services' connections keep the pods' addresses")
