"""Whether the cluster accepts requests now, and whether it ever did since this node started.

Rule: ClusterInformation says ``datastoreReady: false`` while the datastore is migrated or upgraded; then nothing is
written. For calico a cluster without that record is not ready either, as in upstream: the datastore is empty, or is
another one than the configuration's author meant. calico-ipam by itself does not require the record, and the embedded
store is always a cluster of its own. A ClusterInformation that cannot be read is an error that names it; it never
counts as ready.
"""

from __future__ import annotations

from cni_calico.deadline import Deadline
from cni_calico.errors import NotReady
from cni_calico.model.documents.codec import decode_cluster_information
from cni_calico.model.keys import CLUSTER
from cni_calico.plugin.call.services import CallDatastore, Services


def require_ready(datastore: CallDatastore, deadline: Deadline) -> None:
    """Raises NotReady, CorruptRecord, DatastoreError."""
    if not require_not_locked(datastore, deadline) and datastore.config.type != "local":
        raise NotReady(
            "Calico is currently not ready to process requests: ClusterInformation 'default' does not exist",
            details="while Calico is being installed that is as it should be: calico-node makes it in its first "
            "seconds, and the runtime tries again; if it lasts, see that calico-node runs, and that this configuration "
            "names its datastore",
        )


def require_not_locked(datastore: CallDatastore, deadline: Deadline) -> bool:
    """Whether there is a ClusterInformation. Raises NotReady if it says so, CorruptRecord, DatastoreError."""
    document = datastore.read(CLUSTER, deadline)
    if document is not None and decode_cluster_information(CLUSTER, document).datastore_ready is False:
        raise NotReady(
            "Calico is currently not ready to process requests",
            details="ClusterInformation 'default' has datastoreReady: false; a migration or upgrade sets and clears it",
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
