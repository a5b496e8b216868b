"""Whether the cluster takes requests at the moment, and whether it ever did since this node started.

Rule: ClusterInformation says ``datastoreReady: false`` while the datastore is migrated or upgraded; then nothing is
written. A ClusterInformation that cannot be read is refused by name, never taken for a yes.
"""

from __future__ import annotations

from cni_calico.deadline import Deadline
from cni_calico.errors import NotReady
from cni_calico.model.access import DatastoreConfig
from cni_calico.model.documents.codec import decode_cluster_information
from cni_calico.model.keys import ResourceKey
from cni_calico.plugin.call.services import Services

CLUSTER = ResourceKey("ClusterInformation", "default")


def require_ready(services: Services, config: DatastoreConfig, deadline: Deadline) -> None:
    """Raises NotReady, CorruptRecord, DatastoreError."""
    document = services.read(config, CLUSTER, deadline)
    if document is not None and decode_cluster_information(CLUSTER, document).datastore_ready is False:
        raise NotReady(
            "Calico is currently not ready to process requests",
            details="ClusterInformation 'default' has datastoreReady: false; a migration or upgrade sets and clears it",
        )


def note_synced(services: Services) -> None:
    """Remember until the next boot that the datastore has been reached; not being able to is no failure of a call."""
    try:
        services.mark_synced()
    except OSError as e:
        services.log.warning(f"cannot remember in {services.run_dir} that the datastore was reached: {e}")
