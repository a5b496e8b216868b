"""Whether the cluster accepts requests now, and whether it ever did since this node started.

Rule: ClusterInformation says ``datastoreReady: false`` while the datastore is migrated or upgraded; then nothing is
written. For calico a cluster without that record is not ready either, as in upstream: the datastore is empty, or is
another one than the configuration's author meant. calico-ipam by itself does not require the record, and the embedded
store is always a cluster of its own. A ClusterInformation that cannot be read is an error that names it; it never
counts as ready. An ADD waits for the record a little where no call has succeeded since the node started: a node of a
new cluster is Ready a moment before calico-node makes it, and a kubelet tries again only after ten seconds or more.
"""

from __future__ import annotations

import time

from cni_calico.deadline import Deadline
from cni_calico.errors import NotReady
from cni_calico.model.documents.codec import decode_cluster_information
from cni_calico.model.keys import CLUSTER
from cni_calico.plugin.call.services import CallDatastore, Services

FIRST_START_S = 10.0
_PAUSE_S = 0.25


def require_ready(datastore: CallDatastore, deadline: Deadline, *, wait_s: float = 0.0) -> None:
    """``wait_s``: how long for a record that does not exist. Raises NotReady, CorruptRecord, DatastoreError."""
    limit = deadline.sooner(wait_s)
    while not require_not_locked(datastore, deadline) and datastore.config.type != "local":
        if limit.expired():
            raise NotReady(
                "Calico is currently not ready to process requests: ClusterInformation 'default' does not exist",
                details="while Calico is being installed that is as it should be: calico-node makes it in its first "
                "seconds, and the runtime tries again; if it lasts, see that calico-node runs, and that this "
                "configuration names its datastore",
            )
        time.sleep(_PAUSE_S)


def require_not_locked(datastore: CallDatastore, deadline: Deadline) -> bool:
    """Whether there is a ClusterInformation. Raises NotReady if it says so, CorruptRecord, DatastoreError."""
    document = datastore.read(CLUSTER, deadline)
    if document is not None and decode_cluster_information(CLUSTER, document).datastore_ready is False:
        raise NotReady(
            "Calico is currently not ready to process requests",
            details="ClusterInformation 'default' has datastoreReady: false; a migration or upgrade sets and clears "
            "it; if the records have moved to the other API group, calico_api_group has to name that one",
        )
    return document is not None


def note_synced(services: Services) -> None:
    """Remember until the next boot that the datastore has been reached; failing to do so is not a failure
    of the call.
    """
    try:
        services.mark_synced()
    except OSError as e:
        services.log.warning(f"cannot remember in {services.run_dir} that the datastore was reached: {e}")
