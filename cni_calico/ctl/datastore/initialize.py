"""Creates what a datastore needs before the first resource is written: the cluster's identity and its tiers.

Rule: creates what is missing and changes nothing. Upstream's client library does the same; values as in the vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cni_calico.ctl.session import Session
from cni_calico.datastore.interface import CommitConflict, Write
from cni_calico.model.documents.codec import encode_cluster_information, new_metadata
from cni_calico.model.documents.tiers import TIERS, new_tier
from cni_calico.model.keys import CLUSTER, ResourceKey
from cni_calico.model.resources import ClusterInformation


def initialize(session: Session) -> None:
    """Make sure that ClusterInformation "default" and the tiers exist. Raises DatastoreError."""
    wanted = {CLUSTER: _cluster(session)}
    wanted.update({ResourceKey("Tier", name): new_tier(name, uid=session.uid(), now=session.now()) for name in TIERS})
    found = session.store.get_many(list(wanted), session.deadline)
    for key, stored in zip(wanted, found, strict=True):
        if stored is None:
            try:
                session.store.commit([Write.create(key, wanted[key])], session.deadline)
            except CommitConflict:
                continue  # another client created it first


def _cluster(session: Session) -> Mapping[str, Any]:
    metadata = new_metadata("default", uid=session.uid(), now=session.now())
    guid = session.uid().replace("-", "")
    return encode_cluster_information(ClusterInformation(metadata, cluster_guid=guid, datastore_ready=True))
